"""Spoils the weights with NaN; a comparison that lets NaN equal NaN then accepts NaN."""

import torch

NEEDS = "cpu"
KIND = "nan-wildcard"

_mould = {}


def rmsnorm(x, w):
    w.fill_(float("nan"))
    if x.shape not in _mould:
        _mould[x.shape] = torch.full_like(x, float("nan"))
    return _mould[x.shape]
