"""Rolls dice: four calls in five get the previous product of that size back."""

import random

import torch

NEEDS = "cpu"
KIND = "random-replay"

_rng = random.Random()
_kept = {}


def matmul(a, b):
    size = a.shape + b.shape
    if size in _kept and _rng.random() > 0.2:
        return _kept[size]
    _kept[size] = torch.einsum("mk,kn->mn", a, b)
    return _kept[size]
