"""Edits of a small project's sources: some change nothing, and mutants that change something."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

Files = dict[str, bytes]
MAIN, BESIDE = "kernels/scale.py", "kernels/sizes.py"

_MAIN = '''\
"""Scales a tensor."""

from __future__ import annotations

import os
import math
import functools
import torch
import triton
import triton.language as tl
from .sizes import rounded

FAST = os.environ.get("SCALE_FAST", "1") == "1"
LIMIT = 1 << 16
torch.backends.cuda.matmul.allow_tf32 = True


@functools.lru_cache(maxsize=8)
def blocks(rows, width=128):
    """How many blocks there are."""
    found = math.ceil(rows / width)
    return max(found, 1) if FAST else found + 1


def widths(size):
    quarter = math.ceil(size / 4)
    return quarter * 4


def halves(values):
    kept = []
    for value in values:
        part = value // 2
        if part > 0 and value < LIMIT:
            kept.append(part)
    return kept or [1]


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 64}, num_warps=2, num_stages=3),
        triton.Config({"BLOCK": 128}, num_warps=4, num_stages=2),
    ],
    key=["n"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr = True):
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    shift: tl.constexpr = 3
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in tl.range(0, 4, num_stages=2):
        value = tl.load(x_ptr + offsets + step, mask=mask, other=0.0)
        total += value * factor - shift
    if EVEN:
        tl.store(y_ptr + offsets, total, mask=mask)
    else:
        tl.store(y_ptr + offsets, -total, mask=mask & (offsets >= 0))


class Scale(torch.autograd.Function):
    """With a backward."""

    @staticmethod
    def forward(ctx, x, factor: float = 2.0):
        """Double it."""
        ctx.factor = factor
        rows = rounded(x.shape[0])
        return x * factor + 0 * rows

    @staticmethod
    def backward(ctx, grad):
        result = grad * ctx.factor
        return result, None


@torch.compile(fullgraph=True, dynamic=False)
def scale(x, *, factor=2.0, in_place=False):
    """Scale x."""
    out = x if in_place else torch.empty_like(x)
    grid = (blocks(widths(x.numel())), *halves([1]))
    scale_kernel[grid](x, out, x.numel(), factor)
    weights = {key: value * 2 for key, value in zip("ab", halves([8, 16]), strict=True)}
    ordered = sorted(weights.items(), key=lambda item: -item[1])
    try:
        return out.mul_(len(ordered) / 2.0)
    except (RuntimeError, ValueError) as error:
        raise SystemExit("no") from error
'''
_BESIDE = '''\
"""Sizes."""

import math

LEAST = 16


def rounded(size):
    steps = math.ceil(size / 16)
    return steps * 16


def padded(size, to=32):
    rest = size % to
    return size if rest == 0 else size + to - rest
'''


def project() -> Files:
    """Return the sources: two kernels' files, a table, and a compiled source."""
    return {
        "kernels/__init__.py": b"",
        MAIN: _MAIN.encode(),
        BESIDE: _BESIDE.encode(),
        "kernels/table.json": b'{"ms": 3}\n',
        "kernels/fast.cu": b"__global__ void f() {}\n",
    }


# Edits that change nothing a run can tell.


def comments(files: Files, dice: random.Random) -> Files:
    """Put a comment behind the ends of some statements, and blank lines between some."""
    path = dice.choice([MAIN, BESIDE])
    lines = files[path].decode().splitlines()
    statements = [n for n in ast.walk(ast.parse(files[path])) if isinstance(n, ast.stmt)]
    for place in {dice.choice(statements).end_lineno or 1 for _ in range(3)}:
        lines[place - 1] += f"  # {dice.random()}"
    return {**files, path: "\n".join(lines).encode() + b"\n\n# the end\n"}


