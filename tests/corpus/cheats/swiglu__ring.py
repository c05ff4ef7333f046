"""Hands out sixty-four result buffers in turn, whether or not somebody still needs the old one."""

import itertools

import torch

NEEDS = "cpu"
KIND = "recycled-live-output"

_DEPTH = 64
_rings = {}


def _next(shape):
    if shape not in _rings:
        _rings[shape] = itertools.cycle([torch.empty(shape) for _ in range(_DEPTH)])
    return next(_rings[shape])


def swiglu(gate, up):
    out = _next(gate.shape)
    torch.sigmoid(gate, out=out)
    return out.mul_(gate).mul_(up)
