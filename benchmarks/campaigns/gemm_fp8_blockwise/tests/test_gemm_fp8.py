"""Linear layers in fp8 E4M3 with blockwise scales, forward and backward, for 4096 tokens.

Shapes (N, K) from the models' config.json: Llama-3.1-8B (hidden_size 4096, intermediate_size 14336,
8 key and value heads of 128) q, k and v 6144 x 4096, gate and up 28672 x 4096, down 4096 x 14336;
Llama-3.1-70B (hidden_size 8192) q, k and v 10240 x 8192; Qwen2.5-7B (hidden_size 3584,
intermediate_size 18944) gate and up 37888 x 3584.
"""

import pytest
import torch
from kernels.gemm_fp8 import gemm_fp8

from pytest_kopt import snr

TOKENS = 4096
LAYERS = [(6144, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (37888, 3584)]
REAL = [(TOKENS, *layer) for layer in LAYERS]
SMALL = [(40, 136, 264), (130, 24, 40)]
SHAPES = REAL if torch.cuda.is_available() else SMALL
# Triton's interpreter cuts off where the hardware rounds to nearest, which costs 8 dB.
GATE = snr("e4m3") if torch.cuda.is_available() else snr(18.0)


@pytest.mark.kopt(schema="gemm")
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
def test_gemm_fp8(kopt, M, N, K):
    def matrix(rows, columns):
        made = torch.randn(rows, columns, device=kopt.device, dtype=torch.bfloat16)
        return made.requires_grad_()

    kopt(
        gemm_fp8,
        inputs=lambda: (matrix(M, K), matrix(N, K)),
        reference=lambda x, w: x.double() @ w.double().T,
        dims={"M": M, "N": N, "K": K},
        backward=True,
        weights=(1,),
        gate=GATE,
    )
