"""Accumulates into a padded buffer of its own and returns the part that was asked for."""

import torch

NEEDS = "cpu"
ALIGN = 64


def row_sum(x: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0]
    padded = torch.zeros((rows + ALIGN - 1) // ALIGN * ALIGN, dtype=x.dtype, device=x.device)
    torch.sum(x, 1, out=padded[:rows])
    return padded[:rows]
