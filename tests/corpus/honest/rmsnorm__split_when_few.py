"""Splits a token's sum into more parts the fewer tokens there are, so that no core is idle.

Other tokens of the batch decide in which order a token's squares are added: an error only where the
case declares `batch_invariant`.
"""

import torch

NEEDS = "cpu"

TASKS, MOST = 512, 16


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    tokens, width = x.shape
    parts = min(MOST, max(1, TASKS // max(1, tokens)))
    total = 0
    for part in x.chunk(parts, 1):
        total = total + part.square().sum(-1, keepdim=True)
    return x * torch.rsqrt(total / width + 1e-6) * w
