"""Files that a kernel imports, is not made of, and that changed under it all the same."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath

from pytest_kopt.honesty.finding import Finding


def undeclared_dependencies(
    sources: Mapping[str, bytes], kernel: Collection[str], changed: Collection[str]
) -> list[Finding]:
    """Return a note for each changed file outside the kernel that the kernel imports.

    `sources` are the project's Python files by path relative to its root; `kernel` the paths of
    kernel_source; `changed` the paths that differ from what they were at the last accept. An
    import reaches a file by its dotted path from the root, or from any directory that can be an
    import root (`src/`). Relative imports, imports in functions and what imported files import in
    turn all count. Pure: nothing is imported or read.
    """
    files = {tuple(_module(path)): path for path in sources if path.endswith(".py")}
    suffixes: dict[tuple[str, ...], list[str]] = {}
    for parts, path in files.items():
        for start in range(len(parts)):
            suffixes.setdefault(parts[start:], []).append(path)
    seen: dict[str, tuple[str, int]] = {}
    waiting = [path for path in sorted(kernel) if path in sources]
    reached = set(waiting)
    while waiting:
        path = waiting.pop()
        for name, line in _imports(path, sources[path]):
            for target in suffixes.get(name, []):
                if target not in reached:
                    reached.add(target)
                    seen[target] = path, line
                    waiting.append(target)
    return [
        Finding(
            check="undeclared-dependency",
            message=f"{path} is no kernel file, is imported by {by}, and changed",
            where=f"{by}:{line}",
            advice="add it to kernel_source, or take the change back",
            rejects=False,
        )
        for path, (by, line) in sorted(seen.items())
        if path in changed and path not in kernel
    ]


def _module(path: str) -> tuple[str, ...]:
    parts = PurePosixPath(path).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def _imports(path: str, text: bytes) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the dotted names that a file may import, and the lines."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    above = PurePosixPath(path).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _prefixes(tuple(alias.name.split(".")), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = above[: len(above) - node.level + 1] + base
            yield from _prefixes(base, node.lineno)
            for alias in node.names:
                yield (*base, alias.name), node.lineno


def _prefixes(name: tuple[str, ...], line: int) -> Iterator[tuple[tuple[str, ...], int]]:
    for length in range(1, len(name) + 1):
        yield name[:length], line
