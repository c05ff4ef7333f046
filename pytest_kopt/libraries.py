"""Which source files belong to the interpreter and to installed packages."""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
from pathlib import Path

#: Packages that may lie beside the folder of installed ones.
_ELSEWHERE = ("torch", "triton", "numpy", "pytest", "_pytest", "pluggy", "xdist", "execnet")


@functools.cache
def _library_roots(loaded: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders of the interpreter's and the installed packages, and of loaded files."""
    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots |= {*site.getsitepackages(), site.getusersitepackages()}
    roots |= {str(Path(file).parent) for file in loaded}
    return tuple(sorted(f"{Path(path).resolve()}/" for path in roots))


@functools.cache
def is_library(filename: str) -> bool:
    """Say whether a source file belongs to the interpreter or to an installed package."""
    if filename.startswith("<frozen"):
        return True
    # The watch over writes asks before torch is imported, and while it is.
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _ELSEWHERE)
    return str(Path(filename).resolve()).startswith(_library_roots(tuple(filter(None, files))))
