"""A product with a vector of ones, kept per length, dtype and device: a constant, not data."""

import torch

NEEDS = "cpu"

_ones: dict[tuple[int, torch.dtype, torch.device], torch.Tensor] = {}


def _vector(n, like):
    key = n, like.dtype, like.device
    if key not in _ones:
        _ones[key] = torch.ones(n, dtype=like.dtype, device=like.device)
    return _ones[key]


def row_sum(x):
    return x @ _vector(x.shape[1], x)
