"""Which project files a file imports, read from the source: nothing is imported to find out."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

_BY_NAME = frozenset({"import_module", "__import__", "importorskip"})
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})


class Finder:
    """Finds the files of modules as Python would: in the first of `folders` that has one.

    Only files below `root`, outside any virtual environment, count. The imports of a file are read
    once: many files of a package reach all of it.
    """

    def __init__(self, root: Path, folders: Sequence[Path] = ()) -> None:
        self._root = root
        self.folders = folders
        self._ours: dict[Path, bool] = {}
        self._imported: dict[Path, list[Path]] = {}

    def files(self, module: str, folders: Sequence[Path] | None = None) -> list[Path]:
        """Return the files that importing a module runs: its packages' and its own."""
        parts = module.split(".")
        for folder in self.folders if folders is None else folders:
            files = [path for path in _chain(folder, parts) if self.is_ours(path)]
            if files:
                return files
        return []

    def is_ours(self, path: Path) -> bool:
        """Say whether a file is the project's own."""
        return path.is_relative_to(self._root) and self._is_own_folder(path.parent)

    def _is_own_folder(self, folder: Path) -> bool:
        if folder not in self._ours:
            is_own = folder.name not in _FOREIGN and not (folder / "pyvenv.cfg").exists()
            above = folder.parent
            is_inside = above.is_relative_to(self._root)
            self._ours[folder] = is_own and (not is_inside or self._is_own_folder(above))
        return self._ours[folder]

    def reached(self, start: Iterable[Path], stop: Callable[[Path], bool]) -> set[Path]:
        """Return the project files that `start` and its imports run, not going into `stop`'s."""
        reached: set[Path] = set()
        waiting = [path.resolve() for path in start]
        while waiting:
            path = waiting.pop()
            if path in reached or stop(path) or not path.is_file():
                continue
            reached.add(path)
            waiting += self.imported(path)
        return reached

    def sources(self, path: Path) -> list[Path]:
        """Return the project files in which a file finds what it imports, no packages above."""
        chains = [
            (name, self.files(name, [folder] if folder else None) or self._package(folder))
            for folder, name in _named_in(path)
        ]
        # `from package import module` names the package as well, and takes nothing from it.
        return [
            files[-1]
            for name, files in chains
            if files
            and not any(n.startswith(f"{name}.") and len(f) > len(files) for n, f in chains)
        ]

    def _package(self, folder: Path | None) -> list[Path]:
        """Return what `from . import name` reads a name from that is no module."""
        file = folder / "__init__.py" if folder else None
        return [file] if file and file.is_file() and self.is_ours(file) else []

    def imported(self, path: Path) -> list[Path]:
        """Return the project files that a file imports anywhere; none for what does not parse."""
        if path not in self._imported:
            modules = _named_in(path)
            files = [self.files(name, [folder] if folder else None) for folder, name in modules]
            self._imported[path] = list(dict.fromkeys(chain.from_iterable(files)))
        return self._imported[path]


def _named_in(path: Path) -> tuple[tuple[Path | None, str], ...]:
    try:
        return _read(path, path.read_bytes()) if path.suffix == ".py" else ()
    except (SyntaxError, ValueError, OSError):
        return ()


@functools.cache
def _read(path: Path, source: bytes) -> tuple[tuple[Path | None, str], ...]:
    # A session takes several fingerprints, mostly of the same sources.
    return tuple(dict.fromkeys(_named(ast.parse(source), path)))


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
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
            yield part.value
