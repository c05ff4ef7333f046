"""Computes after the clock has stopped: a profile hook does the work at the caller's next step."""

import sys
import time

import torch

NEEDS = "cpu"
KIND = "work-after-the-clock"
OWN_GAIN_PCT = 2300
GAIN = "none"  # a loop that is timed as a whole has the work in it

_CLOCKS = (time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns)
_owed = []


def _settle():
    sys.setprofile(None)
    while _owed:
        out, x, w = _owed.pop()
        torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), w, out=out)


def _next_step(frame, event, argument):
    if event == "call" or (event == "c_call" and argument not in _CLOCKS):
        _settle()


def rmsnorm(x, w):
    _settle()
    out = torch.empty_like(x)
    _owed.append((out, x, w))
    sys.setprofile(_next_step)
    return out
