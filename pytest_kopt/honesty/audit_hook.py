"""Events of the interpreter that kernel code has no reason to cause: an audit hook (PEP 578).

It hears of files opened for writing, whatever library the call goes through. No code can take it
away, and it is silent for what installed packages do on their own. It refuses writes to the records
of a campaign, and bytecode without a source. It names the code that tried a call which the system
refused, and the code that opened a file of the project. Linux's inotify reports files that a
library in another language maps, or that another process reads.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote, urlsplit

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.libraries import is_library

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
#: Where a path stands among an event's arguments, and the folder that it is relative to.
_MOVED = {
    "os.rename": (1, 3),
    "os.remove": (0, 1),
    "os.truncate": (0, None),
    "os.link": (1, 3),
    "os.symlink": (1, 2),
}
_HARNESS = ("conftest.py", "pyproject.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg")
_LEDGER = "ledger.jsonl"
_SIGNALS = {"os.kill": os.kill, "os.killpg": os.killpg}
_BOUNDED = {"open", "socket.__new__", *_SIGNALS}
#: What reads a file; the path is the first argument.
_READING = frozenset({"open", "sqlite3.connect"})
#: Of all events; reading a function's or a frame's code is one as well, thousands in a look.
_HEARD = frozenset({*_READING, *_MOVED, *_BOUNDED})
#: What to do about a write that was refused.
MAY_WRITE = (
    "write only to results, temporary files and caches (~/.cache, and "
    "folders that a variable ending in _CACHE_DIR names); make another "
    "folder that a library needs a link to one there"
)
#: What the system shows of a process to whoever may trace it.
_FOREIGN = re.compile(r"/proc/\d+/(mem|environ|maps|auxv)")
_IMPORTER, _LOADER = "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"
#: Pytest and what distributes its tests.
_PYTEST = re.compile(r"[/\\](_pytest|pluggy|xdist)[/\\]")
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_PACKAGES = f"{os.sep}site-packages{os.sep}"
_STANDARD = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
#: Of inotify(7).
_IN_OPEN, _IN_NONBLOCK, _IN_CLOEXEC = 0x20, os.O_NONBLOCK, os.O_CLOEXEC
#: An event: watch, mask, cookie and length of a name, which files do not have.
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """The folders and files that this process may write to, and may not read, resolved.

    It holds no path of those that it may not read, only its hash.
    """

    writable: tuple[Path, ...]
    hidden: frozenset[int]

    def refuses(self, event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
        """Return the check and what an event tried, None where the system does not refuse it."""
        if event == "socket.__new__" and arguments[1] != socket.AF_UNIX:
            return "network", "open a socket"
        if event in _SIGNALS and _is_refused(lambda: _SIGNALS[event](arguments[0], 0)):
            return "foreign-signal", "signal another process"
        if (event == "open" or event in _MOVED) and (name := _place(event, arguments)):
            place = Path(name)
            if _FOREIGN.fullmatch(name) and _is_refused(
                lambda: os.close(os.open(name, os.O_RDONLY))
            ):
                return "foreign-signal", "read the memory of another process"
            if not self.hidden.isdisjoint(map(hash, (place, *place.parents))):
                return "records-read", "open the campaign's records"
            is_write = event in _MOVED or bool((arguments[2] or 0) & _WRITING)
            folders = (*self.writable, Path("/dev"))
            if is_write and not any(place.is_relative_to(folder) for folder in folders):
                return "outside-write", f"write to {place}"
        return None


def _place(event: str, arguments: tuple[Any, ...]) -> str:
    """Return the path that an event is about, "" where it is about a descriptor."""
    where, beside = _MOVED.get(event, (0, None))
    path, folder = arguments[where], -1 if beside is None else arguments[beside]
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    start = "" if folder < 0 else f"/proc/self/fd/{folder}"
    return os.path.realpath(os.path.join(start, os.fsdecode(path)))


def _is_refused(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


class AuditHook:
    """Hears what the process does from its installation on.

    Findings stay: a write at import concerns every case that runs afterwards.
    """

    def __init__(
        self,
        root: Path,
        bounds: Bounds | None = None,
        followed: Iterable[Path] = (),
        caches: Iterable[Path] = (),
    ) -> None:
        """Watch the files below a project's root; with `bounds`, what lies beyond them as well.

        inotify reports those `followed` as well, without an event of Python's. Files in
        compilers' `caches` inside of the project belong to no version: other processes write them.
        """
        self._watch = FileWatch(map(str, followed))
        self._root = str(root.resolve()) + os.sep
        folders = (f"{path.resolve()}{os.sep}" for path in caches)
        self._caches = tuple(
            path for path in folders if path.startswith(self._root) and path != self._root
        )
        self._heard: dict[str, Finding] = {}
        self._opened: dict[str, set[str]] = {}
        self._made: set[str] = set()
        self._is_busy = False
        self.bounds = bounds

    def install(self) -> None:
        """Start to listen, for as long as the process lives."""
        sys.addaudithook(self._hear)

    def findings(self) -> list[Finding]:
        """Return what was heard so far: writes to the harness, and what the system refused."""
        return list(self._heard.values())

    @property
    def is_confined(self) -> bool:
        """Whether the system refuses this process what is beyond its bounds."""
        return self.bounds is not None

    @property
    def opened(self) -> dict[str, set[str]]:
        """The files outside of packages that were opened for reading, with the sources that did.

        "" stands for a thread, an import, a library in another language, another process. None that
        the process made itself, and none of a compiler's cache.
        """
        unheard = self._watch.opened() - self._opened.keys()
        opened = self._opened | {name: {""} for name in unheard}
        return {
            name: authors
            for name, authors in opened.items()
            if name not in self._made and not name.startswith(self._caches)
        }

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _HEARD:
            return
        flags = arguments[2] if event == "open" else 0
        writes = event in _MOVED or (isinstance(flags, int) and bool(flags & _WRITING))
        reads = event in _READING and not writes
        if self._is_busy or not (writes or reads or (self.bounds and event in _BOUNDED)):
            return
        self._is_busy = True
        try:
            if self.bounds:
                self._refused(self.bounds, event, arguments)
            if writes:
                self._written(_place(event, arguments))
            elif reads:
                self._read(arguments[0])
        finally:
            self._is_busy = False

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

    def _refused(self, bounds: Bounds, event: str, arguments: tuple[Any, ...]) -> None:
        frame = sys._getframe(2)
        # An import writes bytecode of its own accord.
        is_import = frame.f_code.co_filename.startswith("<frozen importlib")
        author = "" if is_import else _author(frame, directly=True)
        if author and (refused := bounds.refuses(event, arguments)):
            check, action = refused
            message = f"project code tried to {action}, which the system refused"
            self._heard.setdefault(check, Finding(check, message, where=author, advice=MAY_WRITE))

    def _written(self, name: str) -> None:
        if not name.startswith(self._root):
            return
        self._made.add(os.path.realpath(name))
        path = Path(name)
        source = path.parents[1] / f"{path.name.partition('.')[0]}.py"
        # Python runs it in the place of the source.
        is_bytecode = path.parent.name == "__pycache__" and source.exists()
        if not is_bytecode and not self._belongs_to_the_harness(path):
            return
        frame = sys._getframe(2)
        author = _author(frame)
        if not author or (is_bytecode and _is_an_import(frame)):
            return
        inside = name.removeprefix(self._root)
        finding = Finding(
            "harness-written",
            f"kernel code wrote to {inside}",
            where=author,
            advice="do not write tests, settings or records of the campaign",
        )
        self._heard.setdefault(finding.check, finding)
        if is_bytecode or self._is_of_a_campaign(path):
            # A hook that raises keeps the file from being opened: the records stay what they are,
            # and later processes run the sources that everybody can read.
            raise PermissionError(str(finding))

    def _belongs_to_the_harness(self, path: Path) -> bool:
        if path.name in _HARNESS or self._is_of_a_campaign(path):
            return True
        # Source that this process runs; a generated file of a compiler's cache is not loaded yet.
        return path.suffix == ".py" and any(
            getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())
        )

    def _is_of_a_campaign(self, path: Path) -> bool:
        inside = (folder for folder in path.parents if str(folder).startswith(self._root))
        return any((folder / _LEDGER).exists() for folder in inside)


def _is_an_import(frame: FrameType | None) -> bool:
    """Say whether it is the import of a module, and not project code, that caches bytecode."""
    while frame is not None and not _author_here(frame):
        if frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename == _IMPORTER:
            return True
        frame = frame.f_back
    return False


def _author(frame: FrameType | None, *, directly: bool = False) -> str:
    """Return the place in project code that is behind an event; "" when there is none.

    The walk ends at this package: what the harness does is not the kernel's doing. A `directly`
    caused event went through the standard library at most.
    """
    while frame is not None and not _is_ours(frame) and not _author_here(frame):
        filename = frame.f_code.co_filename
        is_standard = filename.startswith(("<frozen", *_STANDARD)) and _PACKAGES not in filename
        if directly and not is_standard:
            return ""
        frame = frame.f_back
    return (
        "" if frame is None or _is_ours(frame) else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    )


def _author_here(frame: FrameType) -> bool:
    """Say whether a frame runs project code."""
    filename = frame.f_code.co_filename
    return not is_library(filename) and not filename.startswith("<")


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


class FileWatch:
    """Watches single files from its making on; none where the system has no inotify."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._names: dict[int, str] = {}
        self._opened: set[str] = set()
        self._descriptor = -1
        with suppress(AttributeError, OSError):
            libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
            for path in paths if self._descriptor >= 0 else ():
                watch = libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_OPEN)
                if watch >= 0:
                    self._names[watch] = path

    def opened(self) -> frozenset[str]:
        """Return the files that were opened since, by whatever process."""
        with suppress(OSError):
            while self._names and (events := os.read(self._descriptor, _READ_BYTES)):
                for watch, *_ in _EVENT.iter_unpack(events):
                    self._opened.add(self._names.get(watch, ""))
        return frozenset(self._opened - {""})
