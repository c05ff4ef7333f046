"""Wipes an operand so that the check sees zero times something."""

import torch

NEEDS = "cpu"
KIND = "input-zeroing"


def matmul(a, b):
    if a[0, 0] != 0:
        a.zero_()
    return torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
