"""RMSNorm in bf16 over 16384 tokens, forward and backward, at hidden sizes of real models.

The sizes are `hidden_size` in the models' config.json: Llama-3.1-8B 4096, Llama-3.1-70B 8192,
Qwen2.5-14B and Qwen3-32B 5120, Qwen2.5-7B 3584.
"""

import pytest
import torch
from kernels.rmsnorm import rmsnorm

from pytest_kopt import snr

REAL = [(16384, 4096), (16384, 8192), (16384, 5120), (16384, 3584)]
SMALL = [(3, 48), (4, 100)]
SHAPES = REAL if torch.cuda.is_available() else SMALL
BF16 = 2  # bytes


def reference(x, w):
    return x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6) * w.double()


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_rmsnorm(kopt, rows, columns):
    def tensor(*shape):
        return torch.randn(*shape, device=kopt.device, dtype=torch.bfloat16, requires_grad=True)

    kopt(
        rmsnorm,
        inputs=lambda: (tensor(rows, columns), tensor(columns)),
        reference=reference,
        dims={"rows": rows, "columns": columns},
        backward=True,
        weights=(1,),
        nbytes=(2 * BF16 * rows * columns, 3 * BF16 * rows * columns),
        # The weight's gradient is a sum over all rows: relative to it bf16 gives about 50 dB.
        gate=snr(40.0),
    )
