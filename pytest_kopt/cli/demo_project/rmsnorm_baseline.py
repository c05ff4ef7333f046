"""RMSNorm over the last dimension."""

import torch

EPS = 1e-6


def rmsnorm(x, weight):
    """Normalise x (rows, hidden) in float32 by its root mean square, scaled by weight (hidden,)."""
    out = torch.empty_like(x)
    for i, row in enumerate(x):
        wide = row.double()
        out[i] = (wide * torch.rsqrt(wide.square().mean() + EPS) * weight.double()).float()
    return out
