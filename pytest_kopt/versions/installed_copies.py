"""Modules of the project that were imported from elsewhere: from a copy, or through a link."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_kopt.errors import BadInput
from pytest_kopt.versions.affected_modules import project_modules
from pytest_kopt.versions.imports import imports_of

#: How many folders deep a project keeps its packages, at most.
_DEPTH = 2
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
#: Folders of a project that a build copies its packages to.
_BUILT = frozenset({"build", "dist"})


def check_imported_here(root: Path, called: str, where: str, trees: Iterable[str] = ()) -> None:
    """Raise BadInput where the project uses a module of its own that lies elsewhere.

    It is a copy, or a link leads out of the repository. Of several the one of the `called` function
    is named. `trees` are those of other versions that this process holds.
    """
    loaded = {
        name: file
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
    }
    _check_links(loaded, root, where)
    # A process of another version runs in a tree of its own.
    homes_of_versions = (root, Path.cwd(), *map(Path, trees))
    elsewhere = {
        name: file
        for name, file in loaded.items()
        if name.partition(".")[0] not in sys.stdlib_module_names
        and _is_elsewhere(file, *homes_of_versions)
    }
    homes = _homes(root, frozenset(name.partition(".")[0] for name in elsewhere))
    own_files = {name: path for name in elsewhere if (path := _own_file(homes, name))}
    heads = _imported_heads(root) if own_files else set()
    copies = [name for name in own_files if name.partition(".")[0] in heads]
    if copies:
        name = called if called in copies else max(copies, key=len)
        own = own_files[name].relative_to(root)
        raise BadInput(
            f"module {name!r} is imported from {elsewhere[name]}, a copy, and not from this tree's "
            f"{own}",
            where=where,
            legal="pip install -e . (or pytest's setting `pythonpath`)",
        )


def _check_links(loaded: Mapping[str, str], root: Path, where: str) -> None:
    """Raise BadInput where a `loaded` module of the project is a link out of its repository.

    A tree of another version has no repository, and links to the project.
    """
    trees = [tree for tree in (root, *root.parents) if (tree / ".git").exists()]
    if not trees:
        return
    for name, file in loaded.items():
        if _leads_out(file, root, trees[-1]):
            raise BadInput(
                f"module {name!r} is {os.path.relpath(file, root)}, a link to "
                f"{os.path.realpath(file)}, outside of the repository",
                where=where,
                legal="a file of the repository",
            )


@functools.cache
def _leads_out(file: str, root: Path, tree: Path) -> bool:
    # By text, which takes a tenth of the time for the thousands that are not.
    if not file.startswith(f"{root}{os.sep}") or any(part in file for part in _INSTALLED):
        return False
    return not Path(os.path.realpath(file)).is_relative_to(tree)


@functools.cache
def _is_elsewhere(file: str, *trees: Path) -> bool:
    """Say whether a module is a copy, installed or built, or lies outside of these trees."""
    # By text: to resolve the paths of torch's modules takes a tenth of a second of CPU time.
    if any(folder in file for folder in _INSTALLED):
        return True
    # What a tree of another version did not change is a link there.
    places = (Path(file).absolute(), Path(os.path.realpath(file)))
    inside = [p.relative_to(tree) for p in places for tree in trees if p.is_relative_to(tree)]
    return not inside or not _BUILT.isdisjoint(inside[0].parent.parts)


def _imported_heads(root: Path) -> set[str]:
    """Return the first parts of what the project's loaded modules import."""
    files = project_modules(root).values()
    return {name.partition(".")[0] for path in files for name in imports_of(path)}


def _own_file(homes: Mapping[str, Sequence[Path]], name: str) -> Path | None:
    """Return where a module lies in the project, the outermost place; None where it has none."""
    head, *rest = name.split(".")
    for folder in sorted(homes.get(head, ()), key=lambda path: len(path.parts)):
        place = folder.joinpath(head, *rest)
        for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if path.is_file():
                return path
    return None


@functools.cache
def _homes(root: Path, heads: frozenset[str]) -> dict[str, list[Path]]:
    """Return the project's folders in which modules begin whose names do with one of `heads`."""
    homes: dict[str, list[Path]] = {}
    for text, names, files in os.walk(root):
        folder = Path(text)
        sources = [name.removesuffix(".py") for name in files if name.endswith(".py")]
        for name in heads.intersection((*names, *sources)):
            homes.setdefault(name, []).append(folder)
        is_deep = len(folder.relative_to(root).parts) == _DEPTH
        names[:] = [] if is_deep else [name for name in names if _may_hold_packages(folder / name)]
    return homes


def _may_hold_packages(folder: Path) -> bool:
    is_other = (folder / "__init__.py").exists() or (folder / "pyvenv.cfg").exists()
    return not (is_other or folder.name.startswith("."))
