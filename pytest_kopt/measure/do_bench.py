"""`triton.testing.do_bench` as an engine, to compare with figures that others measured by it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

from pytest_kopt.measure.engine import Block, Call, Engine


@dataclass(frozen=True, slots=True)
class DoBenchEngine(Engine):
    """Launches one at a time, each after a cleared L2 cache; a block is the mean of `rep_ms`."""

    warmup_ms: int = 25
    rep_ms: int = 100
    name = "do_bench"

    def prepare(self, calls: Sequence[Call], before: Callable[[], object] | None = None) -> Block:
        """Return a block that goes round `calls`; do_bench clears the cache by itself."""
        for call in calls:
            call()
        return _DoBenchBlock(calls, self.warmup_ms, self.rep_ms)


class _DoBenchBlock(Block):
    engine = "do_bench"

    def __init__(self, calls: Sequence[Call], warmup_ms: int, rep_ms: int) -> None:
        self.calls = 1
        self._next = cycle(calls)
        self._warmup, self._rep = warmup_ms, rep_ms

    def run(self) -> float:
        from triton.testing import do_bench

        times = do_bench(
            lambda: next(self._next)(), warmup=self._warmup, rep=self._rep, return_mode="all"
        )
        self.calls = len(times)
        return statistics.fmean(times)
