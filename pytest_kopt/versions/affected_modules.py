"""The modules that have to exist twice, because a change reaches a function through them.

Imports are read from the project's sources; nothing is imported for that.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeAlias

from pytest_kopt.imports import Import, imports_in
from pytest_kopt.libraries import loaded_files

#: Calls that write to a registry of torch's or build an extension: a second registration of one
#: name raises, or silently changes what the first version returns.
_REGISTRATIONS = {
    *("custom_op", "triton_op", "register_kernel", "register_fake", "register_autograd"),
    *("Library", "load_inline", "cpp_extension.load"),
}
#: What a compiler opens, which nobody hears of.
NATIVE_SUFFIXES = {
    *(".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".hip", ".inc", ".inl"),
    *(".hh", ".hxx", ".ipp", ".tpp", ".pyx", ".pxd", ".rs", ".cl", ".s", ".mlir", ".ll"),
}
#: What says how that is compiled.
_BUILDS = {
    *("Makefile", "makefile", "GNUmakefile", "CMakeLists.txt", "meson.build", "setup.py"),
    *("BUILD", "BUILD.bazel", "SConstruct"),
}
_BUILD_SUFFIXES = {".mk", ".cmake", ".ninja", ".bzl"}
#: Suffixes of texts and pictures: what reads one does so in Python, whose audit events tell of it.
_TEXTS = {
    *(".py", ".pyi", ".md", ".rst", ".txt", ".json", ".csv", ".tsv", ".xml", ".yaml", ".yml"),
    *(".toml", ".ini", ".cfg", ".lock", ".log", ".sh", ".html", ".css", ".js", ".svg", ".ipynb"),
    *(".png", ".jpg", ".jpeg", ".gif", ".pdf", ".j2", ".typed"),
}
#: Files without a suffix that only people and tools read.
_NOTES = {"LICENSE", "NOTICE", "AUTHORS", "Dockerfile", "CODEOWNERS"}
#: Paths of files that a process opened, each with the sources that had them opened.
Opened: TypeAlias = Mapping[str, Collection[str]]


class NotLoadable(Exception):
    """Both versions cannot live in one process; the message says why in a few words."""


class SameVersion(NotLoadable):
    """Both versions run the same code: no import reaches the change, or a GPU does the same."""

    def __init__(self, by: Literal["source", "machine"]) -> None:
        super().__init__(by)
        self.by = by


def is_built(path: Path) -> bool:
    """Say whether a file is compiled, or says how others are: no process that runs it opens it."""
    return _says_how(path) or path.suffix in NATIVE_SUFFIXES


def _says_how(path: Path) -> bool:
    return path.name in _BUILDS or path.suffix in _BUILD_SUFFIXES


def project_modules(root: Path) -> dict[str, Path]:
    """Return the loaded modules whose source lies below `root`, outside any site-packages."""
    start = f"{str(root).rstrip(os.sep)}{os.sep}"
    modules = {}
    for name, file in loaded_files().items():
        path = _source(str(file))
        # By text, which takes a tenth of the time for the thousands that are not.
        if path is None or not str(path).startswith(start):
            continue
        if "site-packages" not in path.parts and (root / ".venv") not in path.parents:
            modules[name] = path
    return modules


@functools.cache
def _source(file: str) -> Path | None:
    """Return where a module's source lies, None for a path that does not exist (torch.ops)."""
    return Path(resolved(file)) if file.endswith(".py") and os.path.isfile(file) else None


def resolved(file: str) -> str:
    """Return the real path of a file."""
    folder, name = os.path.split(file)
    # To resolve each of the files asks the system about every folder above it, each time.
    return os.path.realpath(file) if os.path.islink(file) else os.path.join(_real(folder), name)


@functools.cache
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def is_read_unheard(path: Path) -> bool:
    """Say whether no event tells who opens a file: a compiler, a library in another language."""
    is_text = path.suffix.lower() in _TEXTS or path.name in _NOTES or path.name.startswith(".")
    return not (is_text or _says_how(path))


def readers(path: Path, modules: Mapping[str, Path], opened: Opened) -> set[str]:
    """Return the modules that had a file opened; "" stands for somebody who is none of them."""
    authors = opened.get(str(path), [""] if is_read_unheard(path) else [])
    sources = {str(file) for file in modules.values()}
    names = {name for name, file in modules.items() if str(file) in authors}
    return names | ({""} if not sources.issuperset(authors) else set())


@functools.cache
def _content(source: Path) -> bytes:
    # A session reads hundreds of files for every version.
    return source.read_bytes()


