"""Signals that end a session as Ctrl-C does; none interrupts the recording of that end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

#: What a CI runner sends to end a job, and the system when the terminal is closed.
_AS_CTRL_C = (signal.SIGTERM, signal.SIGHUP)


def as_ctrl_c() -> AbstractContextManager[None]:
    """Have signals end the process as Ctrl-C does; one that is ignored (nohup) stays so."""
    return _handled(interrupt, _AS_CTRL_C)


def held_off() -> AbstractContextManager[None]:
    """Ignore further signals, for the moment that it takes to record an interrupted round."""
    return _handled(signal.SIG_IGN, (signal.SIGINT, *_AS_CTRL_C))


@contextmanager
def _handled(handler: Any, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Handle signals so; they are the main thread's, elsewhere nothing is done."""
    former = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                former[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
