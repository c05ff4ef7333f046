"""The files of the project that a process opened: an audit hook (PEP 578).

It hears of files that Python opens, whatever library the call goes through, and names the code that
did. No code can take it away. It does not hear of files that another process opens, or a library in
another language.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote, urlsplit

from pytest_kopt.libraries import is_library

#: Where a path stands among an event's arguments, and the folder that it is relative to.
_MOVED = {
    "os.rename": (1, 3),
    "os.remove": (0, 1),
    "os.truncate": (0, None),
    "os.link": (1, 3),
    "os.symlink": (1, 2),
}
#: What reads a file; the path is the first argument.
_READING = frozenset({"open", "sqlite3.connect"})
#: Of all events; reading a function's or a frame's code is one as well, thousands in a look.
_HEARD = frozenset({*_READING, *_MOVED})
#: What to do about a write that the confinement refused.
MAY_WRITE = (
    "write only to results, temporary files and caches (~/.cache, and "
    "folders that a variable ending in _CACHE_DIR names); make another "
    "folder that a library needs a link to one there"
)
_LOADER = "<frozen importlib._bootstrap_external>"
#: Pytest and what distributes its tests.
_PYTEST = re.compile(r"[/\\](_pytest|pluggy|xdist)[/\\]")
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


def _place(event: str, arguments: tuple[Any, ...]) -> str:
    """Return the path that an event is about, "" where it is about a descriptor."""
    where, beside = _MOVED.get(event, (0, None))
    path, folder = arguments[where], -1 if beside is None else arguments[beside]
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    start = "" if folder < 0 else f"/proc/self/fd/{folder}"
    return os.path.realpath(os.path.join(start, os.fsdecode(path)))


def _makes(path: Any, flags: Any) -> bool:
    """Say whether a file that is opened so holds only what the process writes."""
    if not isinstance(flags, int) or not flags & (os.O_CREAT | os.O_TRUNC):
        return False
    return bool(flags & os.O_TRUNC) or not (isinstance(path, int) or os.path.exists(path))


def _changed_ns(path: str) -> int:
    """Return when a file was changed last, 0 where there is none."""
    try:
        return os.stat(path).st_ctime_ns
    except OSError:
        return 0


class AuditHook:
    """Hears which files the process opens from its installation on."""

    def __init__(
        self,
        root: Path,
        caches: Iterable[Path] = (),
        *,
        is_confined: bool = False,
    ) -> None:
        """Leave out compilers' `caches` below the project's `root`: other processes write them."""
        start = str(root.resolve()) + os.sep
        folders = (f"{path.resolve()}{os.sep}" for path in caches)
        self._caches = tuple(path for path in folders if path.startswith(start) and path != start)
        self._opened: dict[str, set[str]] = {}
        #: When the files that the process was about to make had been changed before.
        self._made: dict[str, int] = {}
        self._is_busy = False
        #: Whether the system refuses this process what is beyond its bounds.
        self.is_confined = is_confined

    def install(self) -> None:
        """Start to listen, for as long as the process lives."""
        sys.addaudithook(self._hear)

    @property
    def opened(self) -> dict[str, set[str]]:
        """The files outside of packages that were opened for reading, with the sources that did.

        "" stands for a thread or an import. None that the process made itself, and none of a
        compiler's cache.
        """
        return {
            name: authors
            for name, authors in self._opened.items()
            if not (self._has_made(name) or name.startswith(self._caches))
        }

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _HEARD or self._is_busy:
            return
        flags = arguments[2] if event == "open" else 0
        self._is_busy = True
        try:
            if event in _MOVED or _makes(arguments[0], flags):
                place = _place(event, arguments)
                self._made.setdefault(place, _changed_ns(place))
            elif not (isinstance(flags, int) and flags & os.O_WRONLY):
                self._read(arguments[0])
        finally:
            self._is_busy = False

    def _has_made(self, name: str) -> bool:
        """Say whether the process made a file; the system may have refused that."""
        return name in self._made and _changed_ns(name) != self._made[name]

    # Every event looks for this, and a method that lacks it costs an exception each time.
    _hear.__cantrace__ = False  # type: ignore[attr-defined]

    def _read(self, path: object) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.fsdecode(path)
        if name.startswith("file:"):
            # sqlite3 takes URIs.
            name = unquote(urlsplit(name).path)
        opener = sys._getframe(2)
        frame: FrameType | None = None if opener.f_code.co_filename == _LOADER else opener
        while frame is not None and not _is_ours(frame) and not _author_here(frame):
            if _PYTEST.search(frame.f_code.co_filename):
                # Its cache, say: no kernel rests on that.
                return
            frame = frame.f_back
        # Python opens its own by the thousand; what the harness opens is kept nowhere.
        if (frame is not None and _is_ours(frame)) or is_library(name):
            return
        if name.endswith(".pyc"):
            if "__pycache__" not in name:
                return
            # Pytest names the bytecode of rewritten sources in a way of its own.
            folder, _, file = name.rpartition("__pycache__")
            name = f"{folder}{file.lstrip(os.sep).partition('.')[0]}.py"
        author = "" if frame is None else os.path.realpath(frame.f_code.co_filename)
        self._opened.setdefault(os.path.realpath(name), set()).add(author)


def _author_here(frame: FrameType) -> bool:
    """Say whether a frame runs project code."""
    filename = frame.f_code.co_filename
    return not is_library(filename) and not filename.startswith("<")


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)
