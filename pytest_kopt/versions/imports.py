"""Imports of a project's files: read from their sources, and nothing is imported."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def import_statements(
    path: Path, skipped: tuple[type[ast.AST], ...] = ()
) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports of a file outside of statements of the `skipped` kinds.

    A session reads those of hundreds of files for every version. Raises what open and ast.parse do.
    """
    statements: list[ast.Import | ast.ImportFrom] = []
    waiting: list[ast.AST] = [ast.parse(path.read_bytes())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            statements.append(node)
        # No expression holds a statement.
        waiting += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.expr, *skipped))
        ]
    return statements


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports by their whole names."""
    names = set[str]()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module and not node.level:
            names.add(node.module)
    return names


def imported_libraries(starts: Iterable[Path], folders: Sequence[Path]) -> set[str]:
    """Return the modules outside of a project that its files, and what they reach, import.

    The project's modules are those in `folders`, from which its packages are imported. A function's
    own imports are left out.
    """
    waiting, seen, libraries = [*starts], set[Path](), set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        # The import of a file that is no Python says so itself.
        with suppress(OSError, SyntaxError, ValueError):
            for node in import_statements(path, _FUNCTIONS):
                base = _absolute(path, node)
                for alias in node.names:
                    module, name = (base, alias.name) if base else (alias.name, "")
                    if own := _own_files(module, name, folders):
                        waiting += own
                    else:
                        libraries.add(module)
    return libraries


def _absolute(path: Path, node: ast.Import | ast.ImportFrom) -> str:
    """Return the module after `from`, from the first folder that is no package; else ""."""
    if isinstance(node, ast.Import):
        return ""
    parts = [node.module] if node.module else []
    if node.level:
        package = path.parents[node.level - 1]
        while (package / "__init__.py").exists():
            parts.insert(0, package.name)
            package = package.parent
    return ".".join(parts)


def _own_files(module: str, name: str, folders: Sequence[Path]) -> list[Path]:
    """Return the project's files that importing a name from a module runs, packages above too."""
    parts = module.split(".")
    for folder in folders:
        top = folder / parts[0]
        if not (top.is_dir() or top.with_suffix(".py").exists()):
            continue
        reached = [parts[: end + 1] for end in range(len(parts))]
        reached += [[*parts, name]] if name else []
        places = [folder.joinpath(*names) for names in reached]
        files = [file for p in places for file in (p.with_suffix(".py"), p / "__init__.py")]
        # A folder without a module in it is another's package of that name, or a namespace.
        return [file for file in files if file.is_file()] or [top]
    return []
