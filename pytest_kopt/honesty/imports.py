"""Which project files a file imports, read from the source: nothing is imported to find out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_BY_NAME = frozenset({"import_module", "__import__", "importorskip"})
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds a module's file as Python would: the first of `folders` that has it.

    Only files below `root`, outside any virtual environment, count.
    """

    root: Path
    folders: tuple[Path, ...]

    def files(self, module: str) -> list[Path]:
        """Return the files that importing a module runs: its packages' and its own."""
        parts = module.split(".")
        for folder in self.folders:
            found = [path for path in _chain(folder, parts) if self.is_ours(path)]
            if found:
                return found
        return []

    def is_ours(self, path: Path) -> bool:
        """Say whether a file is the project's own."""
        if not path.is_relative_to(self.root) or _FOREIGN & set(path.parts):
            return False
        above = [folder for folder in path.parents if folder.is_relative_to(self.root)]
        return not any((folder / "pyvenv.cfg").exists() for folder in above)


def reached(start: Iterable[Path], finder: Finder, stop: Callable[[Path], bool]) -> set[Path]:
    """Return the project files that `start` and what it imports run, not going into `stop`'s."""
    found: set[Path] = set()
    waiting = [path.resolve() for path in start]
    while waiting:
        path = waiting.pop()
        if path in found or stop(path) or not path.is_file():
            continue
        found.add(path)
        waiting += imported(path, finder)
    return found


def imported(path: Path, finder: Finder) -> list[Path]:
    """Return the project files that a file imports anywhere in it; none for what does not parse."""
    if path.suffix != ".py":
        return []
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return []
    found: dict[Path, None] = {}
    for folder, module in _named(tree, path):
        inside = finder if folder is None else Finder(finder.root, (folder,))
        found |= dict.fromkeys(inside.files(module))
    return list(found)


def _chain(folder: Path, parts: list[str]) -> Iterator[Path]:
    for i, part in enumerate(parts):
        package = folder / part / "__init__.py"
        if package.is_file():
            yield package.resolve()
        elif (folder / f"{part}.py").is_file():
            yield (folder / f"{part}.py").resolve()
            return
        elif not (folder / part).is_dir() or i == len(parts) - 1:
            return
        folder = folder / part


def _named(tree: ast.Module, path: Path) -> Iterator[tuple[Path | None, str]]:
    """Yield the imported modules, each with the folder that a relative one starts from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield None, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            folder = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else None
            if base:
                yield folder, base
            for alias in node.names:
                yield folder, f"{base}.{alias.name}" if base else alias.name
        elif isinstance(node, ast.Call) and node.args:
            if getattr(node.func, "attr", getattr(node.func, "id", None)) in _BY_NAME:
                yield from ((None, text) for text in _texts(node.args[0]))
        elif isinstance(node, ast.Assign) and "pytest_plugins" in map(ast.unparse, node.targets):
            yield from ((None, text) for text in _texts(node.value))


def _texts(node: ast.expr) -> Iterator[str]:
    for item in ast.walk(node):
        if isinstance(item, ast.Constant) and isinstance(item.value, str) and item.value:
            yield item.value
