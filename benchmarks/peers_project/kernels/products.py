"""Products that are launched many times a call: a launch more or less is a known change."""

import torch

#: Launches a call by the number of rows; BASE where a size is not listed.
BASE = 200
LAUNCHES = {}


def product(a, b):
    """Return a @ b for a (M, K) and b (K, N), computed over and over again."""
    out = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)
    for _ in range(LAUNCHES.get(a.shape[0], BASE)):
        torch.mm(a, b, out=out)
    return out
