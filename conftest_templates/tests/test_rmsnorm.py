"""RMSNorm: memory-bound, so its work is bytes and its rate GB/s."""

import pytest
import torch
from kernels.rmsnorm import rmsnorm

from pytest_kopt import snr

REAL = [(16384, 8192), (4096, 4096), (65536, 1024)]
SMALL = [(8, 64), (6, 100)]
SHAPES = REAL if torch.cuda.is_available() else SMALL
BF16 = 2  # bytes


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_rmsnorm(kopt, rows, columns):
    def tensor(*shape):
        return torch.randn(*shape, device=kopt.device, dtype=torch.bfloat16, requires_grad=True)

    kopt(
        rmsnorm,
        inputs=lambda: (tensor(rows, columns), tensor(columns)),
        reference=lambda x, w: (
            x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6) * w.double()
        ),
        dims={"rows": rows, "columns": columns},
        backward=True,
        weights=(1,),
        nbytes=(2 * BF16 * rows * columns, 3 * BF16 * rows * columns),
        # The weight's gradient is a sum over all rows: relative to it bf16 gives about 50 dB.
        gate=snr(40.0),
    )
