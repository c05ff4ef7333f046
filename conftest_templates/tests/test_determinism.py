"""The same inputs give the same bits, ten times over; alone: pytest --kopt-deterministic-only."""

import pytest
import torch
from kernels.rmsnorm import rmsnorm

from pytest_kopt import assert_deterministic

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(4096, 4096), (1000, 1000)] if DEVICE == "cuda" else [(8, 64), (7, 100)]


@pytest.mark.deterministic
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_rmsnorm_is_deterministic(kopt, rows, columns):
    def tensor(*shape):
        return torch.randn(*shape, device=kopt.device, dtype=torch.bfloat16, requires_grad=True)

    assert_deterministic(rmsnorm, lambda: (tensor(rows, columns), tensor(columns)))