def universe(
    start: str, changed: Iterable[Path], root: Path, opened: Opened | None = None
) -> dict[str, Path]:
    """Return the modules to load again, by name: what `start` reaches that depends on a change.

    `changed` are resolved paths of files that differ between the versions. Packages above a chosen
    module are loaded with it, since importing a submodule writes into its package. Empty when the
    change does not reach `start`. A changed file that is no module belongs to those that read it;
    who had which files `opened` is what this process heard. Raises NotLoadable when a module
    registers something with torch, a file of a build changed, or it is not known who read a file.
    """
    different = set(changed)
    if built := sorted(path.name for path in different if is_built(path)):
        raise NotLoadable(f"{built[0]} is compiled, or says how")
    modules, imports = _imports_below(root)
    read: set[str] = set()
    for path in sorted(different.difference(modules.values())):
        read |= (by := readers(path, modules, opened or {}))
        if "" in by:
            raise NotLoadable(f"it is not known which module reads {path.name}")
    reached = _closure({start}, imports)
    dependents: dict[str, set[str]] = {name: set() for name in modules}
    for name, targets in imports.items():
        for target in targets:
            dependents[target].add(name)
    touched = {name for name, path in modules.items() if path in different}
    affected = _closure(touched | read, dependents)
    chosen = {name: modules[name] for name in sorted(reached & affected)}
    for package in (package for name in [*chosen] for package in _packages_above(name)):
        if package in modules:
            chosen[package] = modules[package]
    for name, path in chosen.items():
        if (registration := _registration(path)) is not None:
            raise NotLoadable(f"module {name!r} calls {registration}")
    return chosen


@functools.cache
def _registration(path: Path) -> str | None:
    """Return the first registration of a file, with its line."""
    source = path.read_bytes()
    # Most files have none, and to parse hundreds takes a second.
    if not any(word.partition(".")[0].encode() in source for word in _REGISTRATIONS):
        return None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if any(f".{called}".endswith(f".{word}") for word in _REGISTRATIONS):
                return f"{called}() at line {node.lineno}"
    return None


def imported_by(start: str, root: Path) -> set[Path]:
    """Return the files below `root` that importing a module can run, packages above included."""
    modules, imports = _imports_below(root)
    return {modules[name] for name in _closure({start}, imports)}


def _packages_above(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


def _imports_below(root: Path) -> tuple[dict[str, Path], dict[str, set[str]]]:
    """Return the loaded modules below `root`, and those of which each runs code or reads names."""
    modules = project_modules(root)
    return modules, {name: _imported(name, path, modules) for name, path in modules.items()}


def _closure(start: set[str], edges: Mapping[str, set[str]]) -> set[str]:
    reached, waiting = set(), [name for name in start if name in edges]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += edges[name]
    return reached


def _imported(name: str, path: Path, modules: Mapping[str, Path]) -> set[str]:
    module = sys.modules[name]
    package = module.__name__ if hasattr(module, "__path__") else name.rpartition(".")[0]
    read, bound = set[str](), set[str]()
    for imported in imports_of(path):
        parts = package.split(".") if imported.level else []
        above = parts[: len(parts) - imported.level + 1]
        source = ".".join(filter(None, (*above, imported.module)))
        whole = f"{source}.{imported.name}"
        if imported.name == "*" or not imported.name:
            is_whole = imported.name or imported.alias
            bound.add(source if is_whole else source.partition(".")[0])
        else:
            bound.add(whole)
            # The package may have something else by the name of its module.
            if whole not in modules or _value(source, imported.name) is not sys.modules[whole]:
                read.add(source)
    # Through a package that it has a name for, a module reads whatever else was imported there.
    packages = (name for name in bound if hasattr(sys.modules.get(name), "__path__"))
    inside = tuple(f"{name}." for name in packages)
    # What packages above import is run first, and may set what this one reads.
    found = {*read, *bound, *_packages_above(name)} & modules.keys()
    return found | {name for name in modules if inside and name.startswith(inside)}


def _value(module: str, name: str) -> object:
    return getattr(sys.modules.get(module), "__dict__", {}).get(name)


def imports_of(path: Path) -> tuple[Import, ...]:
    """Return the imports of a loaded file; raises what open and ast.parse do."""
    return imports_in(_content(path))


def home(function: object) -> ModuleType | None:
    """Return the loaded module that a function says it was defined in."""
    return sys.modules.get(getattr(function, "__module__", None) or "")
