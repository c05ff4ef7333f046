"""RMSNorm over the last dimension."""

import torch

EPS = 1e-6
CHUNK = 32


def rmsnorm(x, weight):
    """Normalise x (rows, hidden) in float32 by its root mean square, scaled by weight (hidden,)."""
    chunks = []
    for rows in x.split(CHUNK):
        scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + EPS)
        chunks.append((rows * scale).mul_(weight))
    return torch.cat(chunks)
