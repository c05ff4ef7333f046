"""How long a step of a case may take before its process is ended, with all stacks shown."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class TimeLimit:
    """A watchdog over one process, whatever holds it up: Python, a library or a device.

    It is faulthandler's, of which a process has one: limits do not nest. Exit status 1 and a text
    that begins with "Timeout (" are how the process ends.
    """

    def __init__(self, seconds: float, stream: int) -> None:
        """Allow that many seconds at a time; the stacks are written to a file descriptor."""
        self._seconds = seconds
        self._stream = stream
        self._end: float | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._start(self._seconds)
        try:
            yield
        finally:
            self._end = None
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop the clock while this process waits its turn: others may take as long as they do."""
        if self._end is None:
            yield
            return
        left = self._end - monotonic()
        faulthandler.cancel_dump_traceback_later()
        try:
            yield
        finally:
            self._start(left)

    def _start(self, seconds: float) -> None:
        self._end = monotonic() + seconds
        # It takes no time in the past, and none below a microsecond.
        faulthandler.dump_traceback_later(max(seconds, 1e-3), exit=True, file=self._stream)
