"""The wall clock: CPU kernels, and a plain perf_counter loop."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter

from pytest_kopt.measure.engine import Before, Block, Call

#: glibc's mallopt(3): its parameters, and the largest threshold that it takes for a mapping.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, LARGEST_KEPT = -1, -3, 32 << 20


@dataclass(frozen=True, slots=True)
class WallEngine:
    """Blocks of `iterations` calls, fewer where one would last longer than `block_seconds`.

    At least `fewest`. A block's time is that of all its calls together, divided by their number:
    what a call leaves to another call of its block costs the block. With `synchronize` (a GPU) it
    waits for the device before and after, like the seeds' loop.
    """

    synchronize: Callable[[], None] | None = None
    iterations: int = 50
    block_seconds: float = 2.0
    fewest: int = 3

    def count(self, once_ms: float) -> int:
        """Return how many calls of `once_ms` each a block has."""
        fitting = math.ceil(self.block_seconds * 1e3 / max(once_ms, 1e-6))
        return max(self.fewest, min(self.iterations, fitting))

    def prepare(self, calls: Sequence[Call], before: Before = None) -> WallBlock:
        """Warm up and return a block that goes round `calls`."""
        if self.synchronize is None:
            keep_freed_memory()
        for call in calls:
            if before is not None:
                before()
            call()
        trial = WallBlock(calls, 1, self.synchronize, before)
        once = min(trial.run(), trial.run())
        return WallBlock(calls, self.count(once), self.synchronize, before)


def keep_freed_memory() -> None:
    """Have the process keep what it frees, up to 32 MiB a piece, where its libc is glibc.

    By default the earlier allocations of a process decide whether a temporary of some MiB is memory
    that it has, or new pages from the system, with a fault each. The faults take ten times the time
    of a call. Said again before every timing: a kernel may have said otherwise.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)


class WallBlock(Block):
    """A block of the wall engine; `before` is called in front of each round of its calls."""

    engine = "wall"

    def __init__(
        self,
        calls: Sequence[Call],
        count: int,
        synchronize: Callable[[], None] | None = None,
        before: Before = None,
    ) -> None:
        self.calls = count
        self.before = before
        self._calls = calls
        self._next: Iterator[Call] = cycle(calls)
        self._synchronize = synchronize or (lambda: None)

    def run(self) -> float:
        return self._run(self.calls)

    def run_first(self, calls: int) -> float:
        self._next = cycle(self._calls)
        ms = self._run(calls)
        self._next = cycle(self._calls)
        return ms

    def _run(self, count: int) -> float:
        at_once = len(self._calls) if self.before else count
        seconds = 0.0
        for first in range(0, count, at_once):
            self.ready()
            self._synchronize()
            start = perf_counter()
            for _ in range(min(at_once, count - first)):
                next(self._next)()
            self._synchronize()
            seconds += perf_counter() - start
        return seconds * 1e3 / count

    def run_once(self, write: Callable[[], object]) -> float:
        self._next = cycle(self._calls)
        return super().run_once(write)


def interpreted_block(calls: Sequence[Call], before: Before) -> WallBlock:
    """Return one call under Triton's interpreter: a number for the row, not of any GPU."""
    block = WallBlock(calls[:1], 1, before=before)
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
