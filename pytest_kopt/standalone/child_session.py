"""Sessions of pytest in trees that are made for them: a project with other files, or a commit."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest
from pydantic import ValidationError

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.imports import imports_from, is_imported
from pytest_kopt.options.declare import IN_TREE, LOADED_BEFORE
from pytest_kopt.process_tree import end_descendants, end_with_parent
from pytest_kopt.processes.launched import scratch
from pytest_kopt.versions.tree import Tree, copied, differs, linked, project_files, write

#: A runner's files are about the run as a whole, not about one of its comparisons.
_NOT_INHERITED = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
#: So many bytes at the end of a session's output hold its summary.
_LAST_BYTES = 1 << 20
_RUN = "from pytest_kopt.standalone.child_session import {0}; {0}()"
_NAMED = "--at PATH of the file that they import"


def run(
    words: Sequence[str],
    tree: Tree,
    output: Path | None,
    entry: str = "main",
    *,
    seconds: float | None = None,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run pytest by a function of this module in a tree, and return the exit code.

    It prints to `output`, or (None) where we do, and has these environment variables more.
    KeyboardInterrupt if it was interrupted; TimeoutExpired if it was ended after `seconds`.
    """
    process = _start(words, tree, output, entry, variables or {})
    try:
        code = process.wait(seconds)
    except KeyboardInterrupt as interrupt:
        # At a terminal it was interrupted as well. It ends in order.
        if interrupt.args:
            os.kill(process.pid, signal.SIGTERM)
        process.wait()
        raise
    except subprocess.TimeoutExpired:
        end_descendants(process.pid)
        process.kill()
        process.wait()
        raise
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return code


