"""Which files of two versions hold other code: a comparison of sources that imports nothing.

Set aside are comments, docstrings, layout and names of locals. Everything else counts, and every
file that is no Python, or that could read its own text, counts by its bytes.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping

from pytest_kopt.sameness.syntax import plain_tree

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
        and _form(path, before) != _form(path, after)
    ]


@functools.lru_cache(maxsize=1024)
def _form(path: str, content: bytes | None) -> str | bytes | None:
    """Return what of a file counts, as it compares."""
    tree = plain_tree(content) if content is not None and path.endswith(".py") else None
    return content if tree is None else ast.dump(tree)
