"""`triton.testing.do_bench` as an engine, to compare with figures that others measured by it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import cycle

from pytest_kopt.measure.engine import Before, Block, Call

_WARMUP_MS, _REP_MS = 25, 100


def do_bench_block(calls: Sequence[Call], before: Before = None) -> Block:
    """Launch one at a time; a block is the mean of 100 ms. do_bench clears the L2 cache itself."""
    for call in calls:
        call()
    return _DoBenchBlock(calls)


class _DoBenchBlock(Block):
    engine = "do_bench"

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = 1
        self._next = cycle(calls)

    def run(self) -> float:
        from triton.testing import do_bench

        times = do_bench(
            lambda: next(self._next)(), warmup=_WARMUP_MS, rep=_REP_MS, return_mode="all"
        )
        self.calls = len(times)
        return statistics.fmean(times)
