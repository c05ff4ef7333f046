"""Which functions of changed files a function cannot run: by every name that it can mention.

A function can only run another one that something names: its own code, code that it runs, or what
runs while a file is imported. Names are followed as words, wherever they lead, in every file that
it imports; a file that looks names up which stand nowhere makes the answer "any".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from pytest_kopt.sameness.module import IMPORTS, Module, module_of
from pytest_kopt.sameness.syntax import reachable

#: What finds a thing by a name that need not stand in any source.
_LOOKS_UP = frozenset(
    {
        *("getattr", "attrgetter", "methodcaller", "import_module", "__import__", "modules"),
        *("__globals__", "__getattribute__", "__builtins__", "run_path", "exec_module"),
    }
)
Sources = Mapping[str, bytes]


def unreached(
    name: str, before: Sources, after: Sources, changed: Iterable[str]
) -> frozenset[tuple[str, str]] | None:
    """Return the functions that differ, by path and name, where function `name` runs none of them.

    None where it may run one, and where the changed files differ in more than plain functions.
    `before` and `after` are all files that importing the function's own can run, by their paths.
    """
    paths = [path for path in changed if before.get(path) != after.get(path)]
    old, new = (
        {path: module_of(path, files.get(path)) for path in paths} for files in (before, after)
    )
    differing, kept = set[tuple[str, str]](), set[str]()
    for path in paths:
        one, other = old[path], new[path]
        if one is None or other is None or [*_loose(one)] != [*_loose(other)]:
            return None
        forms, others = ({n: ast.dump(f) for n, f in m.functions.items()} for m in (one, other))
        names = {n for n in {**forms, **others} if forms.get(n) != others.get(n)}
        if name in names:
            return None
        differing |= {(path, n) for n in names}
        kept |= _state(names, one) | _state(names, other)
    unwanted = {n for _, n in differing} | kept | _LOOKS_UP
    for files in (before, after):
        words = _reached(name, files)
        if words is None or words & unwanted:
            return None
    return frozenset(differing)


def _loose(module: Module) -> Iterator[str]:
    """Yield the statements that run when the file is imported; plain functions only define."""
    return (ast.dump(node) for node in module.body if not module.is_free(node))


def _state(names: Iterable[str], module: Module) -> set[str]:
    """Return what functions use of what their file's statements made, which may hold a state."""
    made = module.bound.keys() - module.functions.keys() - module.imports.keys()
    nodes = (module.functions[name] for name in names if name in module.functions)
    used = set[str]().union(*map(_words, nodes))
    return {name for name in made & used if not module.is_fixed(name)}


def _reached(name: str, files: Sources) -> set[str] | None:
    """Return every word that a function can come by, None where a file's text counts."""
    waiting, leads = {name}, dict[str, set[str]]()
    for path, content in files.items():
        module = module_of(path, content)
        if module is None:
            return None
        for node in module.body:
            if isinstance(node, IMPORTS):
                # An import runs no function; what it is called here leads to what it is.
                for alias in node.names:
                    leads.setdefault(alias.asname or alias.name, set()).add(alias.name)
            elif not module.is_free(node):
                waiting |= _words(node)
        for own, function in module.functions.items():
            leads.setdefault(own, set()).update(_words(function))
    return reachable(waiting, leads)


def _words(tree: ast.AST) -> set[str]:
    found, spelled = set[str](), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > 1:
            is_text = isinstance(node.args[1], ast.Constant)
            if is_text and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                spelled.add(node.func)
        elif isinstance(node, ast.Name) and node not in spelled:
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found |= {*node.name.split("."), node.asname or ""}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {*re.findall(r"\w+", node.value)}
    return found
