"""Shortcuts that hold only for the benchmark's groups and sizes, not for a router's."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.audit.trace import Root, Site
from pytest_kopt.honesty.audit.values import Tag

_COUNTED = frozenset({"m", "token", "tokens", "row", "rows"})
_GROUPS = frozenset({"group", "groups", "expert", "experts"})


def suspicions(evidence: Evidence, trees: Mapping[str, ast.Module]) -> Iterator[Suspicion]:
    """Yield group sizes fixed when compiling, and assertions that groups fit tiles."""
    for path, tree in trees.items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _constants(path, function)
    for check in evidence.trace.checks:
        modulo = any(isinstance(n, ast.Mod) for n in ast.walk(check.test))
        if not modulo or not evidence.runs(check.site):
            continue
        if evidence.tensors(check.value.about(Tag.CONTENT, Tag.DATA)):
            yield Suspicion(
                "divisible-groups",
                "it asserts that sizes read from a tensor fit its tiles",
                check.site,
                "mask the last tile of each group: a router's groups fit no tile",
            )
        else:
            yield Suspicion(
                "divisible-shapes",
                "it refuses shapes that do not fit its tiles",
                check.site,
                "shapes near the declared ones have to work where the incumbent's do",
                rejects=False,
            )


def _constants(path: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Suspicion]:
    spec = function.args
    for argument in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
        note = argument.annotation
        constant = note is not None and "constexpr" in ast.unparse(note).rpartition(".")[2]
        if constant and _rows_per_group(argument.arg):
            yield Suspicion(
                "fixed-group-size",
                "the number of rows in a group is a compile-time constant",
                Site(path, function.name, argument, Root(0, "", path), frozenset()),
                "pass the groups' sizes or offsets as a tensor, read by the kernel",
            )


def _rows_per_group(name: str) -> bool:
    """Say whether a name says rows (or tokens, or M) per group (or expert)."""
    words = name.lower().split("_")
    if words[0] in ("num", "n", "max"):
        del words[0]
    return (
        len(words) == 3 and words[0] in _COUNTED and words[1] == "per" and words[2] in _GROUPS
    )
