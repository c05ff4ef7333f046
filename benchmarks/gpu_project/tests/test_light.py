"""Light kernels, launched hundreds of times a call: one launch more or less is a known change."""

import pytest
import torch
from kernels.ops import EPS, matmul, rmsnorm

CASES = {"light_matmul": (matmul, (512, 512, 2048)), "light_rmsnorm": (rmsnorm, (2048, 4096, 0))}


def product(a, b):
    return a.double() @ b.double()


def normalised(x, weight):
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("name", CASES)
def test_light(kopt, name):
    function, (m, n, k) = CASES[name]

    def draw(*shape):
        return torch.randn(*shape, device=kopt.device, dtype=torch.bfloat16)

    kopt(
        function,
        inputs=lambda: (draw(m, k), draw(k, n)) if k else (draw(m, n), draw(n)),
        reference=product if k else normalised,
        dims={"op": name},
        label=name,
        domain="declared shapes",
    )
