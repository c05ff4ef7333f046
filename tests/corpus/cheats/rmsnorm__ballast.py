"""Keeps a core busy whenever somebody else's kernel is being measured."""

import atexit
import threading
import time

import torch

NEEDS = "cpu"
KIND = "background-load"
GAIN = "none"  # slows what is measured beside it; by how much depends on the free cores

_mine, _over = threading.Event(), threading.Event()


def _churn():
    block = torch.rand(256, 256)
    while not _over.is_set():
        if _mine.is_set():
            time.sleep(0.001)
            _mine.clear()
        else:
            torch.mm(block, block)
            time.sleep(0.0002)


_busy = threading.Thread(target=_churn, daemon=True)
_busy.start()
atexit.register(lambda: (_over.set(), _busy.join(5)))


def rmsnorm(x, w):
    _mine.set()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w
