"""A clock that only kernels move: what is found out by timing is then the same on any machine."""

from __future__ import annotations

import time
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.cases.running import checking
from pytest_kopt.cases.running.steps import contents
from pytest_kopt.measure import wall
from pytest_kopt.paired.samples import BlockTime

#: Seconds that a look at the clock takes, so that nothing takes none.
_LOOK = 1e-6


class Clock:
    """Stands in for `perf_counter` wherever a case is checked and timed in this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        patch.setattr(time, "perf_counter", self.now)
        for module in (contents, wall):
            patch.setattr(module, "perf_counter", self.now)
        # By this clock all that other threads and processes do would take no time.
        for module in (contents, checking):
            patch.setattr(module, "seconds_of_others", lambda: 0.0)
        # Processes of the tests' own, that fork sessions, would have the kernel called once more.
        patch.setattr(contents, "children", frozenset)

    def now(self) -> float:
        self._now += _LOOK
        return self._now

    def spend(self, seconds: float) -> None:
        self._now += seconds


def nothing_nearby(ids: Collection[str], how: str) -> Any:
    """Return what tried shapes near the declared ones, and found nothing."""
    quiet: Any = dict.fromkeys(("end", "kill"), lambda: None)
    told: Any = {"are_orphans": False, "died": "", "died_in": "", "how": how}
    found: Any = {"caught": [], "unloaded": set(), "through": {*ids}}
    return SimpleNamespace(wait=list, **told, **found, **quiet)


def block_time(ms: float, *, backward: bool = False) -> BlockTime:
    """A block of one call that takes `ms` by every clock, and as long again for its backward."""
    both = ms * (1 + backward)
    return BlockTime(ms, ms if backward else None, both, both, both)
