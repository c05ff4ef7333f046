"""Which source files belong to the interpreter and to installed packages, and which are loaded.

A fork leaves out the libraries that it began with: to look into a module writes into its memory,
and in a fork each such write copies a page.
"""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Container, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

#: Packages that may lie beside the folder of installed ones.
_ELSEWHERE = ("torch", "triton", "numpy", "pytest", "_pytest", "pluggy", "xdist", "execnet")
#: The libraries that this process, or the one it was forked from, has set aside, by name with the
#: id of the module: another one under that name is looked at.
_ASIDE: dict[str, int] = {}
_HEADS: set[str] = set()
_PACKAGE = f"{Path(__file__).parent}{os.sep}"
#: The session's sys.path while this process has given up the project's folders on it.
_SESSION_PATH: list[str] = []


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


def own_fault(error: BaseException, but: tuple[str, ...] = ()) -> str:
    """Return where kopt's own code failed, "" if the project's did, or what that calls.

    Files whose path in this package begins with one of `but` call kernels: an error there may be
    the kernel's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    within = [f for f in frames if f.filename.startswith(_PACKAGE) or not is_library(f.filename)]
    place = within[-1].filename if within else ""
    if not place.startswith(_PACKAGE) or place.removeprefix(_PACKAGE).startswith(but):
        return ""
    where = f"{place.removeprefix(_PACKAGE)}:{within[-1].lineno}"
    return f"pytest-kopt itself failed ({where}): {type(error).__name__}: {error}"


def project_around(folder: Path) -> Path:
    """Return the repository around a folder, or that folder where there is none."""
    return next((at for at in (folder, *folder.parents) if (at / ".git").exists()), folder)


def is_projects(project: Path, file: str) -> bool:
    """Say whether a file is the project's own, and no environment's that lies in it.

    Some modules of torch's name a file without its folder.
    """
    lies_below = os.path.isabs(file) and project in Path(file).resolve().parents
    return lies_below and not is_library(file)


def leave_project(project: Path) -> None:
    """Have this process import nothing of a project from now on.

    A kernel's file that has a library's name would run here, where nothing confines it.
    """
    _SESSION_PATH[:] = sys.path
    sys.path[:] = [
        path for path in sys.path if not is_projects(project, f"{os.path.abspath(path)}/module")
    ]


def return_to_project() -> None:
    if _SESSION_PATH:
        sys.path[:] = _SESSION_PATH
        _SESSION_PATH.clear()


def session_path() -> list[str]:
    """Return the folders that the session's tests import from."""
    return _SESSION_PATH or sys.path


class _InCopy(MetaPathFinder):
    """Finds in a copy of a project the modules that any other finder finds in the project.

    The finder of an editable install knows the project's files, whatever sys.path says.
    """

    def __init__(self, root: Path, copy: Path) -> None:
        self._root, self._copy = root, copy

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (
            finder.find_spec(name, path, target)
            for finder in others
            if hasattr(finder, "find_spec")
        )
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return None
        folders = spec.submodule_search_locations
        if spec.origin is not None and spec.has_location:
            if not is_projects(self._root, spec.origin):
                return spec
            file = self._moved(spec.origin)
            if not os.path.exists(file):
                raise ModuleNotFoundError(f"No module named {name!r} in this version", name=name)
            inside = None if folders is None else [os.path.dirname(file)]
            return spec_from_file_location(name, file, submodule_search_locations=inside)
        if folders is not None and any(is_projects(self._root, f"{at}/module") for at in folders):
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [*map(self._moved, folders)]
        return spec

    def _moved(self, path: str) -> str:
        resolved = Path(path).resolve()
        inside = resolved.is_relative_to(self._root)
        return str(self._copy / resolved.relative_to(self._root)) if inside else path


def import_from_copy(root: Path, copy: Path) -> None:
    """Have this process import from a copy what any finder would import from a resolved root."""
    sys.meta_path.insert(0, _InCopy(root, copy))


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
