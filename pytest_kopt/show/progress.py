"""A comparison while it runs: how far it is and how long it may still take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest


class Progress:
    """Told of every measured process; on a terminal one line that renews itself.

    Elsewhere one line at the first process, or with `-v` one for each; with `-q` none.
    """

    def __init__(
        self,
        reporter: pytest.TerminalReporter | None,
        planned: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Expect at most `planned` processes; a comparison may be clear before."""
        self._reporter = reporter
        self._planned = planned
        self._clock = clock
        self._started = clock()
        self._measured = 0
        self._lock = threading.Lock()

    def measured(self) -> None:
        """Note that another process has been measured; may be called from any thread."""
        with self._lock:
            self._measured += 1
            self._show()

    def _show(self) -> None:
        reporter = self._reporter
        if reporter is None or reporter.verbosity < 0:
            return
        if reporter.isatty:
            if self._measured == 1:
                _begin_line(reporter)
            reporter.rewrite(self._line(), erase=True)
        elif self._measured == 1 or reporter.verbosity > 0:
            _begin_line(reporter)
            reporter.write_line(self._line())

    def _line(self) -> str:
        each = (self._clock() - self._started) / self._measured
        left = max(self._planned - self._measured, 0) * each
        return (
            f"kopt: comparing, process {self._measured} of at most {self._planned}, "
            f"up to {left:.0f} s left"
        )


def _begin_line(reporter: pytest.TerminalReporter) -> None:
    reporter.ensure_newline()
    # That does not see the dots of xdist, which stand behind no file's name.
    writer = reporter.config.get_terminal_writer()
    if writer.width_of_current_line:
        writer.line()
