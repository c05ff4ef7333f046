"""A file's syntax tree without what does not matter to a run: comments, docstrings, local names.

Trees are compared and not bytecode: Triton compiles the tree, and bytecode lacks what it reads
there, such as the annotation in `x: tl.constexpr = 5`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

#: What shows a program its own text, names or lines. Where a file uses one, its text counts.
_LOOKS_AT_ITSELF = frozenset(
    {
        *("__doc__", "__code__", "__file__", "__annotations__", "__getattr__", "__dict__"),
        *("inspect", "linecache", "tokenize", "traceback", "ast", "dis", "gc", "_getframe"),
        *("currentframe", "getsource", "getsourcelines", "f_locals", "f_lineno", "co_consts"),
    }
)
#: Functions that do so; methods may have these names (`model.eval()`).
_FUNCTIONS = frozenset({"eval", "exec", "compile", "locals", "vars", "dir", "globals"})
_DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def plain_tree(source: bytes) -> ast.Module | None:
    """Return a tree without docstrings, locals numbered; None for a file whose text counts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, type_comments=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            _drop_docstring(node)
    if any(map(_looks, ast.walk(tree))):
        return None
    renamed: ast.Module = _Numbering(_pinned(tree)).visit(tree)
    return renamed


def names_in(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}


def reachable(start: set[str], leads: Mapping[str, set[str]]) -> set[str]:
    """Return the names that one comes by from some, themselves among them."""
    waiting, seen = {*start}, set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        waiting |= leads.get(name, set()) - seen
    return seen


def _drop_docstring(
    node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]
    if not node.body and not isinstance(node, ast.Module):
        node.body = [ast.Pass()]


def _looks(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _LOOKS_AT_ITSELF | _FUNCTIONS
    if isinstance(node, ast.Attribute):
        return node.attr in _LOOKS_AT_ITSELF
    if isinstance(node, ast.alias):
        return not _LOOKS_AT_ITSELF.isdisjoint(node.name.split("."))
    return bool(getattr(node, "type_params", ()))


def _pinned(tree: ast.Module) -> set[str]:
    """Return the names that are not only a local's: a string or a statement holds them too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {*re.findall(r"\w+", node.value)}
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found |= {*node.names}
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            # In a comprehension it belongs to the function around that.
            found.add(node.target.id)
        else:
            # except … as name, case name, case [*name], case {**name}
            found |= {
                name
                for field in ("name", "rest")
                if isinstance(name := getattr(node, field, None), str)
            }
    return found


class _Numbering(ast.NodeTransformer):
    """Replaces the name of a local by a number: its function's depth and its place among its own.

    Parameters keep their names, which callers use; so do a class's attributes, and the locals of a
    function that holds a class.
    """

    def __init__(self, pinned: set[str]) -> None:
        self._pinned = pinned
        self._scopes: list[dict[str, str]] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Name):
            scope = next((found for found in reversed(self._scopes) if node.id in found), {})
            return ast.copy_location(ast.Name(scope.get(node.id, node.id), node.ctx), node)
        if isinstance(node, _FUNCTION):
            return self._function(node)
        if isinstance(node, _COMPREHENSION):
            return self._comprehension(node)
        return super().visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if name != "body" and isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
            elif name == "decorator_list":
                node.decorator_list = list(map(self.visit, value))  # type: ignore[union-attr]
        own = {a.arg: a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        body = node.body if isinstance(node.body, list) else [node.body]
        holds_class = any(isinstance(n, ast.ClassDef) for part in body for n in ast.walk(part))
        stored = [name for part in body for name in _stored(part)]
        self._scopes.append(self._numbered(stored, own, keep=holds_class))
        visited = [self.visit(part) for part in body]
        node.body = visited if isinstance(node.body, list) else visited[0]
        self._scopes.pop()
        return node

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> ast.AST:
        first = node.generators[0]
        first.iter = self.visit(first.iter)
        stored = [name for part in node.generators for name in _stored(part.target)]
        self._scopes.append(self._numbered(stored, {}, keep=False))
        for part in node.generators:
            part.target = self.visit(part.target)
            part.ifs = list(map(self.visit, part.ifs))
            if part is not first:
                part.iter = self.visit(part.iter)
        for field in ("key", "value", "elt"):
            if hasattr(node, field):
                setattr(node, field, self.visit(getattr(node, field)))
        self._scopes.pop()
        return node

    def _numbered(self, stored: list[str], own: dict[str, str], *, keep: bool) -> dict[str, str]:
        free = [name for name in dict.fromkeys(stored) if name not in own]
        return own | {
            name: name if keep or name in self._pinned else f"<{len(self._scopes)}.{place}>"
            for place, name in enumerate(free)
        }


def _stored(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds in its own function, in their order."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.id
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*_FUNCTION, ast.ClassDef, *_COMPREHENSION)):
            yield from _stored(child)
