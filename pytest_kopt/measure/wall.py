"""The wall clock: CPU kernels, and a plain perf_counter loop."""

from __future__ import annotations

import ctypes
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from time import perf_counter, process_time, thread_time

from pytest_kopt.measure.engine import Before, Block, Call
from pytest_kopt.profile_hook import FROM_C, hooks

#: glibc's mallopt(3): its parameters, and the largest threshold that it takes for a mapping.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _LARGEST = -1, -3, 32 << 20
#: A share of a thread's CPU time that others of its process may use beside it.
_BESIDE = 0.05


@dataclass(frozen=True, slots=True)
class WallEngine:
    """Blocks of `iterations` calls, fewer where one would last longer than `block_seconds`.

    At least `fewest`. With `synchronize` (a GPU) a block is timed as a whole, like the seeds' loop.
    Without it (CPU) every call is, and the median counts (of several calls the mean of their
    medians), which one busy core does not move.
    """

    synchronize: Callable[[], None] | None = None
    iterations: int = 50
    block_seconds: float = 2.0
    fewest: int = 3

    def prepare(self, calls: Sequence[Call], before: Before = None) -> WallBlock:
        """Warm up and return a block that goes round `calls`."""
        if self.synchronize is None:
            keep_freed_memory()
        for call in calls:
            if before is not None:
                before()
            call()
        trial = WallBlock(calls, 1, self.synchronize, before)
        once = min(trial.run(), trial.run()) * 1e-3
        fitting = math.ceil(self.block_seconds / max(once, 1e-9))
        count = max(self.fewest, min(self.iterations, fitting))
        return WallBlock(calls, count, self.synchronize, before)


def keep_freed_memory() -> None:
    """Have the process keep what it frees, up to 32 MiB a piece, where its libc is glibc.

    By default it depends on what a process allocated before whether a temporary of some MiB is
    memory that it has, or new pages from the system, a fault each: ten times the time of a call.
    Said again before every timing: a kernel may have said otherwise.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, _LARGEST)


class WallBlock(Block):
    """A block of the wall engine."""

    engine = "wall"

    def __init__(
        self,
        calls: Sequence[Call],
        count: int,
        synchronize: Callable[[], None] | None,
        before: Before = None,
    ) -> None:
        self.calls = count
        self.before = before
        self._calls = calls
        self._next: Iterator[Call] = cycle(calls)
        self._synchronize = synchronize

    def run(self) -> float:
        return self._whole() if self._synchronize else self._median()

    def _whole(self) -> float:
        assert self._synchronize is not None
        at_once = len(self._calls) if self.before else self.calls
        seconds = 0.0
        for done in range(0, self.calls, at_once):
            self.ready()
            self._synchronize()
            start = perf_counter()
            for _ in range(min(at_once, self.calls - done)):
                next(self._next)()
            self._synchronize()
            seconds += perf_counter() - start
        return seconds * 1e3 / self.calls

    def _median(self) -> float:
        times, gaps = defaultdict(list), []
        clock, asks = partial(perf_counter), hooks()
        known = [*map(FROM_C, asks)]
        first = before = thread_time()
        beside, taken = process_time() - first, 0.0
        for _, call in zip(range(self.calls), cycle(self._calls), strict=False):
            if self.before is not None:
                self.before()
            # All that this thread has computed since, but for the last call itself.
            now = thread_time()
            gaps.append(now - before - taken)
            before, steps = now, (clock, partial(call), *asks, partial(_next_call), clock)
            start, result, *found, _, end = map(FROM_C, steps)
            del result
            taken = end - start
            times[call].append(taken)
            self.is_hooked |= found != known
        beside = process_time() - thread_time() - beside
        # What other threads computed on lies in another core's caches: no figure is fair then.
        is_alone = beside < _BESIDE * (before - first)
        between = statistics.median(gaps[1:]) * 1e3 if is_alone and gaps[1:] else 0.0
        self.between = max(0.0, between)
        # Calls on different inputs may take differently long: each counts, not the middle one.
        return statistics.fmean(map(statistics.median, times.values())) * 1e3


def _next_call() -> None:
    """Be what hooks, signals and pending calls wait for: what they do belongs to the timed call."""


def interpreted_block(calls: Sequence[Call], before: Before) -> WallBlock:
    """Return one call under Triton's interpreter: a number for the row, not of any GPU."""
    block = WallBlock(calls[:1], 1, None, before)
    block.engine = "interpreter"
    return block


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels on one thread: with several, one busy core moves a time by 20 %."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
