"""Which tests use kopt: the plugin acts on these and on no others. Imports nothing heavy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

NAME = "kopt"
_PACKAGE = "pytest_kopt"


def is_marked(test: pytest.Item) -> bool:
    return test.get_closest_marker(NAME) is not None


def uses_kopt(test: pytest.Item) -> bool:
    """Say whether a test has the marker, or the fixture of this plugin and no other of its name."""
    fixtures = getattr(test, "_fixtureinfo", None)
    definitions = fixtures.name2fixturedefs.get(NAME, ()) if fixtures else ()
    is_ours = any(d.func.__module__.partition(".")[0] == _PACKAGE for d in definitions)
    return is_ours or is_marked(test)


def will_use_kopt(file: Path) -> bool:
    """Say whether a test file, before it is imported, names the marker, fixture or package.

    A fixture or a parameter of the project's own may have the fixture's name.
    """
    nodes = _nodes(file)
    if not {NAME, _PACKAGE}.isdisjoint(name for node in nodes for name in _names(node)):
        return True
    if not any(isinstance(node, ast.arg) and node.arg == NAME for node in nodes):
        return False
    above = (node for folder in file.parents for node in _nodes(folder / "conftest.py"))
    return not any(map(_defines_it, chain(nodes, above)))


def _nodes(file: Path) -> list[ast.AST]:
    """Return the nodes of a file's source, none where the name is not in it."""
    with suppress(OSError, SyntaxError, ValueError):
        source = file.read_bytes()
        if NAME.encode() in source:
            return [*ast.walk(ast.parse(source))]
    return []


def _defines_it(node: ast.AST) -> bool:
    """Say whether a node gives the fixture's name a meaning of its own."""
    match node:
        case ast.FunctionDef(name=name, args=ast.arguments(args=arguments)):
            return name == NAME and NAME not in {argument.arg for argument in arguments}
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[ast.Constant(value=names), *_]):
            return NAME in re.findall(r"\w+", str(names))
        case _:
            return False


def _names(node: ast.AST) -> Iterator[str]:
    """Yield what a node takes from pytest: a mark, a fixture by name, a package."""
    match node:
        case ast.Attribute(value=ast.Attribute(attr="mark") | ast.Name(id="mark"), attr=name):
            yield name
        case ast.Call(func=ast.Attribute(attr="usefixtures" | "getfixturevalue"), args=arguments):
            yield from (str(word.value) for word in arguments if isinstance(word, ast.Constant))
        case _:
            # A run without kopt gets here for no node, and need not load it.
            from pytest_kopt.imports import imports_at

            yield from (imported.module.partition(".")[0] for imported in imports_at(node))
