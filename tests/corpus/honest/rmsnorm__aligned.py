"""Looks at the address only to see whether rows of four can be loaded at once."""

import torch

NEEDS = "cpu"
VECTOR = 16


def _by_fours(x, w):
    wide = x.view(x.shape[0], -1, 4)
    inverse = torch.rsqrt(torch.linalg.vecdot(wide, wide).sum(1).div_(x.shape[1]).add_(1e-6))
    return (x * inverse[:, None]).mul_(w)


def _plain(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def rmsnorm(x, w):
    aligned = x.data_ptr() % VECTOR == 0 and x.shape[1] % 4 == 0 and x.is_contiguous()
    return _by_fours(x, w) if aligned else _plain(x, w)
