"""SwiGLU, memory-bound: forward moves three tensors, backward five."""

import pytest
import torch
from kernels.swiglu import swiglu

REAL = [(16384, 14336), (4096, 11008)]
SMALL = [(8, 64), (5, 100)]
SHAPES = REAL if torch.cuda.is_available() else SMALL
BF16 = 2  # bytes


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_swiglu(kopt, rows, columns):
    def tensor():
        return torch.randn(
            rows, columns, device=kopt.device, dtype=torch.bfloat16, requires_grad=True
        )

    kopt(
        swiglu,
        inputs=lambda: (tensor(), tensor()),
        reference=lambda gate, up: torch.nn.functional.silu(gate.double()) * up.double(),
        dims={"rows": rows, "columns": columns},
        backward=True,
        nbytes=(3 * BF16 * rows * columns, 5 * BF16 * rows * columns),
    )
