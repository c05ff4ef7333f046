"""Which source files belong to the interpreter and to installed packages, and which are loaded.

A fork leaves out the libraries that it began with: to look into a module writes into its memory,
and in a fork each such write copies a page.
"""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
from collections.abc import Container
from pathlib import Path

#: Packages that may lie beside the folder of installed ones.
_ELSEWHERE = ("torch", "triton", "numpy", "pytest", "_pytest", "pluggy", "xdist", "execnet")
#: The libraries that this process, or the one it was forked from, has set aside, by name with the
#: id of the module: another one under that name is looked at.
_ASIDE: dict[str, int] = {}
_HEADS: set[str] = set()


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


def set_libraries_aside() -> None:
    """Have forks of this process look at what they load themselves, and at what is no library."""
    for name, file in loaded_files().items():
        if is_library(file):
            # Their order in sys.modules stays: pickle looks for a name's module from its beginning.
            _ASIDE[name] = id(sys.modules[name])
            _HEADS.add(name.partition(".")[0])


def loaded_files() -> dict[str, str]:
    """Return the files of the loaded modules by name, without libraries that were set aside."""
    modules = list(sys.modules.items())
    return _files([name for name, module in modules if _ASIDE.get(name) != id(module)])


def heads_set_aside() -> set[str]:
    """Return the first parts of the names of the libraries that were set aside."""
    return _HEADS


def files_set_aside(heads: Container[str]) -> dict[str, str]:
    """Return the files of the libraries set aside, as far as their names begin with a head."""
    return _files([name for name in _ASIDE if name.partition(".")[0] in heads])


def _files(names: list[str]) -> dict[str, str]:
    modules = ((name, sys.modules.get(name)) for name in names)
    return {name: file for name, module in modules if (file := getattr(module, "__file__", None))}
