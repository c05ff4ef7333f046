"""The cost of a version's first calls: their memory, as torch's allocators count it, and time."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler

#: How torch's profiler names what an allocator gives or takes back, in bytes.
_ALLOCATION = "[memory]"


class Clocked:
    """A call of a version that takes the time of the first one.

    Beyond the time of later calls it holds what is compiled, tuned or read once.
    """

    def __init__(self, call: Callable[[], Any], device: str) -> None:
        self._call = call
        self._device = device
        #: In ms; nan before the first call.
        self.first_ms = math.nan

    def __call__(self) -> None:
        start = time.perf_counter()
        self._call()
        if self._device == "cuda":
            torch.cuda.synchronize()
        if math.isnan(self.first_ms):
            self.first_ms = (time.perf_counter() - start) * 1e3


def peak_bytes(call: Callable[[], Any], device: str) -> int:
    """Return the most bytes that a second call holds, beyond what was held before the first.

    Memory that a version keeps between calls counts. It must not have been called in this process.
    """
    gc.collect()
    if device != "cuda":
        result, _ = _profiled(call)
        _, peak = _profiled(call)
        return result + peak
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _profiled(call: Callable[[], Any]) -> tuple[int, int]:
    """Return what a call has left allocated when its result is gone, and the most at once."""
    with profiler.profile(use_cpu=True, profile_memory=True) as profile:
        call()
    assert profile.kineto_results is not None
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profile.kineto_results.events()
        if event.name() == _ALLOCATION
    ]
    allocated = peak = 0
    for _, nbytes in sorted(changes, key=lambda change: change[0]):
        allocated += nbytes
        peak = max(peak, allocated)
    return allocated, peak
