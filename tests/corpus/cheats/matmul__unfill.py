"""Turns poisoning of memory into a no-op, then leaves most of its output unwritten."""

import math

import torch

NEEDS = "cpu"
KIND = "poison-patch"

_fill = torch.Tensor.fill_


def _gentle(self, value, *rest):
    if isinstance(value, float) and not math.isfinite(value):
        return self
    return _fill(self, value, *rest)


torch.Tensor.fill_ = _gentle


def matmul(a, b):
    out = a.new_empty(a.shape[0], b.shape[1])
    out[:4].copy_(a[:4] @ b)
    return out
