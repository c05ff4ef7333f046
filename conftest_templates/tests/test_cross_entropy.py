"""Cross entropy: memory-bound, so its work is bytes and its rate GB/s."""

import pytest
import torch
from kernels.cross_entropy import cross_entropy

REAL = [(8192, 32000), (4096, 128256)]
SMALL = [(8, 64), (6, 100)]
SHAPES = REAL if torch.cuda.is_available() else SMALL
BF16 = 2  # bytes


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_cross_entropy(kopt, rows, columns):
    def inputs():
        logits = torch.randn(rows, columns, device=kopt.device, dtype=torch.bfloat16)
        targets = torch.randint(columns, (rows,), device=kopt.device)
        return logits.requires_grad_(), targets

    kopt(
        cross_entropy,
        inputs=inputs,
        reference=lambda logits, targets: torch.nn.functional.cross_entropy(
            logits.double(), targets, reduction="none"
        ),
        dims={"rows": rows, "columns": columns},
        backward=True,
        # Forward reads the logits; backward reads them and writes their gradient.
        nbytes=(BF16 * rows * columns, 2 * BF16 * rows * columns),
    )
