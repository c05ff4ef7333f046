"""A session in this process that dies, or meets the user's hand, at its k-th step on disk.

Python's audit events tell of every file that is opened for writing, renamed, removed or made and of
every process that is started; `os.fsync` is wrapped. Dying raises `Killed`, which no handler of the
product names; from then on nothing is written any more, so that clean-up code, which a SIGKILL does
not run either, finds no work to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REMOVALS = {"os.remove", "os.rmdir"}
_CHANGES = {*_REMOVALS, "os.rename", "os.mkdir", "os.truncate", "os.link", "os.symlink"}


class Killed(BaseException):
    """What a process that is killed does not live to see."""


@dataclass(slots=True)
class Steps:
    """Counts the steps on disk below `root` and interferes with the `at`-th.

    `what` is told the step's path. `torn` (0 to 1) is the share of what was being written that has
    reached the disk when the process dies; None has it die before the step.
    """

    root: Path
    at: int = 0
    torn: float | None = None
    meddle: Callable[[str], bool] | None = None
    count: int = 0
    #: The steps that can be half done: those that make a file or sync one.
    tearable: set[int] = field(default_factory=set)
    dead: bool = False
    what: str = ""
    _sizes: dict[str, int] = field(default_factory=dict)
    _busy: bool = False

    def seen(self, event: str, given: tuple[Any, ...]) -> None:
        """Take note of an audit event that may be a step."""
        if self._busy:
            return
        if event == "open":
            path, _, flags = given
            if isinstance(flags, int) and flags & _WRITES and self._is_inside(path):
                self._step(event, os.fsdecode(path), flags=flags)
        elif event in _CHANGES:
            if event == "os.mkdir" and os.path.isdir(given[0]):
                return
            paths = [item for item in given if isinstance(item, (str, bytes, os.PathLike))]
            folder = given[-1] if event in _REMOVALS else -1
            if folder >= 0:
                # Removal of a whole directory names its members by their directory's descriptor.
                paths = [os.path.join(os.readlink(f"/proc/self/fd/{folder}"), given[0])]
            if any(self._is_inside(path) for path in paths):
                self._step(event, os.fsdecode(paths[-1]))
        elif event == "subprocess.Popen" and "git" in os.path.basename(str(given[0])):
            self._step(f"git {' '.join(map(str, given[1][1:4]))}", "")

    def synced(self, descriptor: int) -> None:
        """Take note of an fsync."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._is_inside(path):
            self._step("fsync", path, descriptor=descriptor)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let somebody else's steps pass uncounted."""
        self._busy = True
        yield
        self._busy = False

    def _is_inside(self, path: Any) -> bool:
        return isinstance(path, (str, bytes, os.PathLike)) and os.path.abspath(
            os.fsdecode(path)
        ).startswith(f"{self.root}{os.sep}")

    def _step(self, what: str, path: str, *, flags: int = 0, descriptor: int = -1) -> None:
        if self.dead:
            # Clean-up finds nothing; anything else would be a step after death.
            raise FileNotFoundError(path) if what in _REMOVALS else Killed(what)
        self.count += 1
        if flags & os.O_CREAT or descriptor >= 0:
            self.tearable.add(self.count)
        if flags:
            there = os.path.exists(path) and not flags & os.O_TRUNC
            self._sizes[path] = os.stat(path).st_size if there else 0
        if not self.at or self.count < self.at:
            return
        if self.meddle is not None:
            self._busy = True
            # Where the user's hand does not fit in, it comes a step later.
            if self.meddle(path):
                self.at, self.what = 0, f"{what} {path}"
            self._busy = False
            return
        self.dead, self.what = True, f"{what} {path} ({self.torn})"
        self._tear(path, flags, descriptor)
        raise Killed(self.what)

    def _tear(self, path: str, flags: int, descriptor: int) -> None:
        if self.torn is None:
            return
        self._busy = True
        if flags & os.O_CREAT:
            os.close(os.open(path, flags, 0o600))
        elif descriptor >= 0:
            before, now = self._sizes.get(path, 0), os.fstat(descriptor).st_size
            os.ftruncate(descriptor, before + int((now - before) * self.torn))
        self._busy = False


_watching: Steps | None = None
_is_hooked = False


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if _watching is not None:
        _watching.seen(event, given)


@contextmanager
def watched(steps: Steps) -> Iterator[None]:
    """Watch everything that happens inside; `Killed` is not caught here."""
    global _watching, _is_hooked
    if not _is_hooked:
        # An audit hook stays for good; without anyone watching it does nothing.
        sys.addaudithook(_hook)
        _is_hooked = True
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        steps.synced(descriptor)
        sync(descriptor)

    _watching, os.fsync = steps, fsync  # type: ignore[assignment]
    try:
        yield
    finally:
        _watching, os.fsync = None, sync
