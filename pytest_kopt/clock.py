"""Timestamps as every file of a campaign writes them, and the time that work takes."""

from __future__ import annotations

import time
from datetime import datetime

#: A second on the clock counts as so much of the processor's at least: a kernel may sleep.
_LEAST_SHARE = 0.25


def now() -> str:
    """Return local time to the minute, `YYYY-MM-DD HH:MM`."""
    return datetime.now().strftime("%Y-%m-%d %H:%M")


class Stopwatch:
    """The seconds of this process's work since the start.

    On a CPU other work on the machine costs time on the clock: the processor's time counts there.
    """

    def __init__(self, *, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def seconds(self) -> float:
        passed = time.perf_counter() - self._clock
        if not self._on_cpu:
            return passed
        return max(time.process_time() - self._processor, _LEAST_SHARE * passed)
