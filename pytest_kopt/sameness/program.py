"""Which files of two versions hold other code: a comparison of sources that imports nothing.

Set aside are comments, docstrings, line numbers, names of locals, the order of imports that run no
code of the project's, and where a plain function stands: in its file, or in another one from which
it is imported. Everything else counts, and every file that is no Python counts by its bytes.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from pytest_kopt.sameness.module import (
    IMPORTS,
    Module,
    assigns_constant,
    imported,
    is_future,
    module_of,
)
from pytest_kopt.sameness.syntax import names_in

_BUILTINS = frozenset(vars(builtins))
Sources = Mapping[str, bytes | None]


def differing(old: Sources, new: Sources) -> list[str]:
    """Return the paths whose code differs between two versions of a project's files.

    Content by path relative to the project, None (or no entry) for a file that is not there. Files
    that are the same in both may be left out, though a function is only followed into files that
    are given. In doubt a path is named.
    """
    paths = sorted({path for path in {*old, *new} if old.get(path) != new.get(path)})
    if not paths:
        return []
    before, after = Program(old), Program(new)
    moved = {
        path
        for name in {*before.functions, *after.functions}
        if before.functions.get(name) != after.functions.get(name)
        for path in (before.homes.get(name), after.homes.get(name))
    }
    loads = before.loads == after.loads
    return [
        path
        for path in paths
        if path in moved
        or before.rest(path) != after.rest(path)
        or not _keeps_names(before.exports(path), after.exports(path))
        or not (loads or before.loaded(path) == after.loaded(path))
        or (before.lacks(path) != after.lacks(path) and not after.is_helpers(path))
    ]


def _keeps_names(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Say whether a file's names still mean what they did, and no new one hides a builtin."""
    kept = all(after.get(name) == token for name, token in before.items())
    return kept and (after.keys() - before.keys()).isdisjoint(_BUILTINS)


class Program:
    """One version's files: functions, their `homes`, and the modules that are imported first."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._modules = {
            path: module
            for path, content in sources.items()
            if path.endswith(".py") and (module := module_of(path, content))
        }
        #: Parts of the files' paths: a module named so is the project's own.
        self._own = {part for path in sources for part in PurePosixPath(path).with_suffix("").parts}
        modules = self._modules.values()
        self._count = Counter(name for module in modules for name in module.functions)
        self.functions: dict[str, str] = {}
        self.homes: dict[str, str] = {}
        self.loads: set[str] = set()
        for path, module in self._modules.items():
            self.loads |= self.loaded(path)
            for name, node in module.functions.items():
                key, used = self._key(path, name), sorted(names_in(node) & {*module.bound})
                tokens = [(other, self._token(module, other)) for other in used]
                self.functions[key], self.homes[key] = f"{ast.dump(node)} {tokens}", path

    def lacks(self, path: str) -> bool:
        return self._sources.get(path) is None

    def is_helpers(self, path: str) -> bool:
        """Say whether a file only holds functions, and hides no module that is imported."""
        module = self._modules.get(path)
        if module is None or not module.functions or not self._is_leaf(module):
            return False
        return PurePosixPath(path).stem not in {name.partition(".")[0] for name in self.loads}

    def rest(self, path: str) -> object:
        """Return what of a file may not be moved, as it compares; its bytes where text counts."""
        module = self._modules.get(path)
        content = self._sources.get(path)
        if module is None:
            return [] if content is None else content
        found: list[str] = []
        run: list[str] = []
        for node, is_first in self._loose(module):
            if isinstance(node, IMPORTS) and self._may_move(module, node):
                if not is_first and not self._leads_to_function(module, node):
                    run.append(ast.dump(node))
                continue
            found += [*sorted(run), ast.dump(node)]
            run = []
        return [*found, *sorted(run)]

    def loaded(self, path: str) -> set[str]:
        """Return the foreign modules that a file imports before it does anything."""
        module = self._modules.get(path)
        if module is None:
            return set()
        return {
            node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
            for node, is_first in self._loose(module)
            if is_first
            and isinstance(node, IMPORTS)
            and self._may_move(module, node)
            and not self._leads_to_function(module, node)
        }

    def exports(self, path: str) -> dict[str, str]:
        module = self._modules.get(path)
        return {name: self._token(module, name) for name in module.bound} if module else {}

    def _loose(self, module: Module) -> Iterator[tuple[ast.stmt, bool]]:
        """Yield the statements that stay where they are; whether only names were given before."""
        is_first = True
        for node in module.body:
            if module.is_free(node):
                continue
            yield node, is_first
            moves = isinstance(node, IMPORTS) and self._may_move(module, node)
            is_first = is_first and (moves or is_future(node) or assigns_constant(node))

    def _key(self, path: str, name: str) -> str:
        return name if self._count[name] == 1 else f"{path}:{name}"

    def _token(self, module: Module, name: str) -> str:
        """Return what a file's name means, wherever in the program that is defined."""
        if name in module.functions:
            return f"function {self._key(module.path, name)}"
        if name in module.imports:
            found = self._function_behind(module, name)
            return f"function {found}" if found else f"import {self._absolute(module, name)}"
        return f"{module.path} {name}"

    def _absolute(self, module: Module, name: str) -> str:
        """Return what an import means; a relative one by the folder that it starts from."""
        dotted = module.imports[name]
        level = len(dotted) - len(dotted.lstrip("."))
        folder = PurePosixPath(module.path)
        for _ in range(level):
            folder = folder.parent
        return ".".join([*(folder.parts if level else ()), dotted.lstrip(".")])

    def _function_behind(self, module: Module, name: str) -> str:
        """Return the key of the function that is imported from a file beside, "" for others."""
        package, _, rest = self._absolute(module, name).rpartition(".")[0].rpartition(".")
        last = module.imports[name].rpartition(".")[2]
        folder = PurePosixPath(module.path).parent
        beside = bool(package) and f".{'.'.join(folder.parts)}".endswith(f".{package}")
        target = self._modules.get(str(folder / f"{rest}.py")) if beside else None
        if target is None or last not in target.functions or not self._is_leaf(target):
            return ""
        return self._key(target.path, last)

    def _leads_to_function(self, module: Module, node: ast.Import | ast.ImportFrom) -> bool:
        return all(self._function_behind(module, name) for name, _ in imported(node))

    def _may_move(self, module: Module, node: ast.Import | ast.ImportFrom) -> bool:
        """Say whether an import may change places with others: it runs no code of the project's."""
        return all(
            name in module.imports
            and not is_future(node)
            and (not self._is_own(dotted) or bool(self._function_behind(module, name)))
            for name, dotted in imported(node)
        )

    def _is_own(self, dotted: str) -> bool:
        first = dotted.partition(".")[0]
        return first in self._own or not _is_foreign(first)

    def _is_leaf(self, module: Module) -> bool:
        """Say whether importing a file only defines things, and imports nothing of the project."""

        def is_quiet(node: ast.stmt) -> bool:
            if isinstance(node, IMPORTS):
                return not any(n == "*" or self._is_own(dotted) for n, dotted in imported(node))
            return module.is_free(node) or assigns_constant(node)

        return all(map(is_quiet, module.body))


@functools.cache
def _is_foreign(name: str) -> bool:
    """Say whether a module comes with Python or was installed; imports nothing."""
    if not name or name in sys.stdlib_module_names:
        return bool(name)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    return any({"site-packages", "dist-packages"} & {*PurePosixPath(p).parts} for p in places)
