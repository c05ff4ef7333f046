"""Which tests use kopt: the plugin acts on these and on no others. Imports nothing heavy."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

NAME = "kopt"
_PACKAGE = "pytest_kopt"


def is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker(NAME) is not None


def uses_kopt(item: pytest.Item) -> bool:
    """Say whether a test has the marker, or the fixture of this plugin and no other of its name."""
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = fixtures.name2fixturedefs.get(NAME, ()) if fixtures else ()
    is_ours = any(d.func.__module__.partition(".")[0] == _PACKAGE for d in definitions)
    return is_ours or is_marked(item)


def mentions_kopt(source: bytes) -> bool:
    """Say whether a test file, before it is imported, names the marker, fixture or package."""
    if NAME.encode() not in source:
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    names = (name for node in ast.walk(tree) for name in _names(node))
    return not {NAME, _PACKAGE}.isdisjoint(names)


def _names(node: ast.AST) -> Iterator[str]:
    """Yield what a node takes from pytest: a mark, a parameter, a fixture by name, a package."""
    match node:
        case ast.Attribute(value=ast.Attribute(attr="mark") | ast.Name(id="mark"), attr=name):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.Call(func=ast.Attribute(attr="usefixtures" | "getfixturevalue"), args=arguments):
            yield from (str(word.value) for word in arguments if isinstance(word, ast.Constant))
        case ast.Import(names=aliases):
            yield from (alias.name.partition(".")[0] for alias in aliases)
        case ast.ImportFrom(module=str(module)):
            yield module.partition(".")[0]
