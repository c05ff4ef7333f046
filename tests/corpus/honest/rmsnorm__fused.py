"""Everything in three vectorised steps, scaling in place in its own output."""

import torch

NEEDS = "cpu"
EPS = 1e-6


def rmsnorm(x, w):
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True).add_(EPS))
    out = x * inverse
    return out.mul_(w)