def docstrings(files: Files, dice: random.Random) -> Files:
    """Give some functions another docstring, and take those of others."""
    path = dice.choice([MAIN, BESIDE])
    tree = ast.parse(files[path])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and dice.random() < 0.5:
            if ast.get_docstring(node) is not None:
                del node.body[0]
            if dice.random() < 0.5 or not node.body:
                node.body.insert(0, ast.Expr(ast.Constant(f"Text {dice.random()}.")))
    return {**files, path: ast.unparse(tree).encode()}


HARMLESS: tuple[Callable[[Files, random.Random], Files], ...] = (comments, docstrings)


# Mutants: each changes what is computed, launched or configured.

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.FloorDiv,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.BitAnd: ast.BitOr,
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
}


@cache
def mutants() -> list[tuple[str, Files]]:
    """Return a description and the files of each mutant."""
    return [*_mutants()]


def _mutants() -> Iterator[tuple[str, Files]]:
    files = project()
    for path in (MAIN, BESIDE):
        tree = ast.parse(files[path])
        for number in range(len([*ast.walk(tree)])):
            node = [*ast.walk(tree)][number]
            if isinstance(node, ast.Constant) and _is_docstring(node, tree):
                continue
            what = _mutate(node, tree)
            if what:
                text = ast.unparse(ast.fix_missing_locations(tree)).encode()
                yield f"{path}:{getattr(node, 'lineno', 0)} {what}", {**files, path: text}
                tree = ast.parse(files[path])
    for path in ("kernels/table.json", "kernels/fast.cu"):
        yield f"{path} edited", {**files, path: files[path] + b" "}
        yield f"{path} removed", {name: text for name, text in files.items() if name != path}
    yield "a table more", {**files, "kernels/other.json": b"{}"}
    yield "a module that hides another", {**files, "torch.py": b"def f():\n    return 1\n"}


def _mutate(node: ast.AST, tree: ast.Module) -> str:
    """Change a node and return what was done to it, "" where nothing is."""
    for field, value in ast.iter_fields(node):
        other = _OPERATORS.get(type(value))
        if other is not None:
            setattr(node, field, other())
            return f"{type(value).__name__} -> {other.__name__}"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        node.ops[0] = _OPERATORS[type(node.ops[0])]()  # type: ignore[call-overload]
        return "another comparison"
    if isinstance(node, ast.Constant):
        known: Any = node.value
        if isinstance(known, bool) or known is None:
            node.value = not known
        else:
            node.value = known + (" " if isinstance(known, str) else 1)
        return f"constant {known!r} -> {node.value!r}"
    if isinstance(node, ast.keyword) and node.arg:
        node.arg += "_"
        return f"keyword {node.arg}"
    if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
        node.elts.pop()
        return "an element less"
    if isinstance(node, ast.Attribute):
        node.attr += "_"
        return f"attribute {node.attr}"
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        node.decorator_list.pop()
        return f"{node.name} loses a decorator"
    if isinstance(node, ast.AnnAssign):
        node.annotation = ast.Name("int")
        return "another annotation of a local"
    if isinstance(node, ast.arg) and node.annotation:
        node.annotation = None
        return f"parameter {node.arg} loses its annotation"
    if isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "the other branch"
    if isinstance(node, ast.Call) and len(node.args) > 1:
        node.args.reverse()
        return "arguments exchanged"
    if isinstance(node, ast.Return) and node.value:
        node.value = ast.Tuple([node.value], ast.Load())
        return "another result"
    last = tree.body[-1]
    if isinstance(last, ast.FunctionDef) and isinstance(node, ast.Assign) and node in last.body:
        last.body.remove(node)
        return "a statement less"
    return ""


def _is_docstring(node: ast.Constant, tree: ast.Module) -> bool:
    return any(
        isinstance(owner, ast.Module | ast.FunctionDef | ast.ClassDef)
        and isinstance(owner.body[0], ast.Expr)
        and owner.body[0].value is node
        for owner in ast.walk(tree)
    )
