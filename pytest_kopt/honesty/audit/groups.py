"""Shortcuts that hold only for the benchmark's groups and sizes, not for a router's."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from pytest_kopt.honesty.audit.expressions import ELEMENTS
from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.audit.trace import Root, Site
from pytest_kopt.honesty.audit.values import Object, Tag

_COUNTED = frozenset({"m", "token", "tokens", "row", "rows"})
_OVER_ALL = frozenset({"all", "any"})
_GROUPS = frozenset({"group", "groups", "expert", "experts"})


def suspicions(evidence: Evidence, devices: Iterable[Object]) -> Iterator[Suspicion]:
    """Yield group sizes fixed when compiling, and assertions that groups fit tiles.

    `devices` are the kernel's functions that are compiled for a device.
    """
    for function in devices:
        if isinstance(function.definition, ast.FunctionDef):
            yield from _constants(function.path, function.definition)
    for check in evidence.trace.checks:
        modulo = any(isinstance(n, ast.Mod) for n in ast.walk(check.test))
        if not modulo or not evidence.runs(check.site):
            continue
        elements = any(
            isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _OVER_ALL
            for node in ast.walk(check.test)
        )
        read = elements or check.value.marked(ELEMENTS)
        if read and evidence.tensors(check.value.about(Tag.CONTENT, Tag.DATA)):
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


def _constants(path: str, function: ast.FunctionDef) -> Iterator[Suspicion]:
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
    return len(words) == 3 and words[0] in _COUNTED and words[1] == "per" and words[2] in _GROUPS
