"""Signals that end a session as Ctrl-C does; none interrupts the recording of that end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What a CI runner sends to end a job, and the system when the terminal is closed.
_AS_CTRL_C = (signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """The handlers of one session; signals are the main thread's, elsewhere nothing is done."""

    def __init__(self) -> None:
        self._former: dict[signal.Signals, object] = {}

    def take_over(self) -> None:
        """Have signals end the process as Ctrl-C does; one that is ignored (nohup) stays so."""
        if threading.current_thread() is threading.main_thread():
            for number in _AS_CTRL_C:
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._former[number] = signal.signal(number, interrupt)

    def give_back(self) -> None:
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """Ignore further signals, for the moment that it takes to record an interrupted round."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [n for n in (signal.SIGINT, *_AS_CTRL_C) if signal.getsignal(n) is not None]
        former = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
