"""The progress of a session: a line for people, `running.json` for programs that poll.

It also keeps the session's timeline, which goes into evidence.json.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.campaign import running
from pytest_kopt.clock import now
from pytest_kopt.devices import processes

#: Seconds after which a line is printed where there is no terminal, whatever has happened.
QUIET_SECONDS = 10.0
_TICK_SECONDS = 1.0
#: Phases in which a session begins.
_FIRST = ("starting", "checking")
#: The process whose phases are the session's.
CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a session's timeline, in seconds from the session's start."""

    phase: str
    #: The process that was busy, or waited for.
    process: str
    begin: float
    end: float


class Progress:
    """Told of every case and every measured process; on a terminal one line that renews itself.

    Elsewhere a line at least every 10 s, with `-v` one for each step; with `-q` none. `file` is
    kept up to date and tells how the session ended.
    """

    def __init__(
        self,
        reporter: pytest.TerminalReporter | None,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter = reporter
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beats = False
        self._began = now()
        self._phase = ""
        self._case = ""
        #: Which other session holds the device, "" where none does.
        self._in_the_way = ""
        self._done = self._total = 0
        #: The parts of a comparison, "" for cases.
        self._unit = ""
        self._since = self._shown = self._zero = clock()
        self._spans: list[Span] = []

    def begin(self, phase: str, total: int = 0, unit: str = "", *, says: bool = False) -> None:
        """Begin a phase of `total` cases (0: not counted); of a `unit`, `total` is the limit."""
        with self._lock:
            self._spans.append(self._span)
            self._phase, self._total, self._done, self._case = phase, total, 0, ""
            self._unit = unit
            self._since = self._clock()
            self._step(says=says)
        if phase in _FIRST and self._reporter is not None and not self._beats:
            self._beats = True
            threading.Thread(target=self._beat, name="kopt-progress", daemon=True).start()

    @contextmanager
    def during(self, phase: str, process: str) -> Iterator[None]:
        """Put what is done in this context down in the timeline; from any thread."""
        begin = self._seconds
        try:
            yield
        finally:
            self._spans.append(Span(phase, process, begin, self._seconds))

    @property
    def timeline(self) -> list[Span]:
        """The timeline so far; the phase that goes on ends now."""
        return sorted([*self._spans, self._span], key=lambda span: span.begin)

    @property
    def _span(self) -> Span:
        begin = round(self._since - self._zero, 3)
        return Span(self._phase or "configuring", CONTROLLER, begin, self._seconds)

    @property
    def _seconds(self) -> float:
        return round(self._clock() - self._zero, 3)

    def started(self, nodeid: str) -> None:
        with self._lock:
            self._case = nodeid
            self._step(says=self._is_terminal)

    def advance(self) -> None:
        """Note that another part of the phase is done; from any thread."""
        with self._lock:
            self._done += 1
            is_verbose = self._reporter is not None and self._reporter.verbosity > 0
            tells = bool(self._unit) and (self._done == 1 or is_verbose)
            self._step(says=self._is_terminal or tells)

    def stop(self) -> None:
        self._ended.set()

    def end(self, exit_code: int | None, error: Exception | None = None) -> None:
        """Leave the end in the file; only the first call counts."""
        self.stop()
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            running.end(file, exit_code, error, started=self._began)

    def document(self) -> dict[str, Any]:
        return {
            "phase": self._phase,
            "case": self._case or None,
            "done": self._done,
            "total": self._total,
            "started": self._began,
        }

    def line(self) -> str:
        waits = "this session waits for its turn: let that one end, or stop it if it is yours"
        return self._line() + (f"; {self._in_the_way}; {waits}" if self._in_the_way else "")

    def _line(self) -> str:
        if not self._total:
            return f"kopt: {self._phase}, {self._clock() - self._since:.0f} s so far"
        if self._unit:
            return f"kopt: {self._phase}, {self._done} of at most {self._total} {self._unit}"
        case = self._case.rpartition("::")[2]
        place = min(self._done + 1, self._total)
        return f"kopt: {self._phase} {place} of {self._total}{case and f': {case}'}"

    @property
    def _is_terminal(self) -> bool:
        return bool(self._reporter and self._reporter.isatty)

    def _beat(self) -> None:
        """Go on showing while nothing happens."""
        while not self._ended.wait(_TICK_SECONDS):
            with self._lock:
                is_quiet = self._clock() - self._shown >= QUIET_SECONDS
                self._in_the_way = processes.in_the_way() if is_quiet else ""
                self._step(says=is_quiet)

    def _step(self, *, says: bool) -> None:
        if self._ended.is_set():
            return
        # Whoever starts does not hold the campaign yet.
        if self._file is not None and not (
            self._phase == "starting" and running.is_anothers(running.read(self._file))
        ):
            running.write(self._file, **self.document())
        reporter = self._reporter
        if not says or reporter is None or reporter.verbosity < 0:
            return
        self._shown = self._clock()
        # pytest's header comes behind what starts, and begins no line of its own.
        if reporter.isatty and self._phase != "starting":
            reporter.rewrite(self.line(), erase=True)
            return
        _begin_line(reporter)
        reporter.write_line(self.line())
        reporter.flush()


def _begin_line(reporter: pytest.TerminalReporter) -> None:
    reporter.ensure_newline()
    # That does not see the dots of xdist, which stand behind no file's name.
    writer = reporter.config.get_terminal_writer()
    if writer.width_of_current_line:
        writer.line()
