"""Writes the first rows only and trusts fresh memory to hold the answer of whoever ran before."""

import torch

NEEDS = "cpu"
KIND = "stale-memory"

HEAD = 8


def matmul(a, b):
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    torch.mm(a[:HEAD], b, out=out[:HEAD])
    return out
