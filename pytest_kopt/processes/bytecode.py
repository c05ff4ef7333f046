"""Bytecode: project files are compiled from their source, and what is installed only once.

Python takes a cached file for the source's if time (in seconds) and size of the source are the
same. Two versions of a kernel that a script writes within a second may have both.

Images set PYTHONDONTWRITEBYTECODE. Without bytecode pytest rewrites the asserts of its plugins in
every session, 230 files of ours. A torch that was installed without bytecode, as uv does, takes
three seconds to import instead of one.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from _pytest.assertion import rewrite

#: With less space than this, in bytes, a file may be cut off: Python would not notice.
_SPACE = 1 << 28
#: Where a path leads that is no project file's: by text, since torch has thousands.
_INSTALLED = ("/site-packages/", "/dist-packages/", f"{Path(__file__).parents[1]}{os.sep}")
_LIBRARIES = "pytest_kopt.libraries"
_path_stats, _read_pyc = SourceFileLoader.path_stats, rewrite._read_pyc


def compile_from_source() -> None:
    """Have this process compile project files as it imports them, whatever is cached."""
    # Loaded before it is asked: its own import would ask it.
    importlib.import_module(_LIBRARIES)
    SourceFileLoader.path_stats = _stats_if_cached  # type: ignore[method-assign]
    # Pytest keeps test and conftest files with rewritten asserts by the same rule.
    rewrite._read_pyc = _read_if_cached


def _stats_if_cached(self: SourceFileLoader, path: str) -> Mapping[str, Any]:
    """Return what Python compares a cached file with; OSError makes it neither read nor write."""
    if _is_project_file(path):
        raise OSError
    return _path_stats(self, path)


def _read_if_cached(
    source: Path, pyc: Path, trace: Callable[[str], None] = lambda text: None
) -> CodeType | None:
    return None if _is_project_file(str(source)) else _read_pyc(source, pyc, trace)


def _is_project_file(path: str) -> bool:
    is_library = sys.modules[_LIBRARIES].is_library
    return not (any(folder in path for folder in _INSTALLED) or is_library(path))


@contextmanager
def kept_bytecode() -> Iterator[None]:
    """Have what is imported meanwhile be compiled once, where it would be at every start.

    It lies where kernel code cannot write to, which a cache is not: it could be poisoned there.
    """
    before = sys.pycache_prefix, sys.dont_write_bytecode
    folder = _folder()
    if sys.dont_write_bytecode and _has_space(folder):
        sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False
    try:
        yield
    except EOFError:
        # A file that was cut off all the same: the next session compiles all anew.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return home / "pytest-kopt" / "bytecode"


def _has_space(folder: Path) -> bool:
    try:
        from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit

        folder.mkdir(parents=True, exist_ok=True)
        unlimited = getrlimit(RLIMIT_FSIZE)[0] == RLIM_INFINITY
        return unlimited and shutil.disk_usage(folder).free > _SPACE
    except (ImportError, OSError):
        return False
