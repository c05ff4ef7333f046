"""The proof that a version ran its own code: one call under a profile hook.

Whatever a loader does, this is what makes its result trustworthy. Triton's kernels are not Python
frames when they run; their launcher is, and it names the function it launches.
"""

from __future__ import annotations

import filecmp
import os
import sys
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_kopt.profile_hook import profile_hook
from pytest_kopt.versions.affected_modules import NotLoadable, project_modules


def files_run(call: Callable[[], object]) -> set[str]:
    """Return the source files whose code ran during `call`, Triton's kernels included."""
    return {file for file, _ in functions_run(call)}


def functions_run(call: Callable[[], object]) -> set[tuple[str, str]]:
    """Return file and name of the functions that ran during `call`, Triton's kernels included."""
    seen: set[tuple[str, str]] = set()

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        seen.add((frame.f_code.co_filename, frame.f_code.co_name))
        if str(frame.f_globals.get("__name__", "")).startswith("triton."):
            # An object that is still being made may raise, or never end, in its own __getattr__.
            with suppress(AttributeError):
                launched = object.__getattribute__(frame.f_locals.get("self"), "fn")
                seen.add((launched.__code__.co_filename, launched.__code__.co_name))

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

    An editable install, for one, leads back to it whatever sys.path says, and so does a library
    that was built in the project and is only linked to in the copy. `opened` are the files that
    the process opened. Where `tree` holds the project's own version (`is_own`) it may use what is
    linked to.
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
    foreign = sorted(_libraries_below(root))
    if foreign:
        raise NotLoadable(
            f"the incumbent runs the candidate's compiled {foreign[0].name}; rebuild_command has "
            "to build it in place"
        )


def shared(root: Path, tree: Path, changed: Iterable[str], opened: Container[str]) -> str:
    """Return the first changed path that the version in `tree` opened in `root`, "" for none."""
    return next(
        (
            path
            for path in changed
            if os.path.realpath(root / path) in opened and _differs(root / path, tree / path)
        ),
        "",
    )


def _differs(one: Path, other: Path) -> bool:
    """Say whether two files differ, or only one of them exists."""
    if not (one.is_file() and other.is_file()):
        return one.is_file() != other.is_file()
    return not filecmp.cmp(one, other, shallow=False)


def _libraries_below(root: Path) -> set[Path]:
    """Return the machine code below `root` that this process has loaded and that is not its own.

    Its own are its Python's, and what torch builds for this version alone.
    """
    prefixes = (sys.prefix, sys.base_prefix, os.environ.get("TORCH_EXTENSIONS_DIR"))
    own = {Path(prefix).resolve() for prefix in prefixes if prefix}
    libraries = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        path = Path(fields[5]) if len(fields) == 6 else Path()
        if "x" in fields[1] and root in path.parents and own.isdisjoint(path.parents):
            libraries.add(path)
    return libraries


def check(call: Callable[[], object], own: set[str], other: set[str], who: str) -> None:
    """Raise NotLoadable unless `call` runs code of its own version and none of the other's."""
    seen = files_run(call)
    foreign = sorted(seen & other)
    if foreign:
        raise NotLoadable(f"the {who} ran the other version's {foreign[0]}")
    if not seen & own:
        raise NotLoadable(f"the {who} ran none of its own files")
