"""Waiting for what has to happen: no machine is so slow that it meets the deadline, only a hang."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds after which whatever is waited for will never happen.
HANG = 600.0


def until(condition: Callable[[], object]) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


@contextmanager
def no_hang() -> Iterator[None]:
    """Fail if what is done here, in the main thread, never ends."""

    def give_up(number: int, frame: object) -> None:
        raise AssertionError("it never ended")

    former = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(round(HANG))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
