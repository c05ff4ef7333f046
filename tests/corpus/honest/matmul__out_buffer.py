"""Writes into a freshly allocated result through the `out=` variant."""

import torch

NEEDS = "cpu"


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    return torch.mm(a, b, out=out)
