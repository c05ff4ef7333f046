"""Keeps compiled what Python would compile at every start where it may not write bytecode.

Images set PYTHONDONTWRITEBYTECODE. pytest then rewrites the asserts of its plugins in every session
anew, 230 files of ours, and a torch that was installed without bytecode, as uv does, takes three
seconds to import instead of one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def kept_bytecode() -> Iterator[None]:
    """Have what is imported meanwhile be compiled once, where it would be at every start.

    It lies where kernel code cannot write to, which a cache is not: it could be poisoned there.
    Kernels and tests are not to be imported meanwhile: they change faster than time stamps do.
    """
    before = sys.pycache_prefix, sys.dont_write_bytecode
    if sys.dont_write_bytecode:
        sys.pycache_prefix, sys.dont_write_bytecode = str(_folder()), False
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return home / "pytest-kopt" / "bytecode"
