"""GEMM in bf16, forward and backward: Combined Step TFLOPS decides."""

import pytest
import torch
from kernels.gemm_bf16 import gemm

REAL = [(4096, 4096, 4096), (1024, 8192, 4096), (8192, 8192, 1024), (512, 512, 512)]
SMALL = [(64, 64, 128), (72, 40, 24)]  # for Triton's interpreter
SHAPES = REAL if torch.cuda.is_available() else SMALL


@pytest.mark.kopt(schema="gemm")
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
def test_gemm_bf16(kopt, M, N, K):
    def matrix(rows, columns):
        return torch.randn(
            rows, columns, device=kopt.device, dtype=torch.bfloat16, requires_grad=True
        )

    kopt(
        gemm,
        inputs=lambda: (matrix(M, K), matrix(K, N)),
        reference=lambda a, b: a.double() @ b.double(),
        dims={"M": M, "N": N, "K": K},
        backward=True,
        weights=(1,),
    )
