"""Hands a result's memory out again when its object is gone, though a view of it may be in use."""

import sys

import torch

NEEDS = "cpu"
KIND = "reference-counted-output"

_pool: dict = {}


def _free(shape, dtype):
    buffers = _pool.setdefault((shape, dtype), [])
    for buffer in buffers:
        if sys.getrefcount(buffer) == 3:  # the list's, the loop's and the question's
            return buffer
    buffers.append(torch.empty(shape, dtype=dtype))
    return buffers[-1]


def swiglu(gate, up):
    out = _free(gate.shape, gate.dtype)
    torch.sigmoid(gate, out=out)
    return out.mul_(gate).mul_(up)
