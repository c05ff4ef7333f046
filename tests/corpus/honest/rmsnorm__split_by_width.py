"""Splits a token's sum into parts of a fixed length, whatever the number of tokens."""

import torch

NEEDS = "cpu"

PART = 128


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = 0
    for part in x.split(PART, 1):
        total = total + part.square().sum(-1, keepdim=True)
    return x * torch.rsqrt(total / x.shape[1] + 1e-6) * w
