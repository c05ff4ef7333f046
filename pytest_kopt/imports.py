"""The imports of Python files: the modules that a source names, and the files that these are.

Sources are read, and nothing is imported.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CALLS = frozenset({"import_module", "__import__", "importorskip"})
_PLUGINS = "pytest_plugins"
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Import:
    """One name of a statement: `import module`, or `from module import name`."""

    #: "" in `from . import name`.
    module: str
    #: "" for `import module`; it may be a module's or another's.
    name: str = ""
    #: The number of dots before the module.
    level: int = 0
    #: The name after `as`.
    alias: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The dotted names without leading dots, of which the last may be no module."""
        whole = ".".join(filter(None, (self.module, self.name)))
        return (self.module, whole) if self.module and self.name else (whole,)

    @property
    def whole(self) -> str:
        """The last of them with the dots in front."""
        return "." * self.level + self.names[-1]

    @property
    def bound(self) -> tuple[str, str]:
        """The name that it binds, and the dotted name of what that stands for."""
        # Without `as` an import of `torch.nn` binds `torch`.
        top = self.module.partition(".")[0]
        own = self.alias or self.name
        return (own, self.whole) if own else (top, top)

    def start(self, path: Path) -> Path | None:
        """Return the folder in which a relative one begins in a file; None for an absolute one."""
        return path.parents[self.level - 1] if 0 < self.level <= len(path.parents) else None


def imports_at(node: ast.AST) -> list[Import]:
    """Return the imports of a statement, none of one of another kind."""
    match node:
        case ast.Import(names):
            return [Import(name.name, alias=name.asname or "") for name in names]
        case ast.ImportFrom(module, names, level):
            return [Import(module or "", n.name, level, n.asname or "") for n in names]
        case _:
            return []


@functools.cache
def imports_in(source: bytes, *, called: bool = True) -> tuple[Import, ...]:
    """Return the imports of a source, those in functions where these are `called`.

    Raises what ast.parse does.
    """
    imports: list[Import] = []
    waiting: list[ast.AST] = [ast.parse(source)]
    left_out = (ast.expr,) if called else (ast.expr, *_FUNCTIONS)
    while waiting:
        node = waiting.pop()
        imports += imports_at(node)
        # No expression holds a statement.
        children = ast.iter_child_nodes(node)
        waiting += [child for child in children if not isinstance(child, left_out)]
    return tuple(imports)


def names_in(source: bytes) -> set[str]:
    """Return the dotted names that a source imports, relative ones without their dots.

    From `from a.b import c` these are `a.b` and `a.b.c`; the latter may be no module.
    """
    with suppress(SyntaxError, ValueError):
        return {name for imported in imports_in(source) for name in imported.names}
    return set()


def module_parts(path: PurePath) -> tuple[str, ...]:
    """Return the parts of the name of the module in a file; none for a package's own file there."""
    return path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts


def file_of(folder: Path, name: str) -> Path | None:
    """Return the file of a module in a folder, None where it has none."""
    files = (folder / name / "__init__.py", folder / f"{name}.py")
    return next(filter(Path.is_file, files), None)


def is_imported(path: PurePath, names: Collection[str]) -> bool:
    """Say whether a file below the root is a module by one of these dotted names."""
    # A folder on the way may be one that modules are looked for in.
    parts = module_parts(path) if path.suffix == ".py" else ()
    return any(".".join(parts[start:]) in names for start in range(len(parts)))


def imports_from(
    root: Path, files: Collection[PurePosixPath], sources: Iterable[bytes]
) -> Iterator[set[str]]:
    """Yield the dotted names that sources import, then those that what they import does, and on.

    `files` are those of the project, by path below its root.
    """
    left = {*files}
    while sources:
        names = {name for source in sources for name in names_in(source)}
        yield names
        reached = {path for path in left if is_imported(path, names)}
        left -= reached
        sources = [(root / path).read_bytes() for path in reached]


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
            if files := [path for path in _chain(folder, parts) if self.is_ours(path)]:
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
            names = _named_in(path)
            files = (self.files(name, [folder] if folder else None) for folder, name in names)
            self._imported[path] = [*dict.fromkeys(chain.from_iterable(files))]
        return self._imported[path]

    def libraries_and_files(self, start: Iterable[Path]) -> tuple[set[str], set[Path]]:
        """Return the modules that files import from elsewhere, and the files they reach.

        The imports of functions are left out.
        """
        waiting, seen, libraries = [*start], set[Path](), set[str]()
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            # The import of a file that is no Python says so itself.
            with suppress(OSError, SyntaxError, ValueError):
                for imported in imports_in(path.read_bytes(), called=False):
                    folder = imported.start(path)
                    waiting += self.files(imported.names[-1], [folder] if folder else None)
                    head = imported.module.partition(".")[0]
                    # A folder may be a namespace.
                    begins = ((f / head).is_dir() or file_of(f, head) for f in self.folders)
                    if not (imported.level or any(begins)):
                        libraries.add(imported.module)
        return libraries, seen


def _named_in(path: Path) -> list[tuple[Path | None, str]]:
    """Return the dotted names that a file imports, each with the folder that it starts from."""
    try:
        source = path.read_bytes() if path.suffix == ".py" else b""
        statements = imports_in(source)
        names = [(imported.start(path), name) for imported in statements for name in imported.names]
        return [*dict.fromkeys([*names, *((None, name) for name in _names_in_calls(source))])]
    except (SyntaxError, ValueError, OSError):
        return []


@functools.cache
def _names_in_calls(source: bytes) -> tuple[str, ...]:
    """Return the modules that calls and pytest's variable name in their strings."""
    if not any(word.encode() in source for word in (*_CALLS, _PLUGINS)):
        return ()
    texts: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            texts += node.args[:1] if called in _CALLS else []
        elif isinstance(node, ast.Assign) and _PLUGINS in map(ast.unparse, node.targets):
            texts.append(node.value)
    parts = (part for text in texts for part in ast.walk(text) if isinstance(part, ast.Constant))
    return tuple(part.value for part in parts if isinstance(part.value, str) and part.value)


def _chain(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the files of a module's packages in a folder, and its own."""
    for part in parts:
        file, folder = file_of(folder, part), folder / part
        if file:
            yield file.resolve()
        # Below a module's file there is nothing, whatever a folder of that name holds.
        if not folder.is_dir() or (file and file.parent != folder):
            return
