"""Events of the interpreter that kernel code has no reason to cause: an audit hook (PEP 578).

It hears of files opened for writing, whatever library the call goes through, cannot be taken away
again, and is silent for what installed packages do on their own. The records of a
campaign, and bytecode that no source has, it keeps from being written at all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.watching.guards import is_library

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_MOVED = {"os.rename": 1, "os.remove": 0, "os.truncate": 0, "os.link": 1, "os.symlink": 1}
_HARNESS = ("conftest.py", "pyproject.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg")
_LEDGER = "ledger.jsonl"
_IMPORTER = "<frozen importlib._bootstrap>"
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep


class Tripwire:
    """Hears what the process does from its installation on; `findings` tells and forgets."""

    def __init__(self, root: Path) -> None:
        """Watch the files below a project's root."""
        self._root = str(root.resolve()) + os.sep
        self._heard: dict[tuple[str, str], Finding] = {}
        self._is_busy = False

    def install(self) -> None:
        """Start to listen, for as long as the process lives."""
        sys.addaudithook(self._hear)

    def findings(self) -> list[Finding]:
        """Return what was heard since the last time."""
        found = list(self._heard.values())
        self._heard.clear()
        return found

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_busy:
            return
        action: Callable[[], None] | None = None
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                action = lambda: self._written(path)  # noqa: E731
        elif event in _MOVED:
            action = lambda: self._written(arguments[_MOVED[event]])  # noqa: E731
        if action is not None:
            self._is_busy = True
            try:
                action()
            finally:
                self._is_busy = False

    def _written(self, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.path.realpath(os.fsdecode(path))
        if not name.startswith(self._root):
            return
        is_bytecode = _is_bytecode(Path(name))
        if not is_bytecode and not self._belongs_to_the_harness(Path(name)):
            return
        frame = sys._getframe(3)
        author = _author(frame)
        if not author or (is_bytecode and _is_an_import(frame)):
            return
        inside = name.removeprefix(self._root)
        self._heard["written", inside] = finding = Finding(
            "harness-written",
            f"kernel code wrote to {inside}",
            where=author,
            advice="tests, settings and records of the campaign are not the kernel's to write",
        )
        if is_bytecode or self._is_of_a_campaign(Path(name)):
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
        return any((folder / _LEDGER).exists() for folder in self._inside(path))

    def _inside(self, path: Path) -> list[Path]:
        return [folder for folder in path.parents if str(folder).startswith(self._root)]


def _is_bytecode(path: Path) -> bool:
    """Say whether a file is what Python runs in the place of a source that is there."""
    if path.parent.name != "__pycache__":
        return False
    return (path.parents[1] / f"{path.name.partition('.')[0]}.py").exists()


def _is_an_import(frame: FrameType | None) -> bool:
    """Say whether it is the import of a module, and not project code, that caches bytecode."""
    while frame is not None and not _author_here(frame):
        if frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename == _IMPORTER:
            return True
        frame = frame.f_back
    return False


def _author(frame: FrameType | None) -> str:
    """Return the place in project code that is behind an event; "" when there is none.

    The walk ends at this package: what the harness does is not the kernel's doing.
    """
    while frame is not None:
        if _is_ours(frame):
            return ""
        if _author_here(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _author_here(frame: FrameType) -> bool:
    """Say whether a frame runs project code."""
    filename = frame.f_code.co_filename
    return not is_library(filename) and not filename.startswith("<")


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)
