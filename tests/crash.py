"""A session in this process that dies, is recorded, or meets the user's hand at a step on disk.

Python's audit events tell of every file that is opened for writing, renamed, removed or made and of
every process that is started; `os.fsync` is wrapped. Dying raises `Killed`, which no handler of the
product names; from then on nothing is written any more, so that clean-up code, which a SIGKILL does
not run either, finds no work to do. A recording has what every kill leaves, from one session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
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
    #: What kind each step so far is of.
    kinds: list[str] = field(default_factory=list)
    dead: bool = False
    what: str = ""
    _sizes: dict[str, int] = field(default_factory=dict)
    _busy: bool = False

    @property
    def count(self) -> int:
        """How many steps there are so far."""
        return len(self.kinds)

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
        self.kinds.append(what.partition(" ")[0])
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


#: What a directory holds, by path below it: files as their bytes, directories as None.
Held = dict[str, bytes | None]


def held(root: Path) -> Held:
    """Return what a directory holds."""
    return {
        path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
    }


def lay_out(contents: Held, root: Path) -> None:
    """Make a directory that holds this."""
    root.mkdir(parents=True)
    for name, content in contents.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


class Recording:
    """What lies below `root` before each step of a session that is watched with `steps`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moments: list[Held] = []
        self.steps = Steps(root, at=1, meddle=self.look)

    def look(self, path: str = "") -> bool:
        """Take what lies there; the session goes on."""
        self.moments.append(held(self.root))
        return False

    def deaths(self) -> list[Held]:
        """Return all that a kill can leave, each once: what is written is also half written."""
        found = self.moments[:1]
        for before, after in pairwise(self.moments):
            found += [*_torn(before, after), after]
        return [*{frozenset(left.items()): left for left in found}.values()]


def _torn(before: Held, after: Held) -> Iterator[Held]:
    """Yield what a kill leaves within a step that writes a file; git's own are git's to write."""
    moved = [before[name] for name in before.keys() - after.keys()]
    for name, content in after.items():
        had = before.get(name) or b""
        if content is None or content in (had, *moved) or name.startswith(".git/"):
            continue
        kept = had if content.startswith(had) else b""
        for end in (len(kept), len(kept) + int((len(content) - len(kept)) * 0.6)):
            yield before | {name: content[:end]}
