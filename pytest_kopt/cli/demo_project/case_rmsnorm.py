import pytest
import torch
from kernels.rmsnorm import EPS, rmsnorm

SHAPES = [(64, 512), (128, 1024)]


def reference(x, weight):
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("rows, hidden", SHAPES)
def test_rmsnorm(kopt, rows, hidden):
    kopt(
        rmsnorm,
        inputs=lambda: [torch.randn(size, device=kopt.device) for size in ((rows, hidden), hidden)],
        reference=reference,
        dims={"rows": rows, "hidden": hidden},
        weights=(1,),
        nbytes=4 * (2 * rows * hidden + hidden),
    )
