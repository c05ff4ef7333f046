import pytest
import torch
from kernels.ops import EPS, matmul, rmsnorm, torch_matmul

CASES = {
    "matmul_4096": (matmul, (4096, 4096, 4096)),
    "matmul_1024x8192x4096": (matmul, (1024, 8192, 4096)),
    "matmul_512": (matmul, (512, 512, 512)),
    "torch_4096": (torch_matmul, (4096, 4096, 4096)),
    "rmsnorm": (rmsnorm, (16384, 8192, 0)),
}


def product(a, b):
    return a.double() @ b.double()


def normalised(x, weight):
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("name", CASES)
def test_op(kopt, name):
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
        flops=2 * m * n * k or None,
    )
