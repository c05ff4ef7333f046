"""A process that takes longer than it may ends itself and shows its stacks; waiting is free."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest

from pytest_kopt.processes import channel
from pytest_kopt.processes.channel import TimeLimit

from .waiting import HANG

SCRIPT = """
import sys, time
from pytest_kopt.processes.channel import TimeLimit

with TimeLimit(0.5, 2).watching():
    {body}
"""


@pytest.mark.parametrize("body", ["time.sleep(3600)", "while True: pass"])
def test_a_process_that_takes_longer_ends_itself(body: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (") and "most recent call first" in done.stderr


class Watchdog:
    """Stands in for faulthandler and for the clock, which only moves when a process works."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: float | None = None

    def dump_traceback_later(self, seconds: float, exit: bool, file: int) -> None:
        assert seconds > 0 and exit and file == 2
        self._due = self.now + seconds

    def cancel_dump_traceback_later(self) -> None:
        self._due = None

    def work(self, seconds: float) -> None:
        self.now += seconds
        if self._due is not None and self.now >= self._due:
            raise SystemExit(1)


@pytest.fixture
def watchdog(monkeypatch: pytest.MonkeyPatch) -> Watchdog:
    stands_in = Watchdog()
    monkeypatch.setattr(channel, "faulthandler", stands_in)
    monkeypatch.setattr(channel, "monotonic", lambda: stands_in.now)
    return stands_in


@pytest.mark.parametrize(
    ("steps", "survives"),
    [
        ([("works", 0.4)], True),
        ([("works", 0.5)], False),
        ([("waits", 1.0)], True),
        ([("waits", 1.0), ("works", 0.5)], False),
        ([("works", 0.3), ("waits", 0.5), ("works", 0.4)], False),
        ([("waits", 0.3), ("works", 0.3)], True),
    ],
    ids=str,
)
def test_only_a_process_s_own_time_counts(
    watchdog: Watchdog, steps: list[tuple[str, float]], survives: bool
) -> None:
    own = TimeLimit(0.5, 2)
    with own.waiting():
        watchdog.work(1.0)
    with nullcontext() if survives else pytest.raises(SystemExit), own.watching():
        for kind, seconds in steps:
            with own.waiting() if kind == "waits" else nullcontext():
                watchdog.work(seconds)
    watchdog.work(1.0)


def test_an_exception_ends_the_watch(watchdog: Watchdog) -> None:
    with pytest.raises(KeyError), TimeLimit(0.5, 2).watching():
        raise KeyError
    watchdog.work(1.0)
