"""The proof that a version ran its own code: one call under a profile hook.

This proof makes the result of any loader trustworthy. Triton's kernels are not Python frames when
they run; their launcher is, and it names the function it launches. Modules that were imported from
a copy elsewhere, or through a link, are named.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_kopt.errors import BadInput
from pytest_kopt.imports import file_of
from pytest_kopt.libraries import files_set_aside, heads_set_aside, loaded_files
from pytest_kopt.profile_hook import profile_hook
from pytest_kopt.versions.affected_modules import (
    NotLoadable,
    imports_of,
    is_built,
    project_modules,
    resolved,
)
from pytest_kopt.versions.tree import differs

#: How many folders deep a project keeps its packages, at most.
_DEPTH = 2
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
#: What a project lacks whose versions share a library.
BUILD_IN_PLACE = "rebuild_command has to build it in place"
#: Folders of a project that a build copies its packages to.
_BUILT = frozenset({"build", "dist"})


def files_run(call: Callable[[], object]) -> set[str]:
    """Return the source files whose code ran during `call`, Triton's kernels included."""
    seen: set[str] = set()

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        seen.add(frame.f_code.co_filename)
        if str(frame.f_globals.get("__name__", "")).startswith("triton."):
            # An object that is still being made may raise, or never end, in its own __getattr__.
            with suppress(AttributeError):
                launched = object.__getattribute__(frame.f_locals.get("self"), "fn")
                seen.add(launched.__code__.co_filename)

    with profile_hook(hook):
        call()
    return seen


def check_untouched(call: Callable[[], object], changed: set[str]) -> None:
    """Raise NotLoadable when `call` runs code of a changed file after all."""
    touched = sorted(files_run(call) & changed)
    if touched:
        raise NotLoadable(f"the function reaches the changed {touched[0]}, though not by an import")


def check_moved(
    call: Callable[[], object],
    root: Path,
    tree: Path,
    changed: Iterable[str],
    opened: Container[str] = (),
    *,
    is_own: bool = False,
) -> None:
    """Raise NotLoadable when a process that runs in `tree`, a copy of `root`, uses the original.

    An editable install, for one, leads back to it whatever sys.path says. So does a library that
    was built in the project and is only linked to in the copy. `opened` are the files that the
    process opened. If `tree` holds the project's own version (`is_own`) it may use what is linked
    to.
    """
    files = {root / path for path in changed}
    check_untouched(call, {*map(str, files)})
    if originals := sorted(files.intersection(project_modules(root).values())):
        raise NotLoadable(f"a tree of its own imports the project's {originals[0].name}")
    if is_own:
        return
    if path := shared(root, tree, changed, opened):
        raise NotLoadable(
            f"the incumbent opens the candidate's {root / path}; a kernel has to look for it from "
            "the current folder or its own __file__, not by an absolute path"
        )
    # To compare a file opens it, and a file that was opened counts as read by the case.
    foreign = sorted(_libraries_below(root))
    built = (path for path in map(Path, changed) if foreign and is_built(path))
    edited = next((path for path in built if differs(root / path, tree / path)), None)
    if edited:
        raise NotLoadable(
            f"both versions load the same {foreign[0].name}, although {edited} differs; "
            f"{BUILD_IN_PLACE}"
        )


def shared(root: Path, tree: Path, changed: Iterable[str], opened: Container[str]) -> str:
    """Return the first changed path that the version in `tree` opened in `root`, "" for none."""
    return next(
        (
            path
            for path in changed
            if os.path.realpath(root / path) in opened and differs(root / path, tree / path)
        ),
        "",
    )


def _libraries_below(root: Path) -> set[Path]:
    """Return the machine code below `root` that this process has loaded and that is not its own.

    Its own are its Python's, and what torch builds for this version alone.
    """
    prefixes = (sys.prefix, sys.base_prefix, os.environ.get("TORCH_EXTENSIONS_DIR"))
    own = {Path(prefix).resolve() for prefix in prefixes if prefix}
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    fields = (line.split(maxsplit=5) for line in mapped)
    # By text: paths of the hundreds of lines take twenty times as long.
    below = f"{str(root).rstrip(os.sep)}{os.sep}"
    code = {f[5] for f in fields if len(f) == 6 and "x" in f[1] and f[5].startswith(below)}
    return {path for path in map(Path, code) if own.isdisjoint(path.parents)}


