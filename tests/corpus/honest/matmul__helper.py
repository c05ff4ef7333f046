"""Tiled over columns with a helper from a neighbouring file."""

import torch
from tiling import tiles

NEEDS = "cpu"


def matmul(a, b):
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for columns in tiles(b.shape[1], 64):
        torch.mm(a, b[:, columns], out=out[:, columns])
    return out
