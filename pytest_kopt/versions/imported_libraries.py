"""Which libraries a project's files import: read from their sources, and nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path


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
        for module, name in _imports(path):
            if own := _own_files(module, name, folders):
                waiting += own
            else:
                libraries.add(module)
    return libraries


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each module that is imported where a file is, with the name that is taken from it."""
    waiting: list[ast.AST] = []
    # Whoever imports it says what is wrong with it.
    with suppress(OSError, SyntaxError, ValueError):
        waiting.append(ast.parse(path.read_bytes()))
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import():
                yield from ((alias.name, "") for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from ((module, alias.name) for alias in node.names)
            case ast.ImportFrom():
                yield from ((_absolute(path, node), alias.name) for alias in node.names)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.expr():
                pass
            case _:
                waiting += ast.iter_child_nodes(node)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    """Return the module that a relative import names, from the first folder that is no package."""
    package = path.parents[node.level - 1]
    parts = [node.module] if node.module else []
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
