"""Keeps compiled what Python would compile at every start: a torch that came without bytecode.

Images set PYTHONDONTWRITEBYTECODE, and uv installs no bytecode: torch's thousand files then take
three seconds to import instead of one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@contextmanager
def kept_bytecode() -> Iterator[None]:
    """Have what is imported meanwhile be compiled once, unless torch has its bytecode beside it.

    It lies where kernel code cannot write to, which a cache is not: it could be poisoned there.
    Kernels and tests are never imported meanwhile: they change faster than time stamps do.
    """
    before = sys.pycache_prefix, sys.dont_write_bytecode
    if _lacks_bytecode():
        sys.pycache_prefix, sys.dont_write_bytecode = str(_folder()), False
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


@cache
def _lacks_bytecode() -> bool:
    try:
        spec = find_spec("torch")
    except ValueError:  # What stands in for torch in a test may have none.
        return False
    return bool(spec and spec.cached and not os.path.exists(spec.cached))


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return home / "pytest-kopt" / "bytecode"
