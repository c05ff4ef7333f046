"""A session that is watched while it runs; `live` also: signals for it, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import nursery
from ..waiting import HANG, until
from .project import CAMPAIGN, Project, Run

#: In the environment of every process of a session, whatever its group and its parent.
_MARK = "SESSION_MARK"


def hear_signals() -> None:
    """Begin as at a terminal: what a shell starts in the background ignores Ctrl-C for good."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Session:
    """A started session."""

    def __init__(self, process: Any, log: Path) -> None:
        self.process = process
        self._log = log

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to happen while the session runs."""

        def happened() -> bool:
            if condition():
                return True
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(0)
                raise AssertionError(f"over ({code}) before it happened\n{self.text}")
            return False

        until(happened)

    def finish(self) -> Run:
        """Wait for the end."""
        return Run(self.process.wait(HANG), self.text, "")

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")


class Live(Session):
    """One in an interpreter and a group of its own."""

    def __init__(self, project: Project, words: tuple[str, ...], variables: dict[str, str]) -> None:
        self._mark = uuid.uuid4().hex
        path = project.root.parent / f"{self._mark}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *words],
                cwd=project.root,
                env={**project.environment(), **variables, _MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=hear_signals,
            )
        super().__init__(process, path)

    def press_ctrl_c(self) -> None:
        """Send what the terminal sends: SIGINT to every process of the foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the first process only, as a CI runner does."""
        self.process.send_signal(number)

    def left_running(self) -> dict[int, str]:
        """Return its processes that are alive, by pid with their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    ours = f"{_MARK}={self._mark}".encode() in (entry / "environ").read_bytes()
                    dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except (OSError, ProcessLookupError):
                    continue
                if ours and not dead:
                    found[int(entry.name)] = command
        return found

    def is_gone(self) -> None:
        """See that nothing of it is left running."""
        until(lambda: not self.left_running())


@contextmanager
def live(project: Project, *words: str, **variables: str) -> Iterator[Live]:
    """Start a session; whatever of it still runs in the end is killed."""
    session = Live(project, words, variables)
    try:
        yield session
    finally:
        for pid in session.left_running():
            os.kill(pid, signal.SIGKILL)
        session.process.wait()


@contextmanager
def beside(project: Project, *words: str) -> Iterator[Session]:
    """Start a session as a fork that is waited for, with no signal but the one that ends it."""
    path = project.root.parent / f"{uuid.uuid4().hex}.log"
    command = [sys.executable, "-m", "pytest", *words]
    with path.open("wb") as log:
        process = nursery.start(command, project.root, project.environment(), log.fileno())
    try:
        yield Session(process, path)
    finally:
        process.kill()
        process.wait()


def round_words(*words: str, number: str = "next", campaign: str = CAMPAIGN) -> tuple[str, ...]:
    """The words of a round."""
    return ("--kopt-campaign", campaign, "--kopt-round", number, *words)
