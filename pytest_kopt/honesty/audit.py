"""The audit: reads a candidate's sources and notes what its author should explain.

It follows no values and proves nothing, so it refuses nothing: what code *does* is for the checks
that run it to find. Its notes stand in the verdict, and their buckets in the transfer check; a
case whose file has one of W2 or W3 runs the whole training loop.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.imports import imports_at

_LONGEST = 90
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
        "cachetools. joblib.Memory weakref.WeakKeyDictionary",
    ),
}
_MEMOISERS = ("functools.lru_cache", "functools.cache")
_HARNESS_VARIABLES = ("PYTEST", "KOPT_", "XDIST")
#: What tells a tensor from others without a look at all of its content, and what reads some of it.
_IDENTITY = ("data_ptr", "untyped_storage", "_cdata", "__array_interface__")
_CONTENT = ("item", "tolist", "numpy", "tobytes")
_LOOKUPS = ("get", "setdefault", "pop", "move_to_end")
_MAKERS = re.compile("(new_)?(empty|zeros|ones|full|rand|arange|clone|copy|stack|cat)")
_TENSOR_METHODS = ("shape", "stride", "data_ptr", "numel", "contiguous")
_PER_GROUP = re.compile(r"(num_|n_|max_)?(m|tokens?|rows?)_per_(group|expert)s?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Note:
    check: str
    message: str
    node: ast.AST
    bucket: str = ""

    @property
    def pattern(self) -> tuple[str, str]:
        """The rule and the code, wherever it stands."""
        return self.check, ast.dump(self.node)


def audit(candidate: Mapping[str, bytes], incumbent: Mapping[str, bytes]) -> list[Finding]:
    """Return notes about a candidate's sources, by path; files that are no Python have none.

    A pattern that the incumbent has too is named as such, and has no bucket: it is no gain of this
    round's.
    """
    remaining = Counter(note.pattern for _, note in _notes(incumbent))
    findings = []
    for path, note in _notes(candidate):
        code = ast.unparse(note.node).partition("\n")[0]
        code = code if len(code) <= _LONGEST else f"{code[: _LONGEST - 1]}…"
        remaining[note.pattern] -= 1
        old = remaining[note.pattern] >= 0
        findings.append(
            Finding(
                note.check,
                f"{'the incumbent has it too: ' if old else ''}{note.message}: `{code}`",
                where=f"{path}:{getattr(note.node, 'lineno', 1)}",
                bucket="" if old else note.bucket,
                rejects=False,
            )
        )
    return findings


def suspects_a_cache(source: bytes) -> bool:
    """Say whether a file has what looks like a cache of activations or results (W2, W3)."""
    return any(finding.bucket in ("W2", "W3") for finding in audit({"": source}, {}))


def _notes(sources: Mapping[str, bytes]) -> Iterator[tuple[str, _Note]]:
    for path, content in sources.items():
        if not path.endswith(".py") and path:
            continue
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):
            continue
        visitor = _Visitor()
        visitor.visit(tree)
        noted = set()
        for note in visitor.notes:
            place = note.check, getattr(note.node, "lineno", 0)
            if place not in noted:
                noted.add(place)
                yield path, note


class _Visitor(ast.NodeVisitor):
    """One pass over a file: names of imports are known, functions are looked at as a whole."""

    def __init__(self) -> None:
        self.notes: list[_Note] = []
        self._names: dict[str, str] = {}

    def _note(self, check: str, message: str, node: ast.AST, bucket: str = "") -> None:
        self.notes.append(_Note(check, message, node, bucket))

    # -- what is imported, named and called

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
            self._note(
                "harness-environment",
                "the kernel names an environment variable of the harness",
                node,
            )

    def visit_Assert(self, node: ast.Assert) -> None:
        self._divisible(node.test, node)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if any(isinstance(part, ast.Raise) for part in node.body):
            self._divisible(node.test, node.test)
        self.generic_visit(node)

    # -- functions as a whole

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        spec = node.args
        for argument in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
            is_constant = "constexpr" in ast.unparse(argument.annotation or ast.Constant(""))
            if is_constant and _PER_GROUP.fullmatch(argument.arg):
                text = "the number of rows in a group is a compile-time constant"
                self._note("fixed-group-size", text, argument)
        self._caches(node)
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self._dotted(called) in _MEMOISERS and self._takes_tensors(node):
                text = "the kernel keeps results for equal arguments, tensors among them"
                self._note(_MEMOISED, text, decorator, "W2")
        self.generic_visit(node)

    def _caches(self, node: ast.FunctionDef) -> None:
        """Note what is found again by what a tensor is or holds, where something is kept."""
        own_nodes = list(_own_nodes(node))
        temporaries = _temporaries(own_nodes)
        if not any(_keeps(part, temporaries) for part in own_nodes):
            return
        keys = [key for part in own_nodes for key in _keys(part)]
        names = {part.id for key in keys for part in ast.walk(key) if isinstance(part, ast.Name)}
        keys += [
            part.value
            for part in own_nodes
            if isinstance(part, ast.Assign)
            and names & {n.id for t in part.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        ]
        inside = [sub for key in keys for sub in ast.walk(key)]
        read = {sub.attr for sub in inside if isinstance(sub, ast.Attribute)}
        calls = [sub for sub in inside if isinstance(sub, ast.Call)]
        casts = [sub for sub in calls if ast.unparse(sub.func) in ("float", "int")]
        weak = any(self._dotted(part) == "weakref.ref" for part in own_nodes)
        if "_version" in read:
            text = "the kernel keeps a value until a tensor is written to"
            self._note("weight-cache", text, keys[0], "W1")
        elif read & {*_IDENTITY} or weak or any(ast.unparse(sub.func) == "id" for sub in calls):
            text = "the kernel keeps a value by the identity of a tensor"
            self._note("identity-keyed-cache", text, keys[0] if keys else node, "W2")
        elif read & {*_CONTENT} or any(
            isinstance(part, ast.Subscript) for sub in casts for part in ast.walk(sub)
        ):
            text = "the kernel keeps a value by a fingerprint of a tensor's values"
            self._note("content-keyed-cache", text, keys[0], "W3")

    def _takes_tensors(self, node: ast.FunctionDef) -> bool:
        names = {argument.arg for argument in node.args.args}
        return any(
            isinstance(part, ast.Attribute)
            and part.attr in _TENSOR_METHODS
            and isinstance(part.value, ast.Name)
            and part.value.id in names
            for part in ast.walk(node)
        )

    # -- helpers

    def _named(self, name: str, node: ast.AST) -> None:
        for check, (message, names) in NOTED.items():
            words = names.split()
            below = tuple(word for word in words if word.endswith("."))
            if name in words or (below and name.startswith(below)):
                self._note(check, message, node, "W2" if check == _MEMOISED else "")

    def _divisible(self, test: ast.expr, node: ast.AST) -> None:
        if any(isinstance(part, ast.Mod) for part in ast.walk(test)):
            self._note(
                "divisible-shapes", "the kernel refuses sizes that do not fit its tiles", node
            )

    def _dotted(self, node: ast.AST) -> str:
        """Return a name as it was imported, "" for what is none."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions inside of it."""
    waiting: list[Any] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _keys(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what something is looked up by, or compared with what was kept."""
    if isinstance(node, ast.Subscript):
        yield from [] if isinstance(node.slice, ast.Slice) else [node.slice]
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from node.args[:1] if node.func.attr in _LOOKUPS else []


def _temporaries(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of tensors and lists that a function makes itself: they end with it."""
    values: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)

    def makes(value: ast.expr) -> bool:
        function = value.func if isinstance(value, ast.Call) else None
        named = isinstance(function, ast.Attribute) and _MAKERS.match(function.attr)
        return bool(named) or isinstance(value, ast.List)

    return {name for name, assigned in values.items() if all(map(makes, assigned))}


def _keeps(node: ast.AST, temporaries: Container[str]) -> bool:
    """Say whether a statement writes to something that outlives the call, as far as one sees.

    A write to one of the function's `temporaries` does not.
    """
    if isinstance(node, ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("setdefault", "append", "put", "update")
    if not isinstance(node, ast.Subscript | ast.Attribute) or not isinstance(node.ctx, ast.Store):
        return False
    return not (isinstance(node.value, ast.Name) and node.value.id in temporaries)
