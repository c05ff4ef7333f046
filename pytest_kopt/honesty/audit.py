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
#: By what is called, read or imported: what that means, and the names, of which one that ends in a
#: dot stands for all below it.
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
    "harness-environment": (
        "the kernel reads the command line of the session",
        "sys.argv sys.orig_argv",
    ),
    _MEMOISED: (
        "a memoising decorator may keep arguments and results",
        "functools.lru_cache functools.cache cachetools. joblib.Memory weakref.WeakKeyDictionary",
    ),
}
_HARNESS_VARIABLES = ("PYTEST", "KOPT_", "XDIST")
#: What tells a tensor from others without a look at its content.
_IDENTITY = {"data_ptr", "untyped_storage", "_cdata", "__array_interface__", "_version"}
_LOOKUPS = ("get", "setdefault", "pop", "move_to_end")

#: The check, what it says, and the code.
_Note = tuple[str, str, ast.AST]


def audit(candidate: Mapping[str, bytes], incumbent: Mapping[str, bytes]) -> list[Finding]:
    """Return notes about a candidate's sources, by path, but for code that the incumbent has too.

    Files that are no Python have none.
    """
    old = Counter((check, ast.dump(node)) for _, (check, _, node) in _notes(incumbent))
    findings = []
    for path, (check, message, node) in _notes(candidate):
        old[check, ast.dump(node)] -= 1
        if old[check, ast.dump(node)] < 0:
            code = ast.unparse(node).partition("\n")[0]
            code = code if len(code) <= _LONGEST else f"{code[: _LONGEST - 1]}…"
            where = f"{path}:{getattr(node, 'lineno', 1)}"
            findings.append(Finding(check, f"{message}: `{code}`", where=where))
    return findings


def suspects_a_cache(source: bytes) -> bool:
    """Say whether a file has what looks like a cache of activations or results."""
    return any(finding.check in (_CACHED, _MEMOISED) for finding in audit({"k.py": source}, {}))


def _notes(sources: Mapping[str, bytes]) -> Iterator[tuple[str, _Note]]:
    for path, content in sources.items():
        try:
            tree = ast.parse(content) if path.endswith(".py") else ast.Module([], [])
        except (SyntaxError, ValueError):
            continue
        visitor = _Visitor()
        visitor.visit(tree)
        # One note of a kind for each line.
        places = {(note[0], getattr(note[2], "lineno", 0)): note for note in visitor.notes[::-1]}
        yield from ((path, note) for note in reversed(places.values()))


class _Visitor(ast.NodeVisitor):
    """One pass over a file, in which names of imports are known."""

    def __init__(self) -> None:
        self.notes: list[_Note] = []
        self._names: dict[str, str] = {}

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for imported in imports_at(node):
            bound, name = imported.bound
            self._names[bound] = name
            self._named(imported.whole, node)

    visit_ImportFrom = visit_Import  # noqa: N815 - the name is that of ast

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._named(self._dotted(node), node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        name = self._names.get(node.id, "")
        if isinstance(node.ctx, ast.Load) and "." in name:
            self._named(name, node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.startswith(_HARNESS_VARIABLES):
            text = "the kernel names an environment variable of the harness"
            self.notes.append(("harness-environment", text, node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Note what is looked up, or compared with what was kept, by what a tensor is."""
        keys = [key for part in ast.walk(node) for key in _keys(part)]
        names = {part.id for key in keys for part in ast.walk(key) if isinstance(part, ast.Name)}
        named = (part for part in ast.walk(node) if isinstance(part, ast.Assign))
        keys += [part.value for part in named if names & set(map(ast.unparse, part.targets))]
        for key in keys:
            parts = [*ast.walk(key)]
            calls = {ast.unparse(part.func) for part in parts if isinstance(part, ast.Call)}
            read = {part.attr for part in parts if isinstance(part, ast.Attribute)}
            # A launch is handed pointers, and asks how they are aligned.
            is_aligned = any(isinstance(part, ast.Mod) for part in parts)
            if ("id" in calls or read & _IDENTITY) and not is_aligned:
                text = "the kernel keeps a value by the identity of a tensor"
                self.notes.append((_CACHED, text, key))
        self.generic_visit(node)

    def _named(self, name: str, node: ast.AST) -> None:
        for check, (message, names) in NOTED.items():
            words = names.split()
            below = tuple(word for word in words if word.endswith("."))
            if name in words or (below and name.startswith(below)):
                self.notes.append((check, message, node))

    def _dotted(self, node: ast.AST) -> str:
        """Return a name as it was imported, "" for what is none."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""


def _keys(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what something is looked up by, or compared with what was kept."""
    if isinstance(node, ast.Subscript):
        yield from [] if isinstance(node.slice, ast.Slice) else [node.slice]
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from node.args[:1] if node.func.attr in _LOOKUPS else []