def _start(
    words: Sequence[str],
    tree: Tree,
    output: Path | None,
    entry: str,
    variables: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    with contextlib.ExitStack() as files:
        log = None if output is None else files.enter_context(output.open("wb"))
        return subprocess.Popen(
            [sys.executable, "-c", _RUN.format(entry), *words],
            cwd=tree.folder,
            # Its two streams share a file: a refusal would stand in the middle of a line.
            env={**_environment(tree.root, tree.place), "PYTHONUNBUFFERED": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT if log else None,
        )


def verdict_in(file: Path) -> Verdict | None:
    """Return the verdict that a session wrote; None where it wrote none."""
    try:
        return Verdict.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def last_words(log: Path) -> str:
    """Return the refusal at the end of a session's output, else its last line."""
    with log.open("rb") as stream:
        # A kernel may print more than memory holds.
        stream.seek(max(0, log.stat().st_size - _LAST_BYTES))
        text = stream.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return refusal_in(lines) or (lines[-1].strip("= ") if lines else "no output")


def refusal_in(lines: Iterable[str]) -> str:
    """Return why a session or command refused its input, "" where no line says so."""
    refusal = next((line for line in lines if line.startswith("ERROR: ")), "")
    return refusal.removeprefix("ERROR: ")


def main(*plugins: object) -> None:
    """Run pytest as `python -m pytest` does, and end with the process that started it."""
    end_with_parent()
    sys.path[0] = os.getcwd()
    sys.exit(pytest.main([*sys.argv[1:], *LOADED_BEFORE], plugins=plugins))


def comparison() -> None:
    """Run pytest for a comparison; the first word is the user's name of the base."""
    plugin = ModuleType(IN_TREE)
    vars(plugin)["base"] = sys.argv.pop(1)
    main(plugin)


def _environment(root: Path, tree: Path) -> dict[str, str]:
    """Return this process's environment, its imports led from the project into its other tree."""
    env = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    variable = env.get("PYTHONPATH", "").split(os.pathsep)
    paths = {text: Path(text).resolve() for text in (*variable, *sys.path, *_editable()) if text}
    moved = {
        text: str(tree / path.relative_to(root))
        for text, path in paths.items()
        if path.is_dir()
        and path.is_relative_to(root)
        # An environment that lies in the project is no part of it.
        and not path.is_relative_to(Path(sys.prefix).resolve())
    }
    python_path = [moved.get(text, text) for text in paths if text in variable or text in moved]
    # A source of the same size may follow within the second that caches go by.
    return env | {"PYTHONPATH": os.pathsep.join(python_path), "PYTHONDONTWRITEBYTECODE": "1"}


def _editable() -> Iterator[str]:
    """Yield the folders of packages that were installed as editable: a path entry comes first."""
    for distribution in metadata.distributions():
        if '"editable": true' not in (distribution.read_text("direct_url.json") or ""):
            continue
        for name in (distribution.read_text("top_level.txt") or "").split():
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin:
                file = Path(spec.origin)
                yield str(file.parents[1] if spec.submodule_search_locations else file.parent)


@contextmanager
def tree_with(root: Path, files: Mapping[str, bytes], *, builds: bool = False) -> Iterator[Tree]:
    """Yield a tree of a project with these files in it, by path below its root; gone afterwards.

    If a command of the project `builds` kernels, the tree is a copy that leads nowhere else.
    """
    with scratch() as home:
        make = copied if builds else linked
        yield make(root, home / "tree" / (root.name or "project"), files)


@contextmanager
def two_with(
    root: Path,
    files: Mapping[str, bytes],
    path: Path,
    other: Mapping[str, bytes],
    *,
    builds: bool = False,
) -> Iterator[tuple[Tree, list[str]]]:
    """Yield such a tree, and the words for the `other` files as the base of a `comparison`.

    They lie in a folder that has the name of the user's path.
    """
    with tree_with(root, files, builds=builds) as tree, scratch() as home:
        folder = home / (path.name or "base")
        write(other, folder)
        yield tree, [str(path), f"--kopt-base={os.path.relpath(folder, tree.folder)}"]


@contextmanager
def tree_at(repository: Repository, commit: str) -> Iterator[Tree]:
    """Yield a work tree of the repository that holds a commit, gone afterwards."""
    with scratch() as home:
        place = home / repository.root.name
        repository.add_tree_at(place, commit)
        try:
            yield Tree.at(repository.root.resolve(), place)
        finally:
            repository.remove_tree(place)


def place_inside(root: Path, path: str) -> str:
    """Return the place below a root that a `path` from it names; BadInput where it leads out."""
    # Files are written there below another root.
    place = Path(os.path.relpath(root / path, root))
    if place.parts[:1] == ("..",):
        raise BadInput(f"lies outside of the project {root}", where=f"--at {path}", fix=_NAMED)
    return place.as_posix()


def place_below(root: Path, path: str, tests: Iterable[Path]) -> str:
    """Return the place that a `path` from the root names, a file's or a folder's.

    BadInput where there is none and no test imports a file from there, or it leads out.
    """
    place = place_inside(root, path)
    steps = imports_from(root, [*project_files(root)], [test.read_bytes() for test in tests])
    is_used = any(is_imported(PurePosixPath(place), names) for names in steps)
    if not (is_used or (root / place).exists()):
        what = f"there is no such file or folder in {root}, and no test imports one"
        raise BadInput(what, where=f"--at {path}", fix="name it relative to that folder")
    return place


def place_of(versions: Sequence[Path], root: Path, tests: Iterable[Path]) -> str:
    """Return the place below a root that files are versions of: tests import what lies there.

    That is one of the files themselves, or the only file of the project with the name of one, or
    with the content of one. A file that the tests import directly goes before one that other
    modules do. BadInput where there is none, or more than one.
    """
    files = [*project_files(root)]
    steps = [*imports_from(root, files, [test.read_bytes() for test in tests])]
    inside = [PurePosixPath(v.relative_to(root)) for v in versions if v.is_relative_to(root)]
    names_of_versions = {version.name for version in versions}
    same_name = [path for path in files if path.name in names_of_versions]
    sources = [path for path in files if path.suffix == ".py"]
    same_content = (p for p in sources if any(not differs(root / p, v) for v in versions))
    found = (
        {path.as_posix() for path in paths if is_imported(path, names)}
        for paths in (inside, same_name, [*same_content])
        for names in steps
    )
    places = next(filter(None, found), set())
    shown = " and ".join(str(version) for version in versions)
    if not places:
        what = f"the tests import neither {shown}, nor a file of the same name or content"
        raise BadInput(what, fix=_NAMED)
    if len(places) > 1:
        raise BadInput(f"{shown} may be versions of {', '.join(sorted(places))}", fix=_NAMED)
    return places.pop()


def tests_below(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files among paths and below them."""
    found: list[Path] = []
    for path in paths:
        below = [path / file for file in project_files(path)] if path.is_dir() else [path]
        found += [file for file in below if file.suffix == ".py"]
    return found
