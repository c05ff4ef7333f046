"""The wall clock: CPU kernels, and the seeds' own perf_counter loop."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from pytest_kopt.measure.engine import Engine, Timing


@dataclass(frozen=True, slots=True)
class WallEngine(Engine):
    """Repeats of `iterations` calls; the first `discarded` repeats warm up and do not count.

    With `synchronize` (a GPU) a repeat is timed as a whole and a sample is its mean, as in the
    seeds' loop. Without it (CPU) every call is timed and a sample is the median of the repeat,
    which one busy core does not move. A repeat that would last longer than `repeat_seconds` is cut
    to fewer calls, at least three.
    """

    synchronize: Callable[[], None] | None = None
    repeats: int = 3
    iterations: int = 50
    discarded: int = 1
    repeat_seconds: float = 2.0
    name = "wall"

    def time(self, call: Callable[[], object]) -> Timing:
        calls = self._calls(call)
        sample = self._mean if self.synchronize else self._median
        samples = [sample(call, calls) for _ in range(self.discarded + self.repeats)]
        return Timing(self.name, tuple(samples[self.discarded :]), calls)

    def _calls(self, call: Callable[[], object]) -> int:
        once = self._mean(call, 1) * 1e-3
        return max(3, min(self.iterations, int(self.repeat_seconds / max(once, 1e-9))))

    def _mean(self, call: Callable[[], object], calls: int) -> float:
        wait = self.synchronize or (lambda: None)
        wait()
        start = perf_counter()
        for _ in range(calls):
            call()
        wait()
        return (perf_counter() - start) * 1e3 / calls

    def _median(self, call: Callable[[], object], calls: int) -> float:
        times = []
        for _ in range(calls):
            start = perf_counter()
            call()
            times.append(perf_counter() - start)
        return statistics.median(times) * 1e3


@dataclass(frozen=True, slots=True)
class InterpreterEngine(Engine):
    """One call under Triton's interpreter: a number for the row that says nothing about a GPU."""

    name = "interpreter"

    def time(self, call: Callable[[], object]) -> Timing:
        start = perf_counter()
        call()
        return Timing(self.name, ((perf_counter() - start) * 1e3,), 1)