def check(call: Callable[[], object], own: set[str], other: set[str], who: str) -> None:
    """Raise NotLoadable unless `call` runs code of its own version and none of the other's."""
    seen = files_run(call)
    foreign = sorted(seen & other)
    if foreign:
        raise NotLoadable(f"the {who} ran the other version's {foreign[0]}")
    if not seen & own:
        raise NotLoadable(f"the {who} ran none of its own files")


def check_imported_here(root: Path, called: str, where: str, trees: Iterable[str] = ()) -> None:
    """Raise BadInput where the project uses a module of its own that lies elsewhere.

    It is a copy, or a link leads out of the repository. If there are several, the one of the
    `called` function is named. `trees` are those of other versions that this process holds.
    """
    loaded = loaded_files()
    _check_links(loaded, root, where)
    # A process of another version runs in a tree of its own.
    homes_of_versions = tuple(f"{home}{os.sep}" for home in (root, Path.cwd(), *trees))
    heads = {*heads_set_aside(), *(name.partition(".")[0] for name in loaded)}
    homes = _homes(root, frozenset(heads - sys.stdlib_module_names))
    elsewhere = {
        name: file
        for name, file in (loaded | files_set_aside(homes)).items()
        if name.partition(".")[0] in homes and _is_elsewhere(file, homes_of_versions)
    }
    own_files = {name: path for name in elsewhere if (path := _own_file(homes, name))}
    files = project_modules(root).values() if own_files else ()
    imports = (imported for path in files for imported in imports_of(path))
    named = {imported.module.partition(".")[0] for imported in imports if not imported.level}
    copies = [name for name in own_files if name.partition(".")[0] in named]
    if copies:
        name = called if called in copies else max(copies, key=len)
        own = own_files[name].relative_to(root)
        raise BadInput(
            f"Python imports module {name!r} from a copy, {elsewhere[name]}, instead of this "
            f"tree's {own}",
            where=where,
            fix="pip install -e . (or pytest's setting pythonpath)",
        )


def _check_links(loaded: Mapping[str, str], root: Path, where: str) -> None:
    """Raise BadInput where a `loaded` module of the project is a link out of its repository.

    A tree of another version has no repository, and links to the project.
    """
    trees = [tree for tree in (root, *root.parents) if (tree / ".git").exists()]
    if not trees:
        return
    start = f"{root}{os.sep}"
    for name, file in loaded.items():
        # By text, which takes a tenth of the time for the thousands that are not.
        if file.startswith(start) and _leads_out(file, trees[-1]):
            raise BadInput(
                f"module {name!r} is {os.path.relpath(file, root)}, a link to "
                f"{os.path.realpath(file)}, outside of the repository",
                where=where,
                fix="put a file of the repository in the place of the link",
            )


@functools.cache
def _leads_out(file: str, tree: Path) -> bool:
    if any(folder in file for folder in _INSTALLED):
        return False
    return not Path(os.path.realpath(file)).is_relative_to(tree)


@functools.cache
def _is_elsewhere(file: str, trees: tuple[str, ...]) -> bool:
    """Say whether a module is a copy, installed or built, or lies outside of these trees."""
    # By text: to resolve the paths of torch's modules takes a tenth of a second of CPU time.
    if any(folder in file for folder in _INSTALLED):
        return True
    # What a tree of another version did not change is a link there.
    places = (os.path.abspath(file), resolved(file))
    inside = [p.removeprefix(tree) for p in places for tree in trees if p.startswith(tree)]
    return not inside or not _BUILT.isdisjoint(inside[0].split(os.sep)[:-1])


def _own_file(homes: Mapping[str, Sequence[Path]], name: str) -> Path | None:
    """Return where a module lies in the project, the outermost place; None where it has none."""
    head, *rest = name.split(".")
    for folder in sorted(homes.get(head, ()), key=lambda path: len(path.parts)):
        place = folder.joinpath(head, *rest)
        if path := file_of(place.parent, place.name):
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
        # Packages and environments hold none.
        names[:] = [
            name
            for name in names
            if not (
                is_deep
                or name.startswith(".")
                or (folder / name / "__init__.py").exists()
                or (folder / name / "pyvenv.cfg").exists()
            )
        ]
    return homes
