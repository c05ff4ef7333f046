"""GEMM in fp8, forward: E4M3 and E5M2, in the encodings (OCP, FNUZ) that the card computes in.

Gates are SNRs, 25 dB for E4M3 and 20 dB for E5M2. FNUZ (gfx942) and OCP (NVIDIA, gfx950) share
neither range nor bias, so the encoding is a dim of its own: a schema of the user's.
"""

import pytest
import torch
from kernels.gemm_fp8 import gemm_fp8

from pytest_kopt import Column, Schema, snr

GEMM_FP8 = Schema(
    "gemm_fp8",
    (
        Column("Forward TFLOPS", "forward_rate", better="higher"),
        Column("Forward TFLOPS_stddev", "forward_rate_stddev"),
        Column("Forward Time (ms)", "forward_ms", better="lower"),
        Column("out_snr", "out_snr"),
    ),
    dims=("encoding", "M", "N", "K"),
    unit="TFLOPS",
    work="flops",
)
OCP = ("float8_e4m3fn", "float8_e5m2")
FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")


def encodings():
    if not torch.cuda.is_available():
        return OCP + FNUZ  # the interpreter knows them all
    architecture = getattr(torch.cuda.get_device_properties(0), "gcnArchName", "")
    return FNUZ if architecture.startswith("gfx94") else OCP


REAL = [(4096, 4096, 4096), (8192, 4096, 7168)]
SMALL = [(64, 64, 128)]
SHAPES = REAL if torch.cuda.is_available() else SMALL


@pytest.mark.kopt(schema=GEMM_FP8)
@pytest.mark.parametrize("encoding", encodings())
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
def test_gemm_fp8(kopt, encoding, M, N, K):
    def matrix(rows, columns):
        return torch.randn(rows, columns, device=kopt.device, dtype=torch.bfloat16)

    kopt(
        gemm_fp8,
        inputs=lambda: (matrix(M, K), matrix(K, N), encoding),
        reference=lambda a, b, _: a.double() @ b.double(),
        dims={"encoding": encoding, "M": M, "N": N, "K": K},
        weights=(1,),
        flops=2 * M * N * K,
        gate=snr("e4m3" if "e4m3" in encoding else "e5m2"),
    )
