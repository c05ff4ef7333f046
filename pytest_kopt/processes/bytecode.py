"""Keeps compiled what Python would compile at every start where it may not write bytecode.

Images set PYTHONDONTWRITEBYTECODE. Without bytecode pytest rewrites the asserts of its plugins in
every session, 230 files of ours. A torch that was installed without bytecode, as uv does, takes
three seconds to import instead of one.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: With less space than this, in bytes, a file may be cut off: Python would not notice.
_SPACE = 1 << 28


@contextmanager
def kept_bytecode() -> Iterator[None]:
    """Have what is imported meanwhile be compiled once, where it would be at every start.

    It lies where kernel code cannot write to, which a cache is not: it could be poisoned there.
    Kernels and tests are not to be imported meanwhile: they change faster than time stamps do.
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
