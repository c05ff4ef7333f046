"""Which file of a project two files are versions of, and which tests import it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pytest_kopt.errors import BadInput
from pytest_kopt.versions.overlay import project_files

_NAMED = "name it: --at kernels/softmax.py"


def place_of(versions: Sequence[Path], root: Path, tests: Iterable[Path]) -> str:
    """Return the place below a root that files are versions of: tests import what lies there.

    That is one of the files themselves, or the only file of the project with the name of one.
    BadInput where there is none, or more than one.
    """
    names = {name for test in tests for name in names_in(test.read_bytes())}
    inside = (PurePosixPath(v.relative_to(root)) for v in versions if v.is_relative_to(root))
    places = {path.as_posix() for path in inside if is_imported(path, names)}
    shown = " and ".join(str(version) for version in versions)
    if not places:
        same_name = {version.name for version in versions}
        files = (path for path in project_files(root) if path.name in same_name)
        places = {path.as_posix() for path in files if is_imported(path, names)}
    if not places:
        what = f"the tests import neither {shown}, nor a file of the project by such a name"
        raise BadInput(what, legal=_NAMED)
    if len(places) > 1:
        raise BadInput(f"{shown} may be versions of {', '.join(sorted(places))}", legal=_NAMED)
    return places.pop()


def names_in(source: bytes) -> set[str]:
    """Return the dotted names that a source imports, relative ones without their dots.

    Of `from a.b import c` these are `a.b` and `a.b.c`, of which the latter may be no module.
    """
    names: set[str] = set()
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {".".join(filter(None, (node.module, a.name))) for a in node.names}
                names |= {node.module} if node.module else set()
    return names


def tests_below(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files among paths and below them."""
    found: list[Path] = []
    for path in paths:
        below = [path / file for file in project_files(path)] if path.is_dir() else [path]
        found += [file for file in below if file.suffix == ".py"]
    return found


def is_imported(path: PurePosixPath, names: Collection[str]) -> bool:
    """Say whether a file below the root is a module by one of these dotted names."""
    parts = path.with_suffix("").parts
    if path.suffix != ".py":
        return False
    if parts[-1] == "__init__":
        parts = parts[:-1]
    # A folder on the way may be one that modules are looked for in.
    return any(".".join(parts[start:]) in names for start in range(len(parts)))
