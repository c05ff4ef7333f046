"""Compiled once per shape, with the work split over two functions."""

import torch

NEEDS = "cuda"


def _standardise(x, eps=1e-5):
    spread, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(spread + eps)


_compiled = torch.compile(lambda x: torch.relu(_standardise(x)), dynamic=False)


def layernorm_relu(x):
    return _compiled(x)
