"""The audit: notes about a candidate's sources that its author should explain.

It follows no values and proves nothing, so it refuses nothing: the checks that run the kernel do.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.imports import imports_at

_LONGEST = 90
_CACHED = "identity-keyed-cache"
_MEMOISED = "memoised-tensors"
_VARIABLE = "harness-environment"
#: By note: what it says, and the names that are called, read or imported; one that ends in a dot
#: stands for all below it.
NOTED = {
    "stack-inspection": (
        "the kernel inspects the frames of its callers",
        "sys._getframe sys._current_frames inspect.stack inspect.currentframe inspect.trace"
        " inspect.getouterframes traceback.extract_stack traceback.walk_stack",
    ),
    "heap-inspection": (
        "the kernel inspects the objects of the interpreter",
        "gc.get_objects gc.get_referrers gc.get_referents sys.modules ctypes.py_object",
    ),
    "harness-import": (
        "the kernel imports the test harness",
        "pytest pytest. _pytest _pytest. pytest_kopt pytest_kopt. pluggy xdist conftest",
    ),
    _VARIABLE: (
        "the kernel reads the command line or a variable of the session",
        "sys.argv sys.orig_argv",
    ),
    _MEMOISED: (
        "a memoising decorator may keep arguments and results",
        "functools.lru_cache functools.cache cachetools. joblib.Memory weakref.WeakKeyDictionary",
    ),
    _CACHED: ("the kernel keeps a value by the identity of a tensor", ""),
}
_HARNESS_VARIABLES = ("PYTEST", "KOPT_", "XDIST")
#: What tells a tensor from others without a look at its content.
_IDENTITY = {"data_ptr", "untyped_storage", "_cdata", "__array_interface__", "_version"}
_LOOKUPS = ("get", "setdefault", "pop", "move_to_end")


def audit(candidate: Mapping[str, bytes], incumbent: Mapping[str, bytes]) -> list[Finding]:
    """Return notes about a candidate's sources, by path, but for code that the incumbent has too.

    Files that are no Python have none.

    It is rule 11 of docs/honesty.md.
    """
    old = Counter((check, ast.dump(node)) for _, check, node in _notes(incumbent))
    findings = []
    for path, check, node in _notes(candidate):
        old[check, ast.dump(node)] -= 1
        if old[check, ast.dump(node)] < 0:
            code = ast.unparse(node).partition("\n")[0][:_LONGEST]
            where = f"{path}:{getattr(node, 'lineno', 1)}"
            findings.append(Finding(check, f"{NOTED[check][0]}: `{code}`", where=where))
    return findings


def _notes(sources: Mapping[str, bytes]) -> Iterator[tuple[str, str, ast.AST]]:
    for path, content in sources.items():
        try:
            tree = ast.parse(content) if path.endswith(".py") else ast.Module([], [])
        except (SyntaxError, ValueError):
            continue
        names: dict[str, str] = {}
        keyed = {ast.unparse(key) for node in ast.walk(tree) for key in _keys(node)}
        # One note of a kind for each line.
        places = {
            (check, getattr(node, "lineno", 0)): node
            for node in ast.walk(tree)
            for check in _checks(node, names, keyed)
        }
        for (check, _), node in sorted(places.items(), key=lambda place: place[0][1]):
            yield path, check, node


def _checks(node: ast.AST, names: dict[str, str], keyed: set[str]) -> Iterator[str]:
    """Yield the notes about a node.

    `names` are those that imports before it bound, `keyed` what is looked up or compared.
    """
    found: list[str] = []
    if isinstance(node, ast.Import | ast.ImportFrom):
        for imported in imports_at(node):
            bound, name = imported.bound
            names[bound] = name
            found.append(imported.whole)
    elif isinstance(node, ast.Attribute) or (
        isinstance(node, ast.Name) and "." in names.get(node.id, "")
    ):
        first, _, rest = ast.unparse(node).partition(".")
        found.append(".".join(filter(None, (names.get(first, first), rest))))
    elif isinstance(node, ast.Constant) and str(node.value).startswith(_HARNESS_VARIABLES):
        yield _VARIABLE
    for name in found:
        for check, (_, listed) in NOTED.items():
            words = listed.split()
            below = tuple(word for word in words if word.endswith("."))
            if name in words or name.startswith(below):
                yield check
    is_key = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in keyed
    keys = [node.value] if isinstance(node, ast.Assign) and is_key else _keys(node)
    if any(map(_is_identity, keys)):
        yield _CACHED


def _is_identity(key: ast.expr) -> bool:
    parts = [*ast.walk(key)]
    calls = {ast.unparse(part.func) for part in parts if isinstance(part, ast.Call)}
    read = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    # A launch is handed pointers, and asks how they are aligned.
    is_aligned = any(isinstance(part, ast.Mod) for part in parts)
    return ("id" in calls or bool(read & _IDENTITY)) and not is_aligned


def _keys(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what something is looked up by, or compared with what was kept."""
    if isinstance(node, ast.Subscript):
        yield from [] if isinstance(node.slice, ast.Slice) else [node.slice]
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from node.args[:1] if node.func.attr in _LOOKUPS else []
