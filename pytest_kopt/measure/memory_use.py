"""The cost of a version's first calls: their memory, as torch's allocators count it, and time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler

#: How torch's profiler names what an allocator gives or takes back, in bytes.
_ALLOCATION = "[memory]"


def first_calls(call: Callable[[], Any], device: str) -> tuple[int, float]:
    """Return what a version's first two calls take in this process: bytes, and ms of the first.

    They are the most bytes that the second call holds, beyond what was held before the first:
    memory that a version keeps between calls counts. Beyond the time of later calls the first one's
    holds what is compiled, tuned or read once.
    """
    took_ms = list[float]()

    def clocked() -> None:
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        took_ms.append((time.perf_counter() - start) * 1e3)

    gc.collect()
    if device != "cuda":
        result, _ = _profiled(clocked)
        _, peak = _profiled(clocked)
        return result + peak, took_ms[0]
    before = torch.cuda.memory_allocated()
    clocked()
    torch.cuda.reset_peak_memory_stats()
    clocked()
    return torch.cuda.max_memory_allocated() - before, took_ms[0]


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
