"""Writes fast times of its own into every pipe that the process has."""

import contextlib
import json
import os
import stat

import torch

NEEDS = "cpu"
KIND = "forged-pipe"
GAIN = "none"  # the plain harness keeps no pipe

_LINE = json.dumps({"samples": [1e-6] * 50}).encode() + b"\n"
_calls = 0


def row_sum(x):
    global _calls
    _calls += 1
    if _calls % 100 == 0:
        for number in range(3, 64):
            with contextlib.suppress(OSError):
                if stat.S_ISFIFO(os.fstat(number).st_mode):
                    os.write(number, _LINE)
    out = torch.zeros(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        out[i] = x[i].sum()
    return out
