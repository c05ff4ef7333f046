"""The same shapes for pytest-benchmark."""

import pytest
import torch
from kernels.products import product
from shapes import ON_GPU, SHAPES, draw


@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
def test_product(benchmark, M, N, K):
    a, b = draw(M, N, K)

    def call():
        product(a, b)
        if ON_GPU:
            torch.cuda.synchronize()

    call()
    benchmark(call)
