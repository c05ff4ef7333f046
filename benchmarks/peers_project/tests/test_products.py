import pytest
from kernels.products import product
from shapes import SHAPES, draw


@pytest.mark.kopt(schema="gemm")
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
def test_product(kopt, M, N, K):
    kopt(
        product,
        inputs=lambda: draw(M, N, K),
        reference=lambda a, b: a.double() @ b.double(),
        dims={"M": M, "N": N, "K": K},
    )
