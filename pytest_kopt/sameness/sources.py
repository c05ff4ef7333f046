"""Which files of two versions hold other code.

Sources are compared, and nothing is imported. Comments, docstrings and layout are set aside.
Everything else counts, and every file that is no Python, or that could read its own text, counts by
its bytes.
"""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Mapping

#: What shows a program its own text, names or lines. Where a file uses one, its text counts.
_LOOKS_AT_ITSELF = frozenset(
    {
        *("__doc__", "__code__", "__file__", "__annotations__", "__getattr__", "__dict__"),
        *("inspect", "linecache", "tokenize", "traceback", "ast", "dis", "gc", "_getframe"),
        *("currentframe", "getsource", "getsourcelines", "f_locals", "f_lineno", "co_consts"),
    }
)
#: Functions that do so; methods may have these names (`model.eval()`).
_LOOKING_CALLS = frozenset({"eval", "exec", "compile", "locals", "vars", "dir", "globals"})
_DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Sources = Mapping[str, bytes | None]


def differing(old: Sources, new: Sources) -> list[str]:
    """Return the paths whose code differs between two versions of a project's files, in order.

    Content by path relative to the project, None (or no entry) for a file that is not there. Files
    that are the same in both may be left out.
    """
    return [
        path
        for path in sorted({*old, *new})
        if (before := old.get(path)) != (after := new.get(path))
        and form(path, before) != form(path, after)
    ]


@functools.lru_cache(maxsize=1024)
def form(path: str, content: bytes | None) -> str | bytes | None:
    """Return what of a file counts, as it compares."""
    tree = code_tree(content) if content is not None and path.endswith(".py") else None
    return content if tree is None else ast.dump(tree)


def code_tree(source: bytes) -> ast.Module | None:
    """Return a file's tree without docstrings; None for a file whose text counts.

    A tree and not bytecode: Triton compiles the tree, and bytecode lacks what it reads there, such
    as the annotation in `x: tl.constexpr = 5`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, type_comments=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            # A body of a docstring alone is one of `pass`.
            node.body = node.body[1:] or ([] if node is tree else [ast.Pass()])
    return None if any(map(_looks, ast.walk(tree))) else tree


def _looks(node: ast.AST) -> bool:
    """Say whether a node shows the program its own text."""
    if isinstance(node, ast.Name):
        return node.id in _LOOKS_AT_ITSELF | _LOOKING_CALLS
    if isinstance(node, ast.Attribute):
        return node.attr in _LOOKS_AT_ITSELF
    return isinstance(node, ast.alias) and not _LOOKS_AT_ITSELF.isdisjoint(node.name.split("."))
