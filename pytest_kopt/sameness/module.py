"""One Python file's top level: what binds each name, and which functions can move freely."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_kopt.sameness.syntax import names_in, plain_tree, reachable

#: What may be called where a function is defined: its place among other statements is not seen.
_QUIET_CALLS = frozenset(
    {
        *("triton.jit", "triton.autotune", "triton.heuristics", "triton.Config"),
        *("functools.cache", "functools.lru_cache", "torch.compile", "torch.no_grad"),
        *("torch.inference_mode", "torch.jit.ignore", "triton.constexpr_function"),
    }
)
_DEFINED_LATER = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(slots=True)
class Module:
    """One Python file: what binds each name; dotted names of `imports` have dots if relative."""

    path: str
    body: list[ast.stmt]
    bound: Counter[str] = field(default_factory=Counter)
    imports: dict[str, str] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)

    @classmethod
    def of(cls, path: str, tree: ast.Module) -> Module:
        found = cls(path, [single for node in tree.body for single in _split(node)])
        for node in found.body:
            found.bound.update(_binds(node))
        for item in ast.walk(tree):
            if isinstance(item, ast.Global):
                found.bound.update(dict.fromkeys(item.names, 2))
        for node in found.body:
            if isinstance(node, IMPORTS):
                found.imports |= {
                    name: dotted for name, dotted in _imported(node) if found.bound[name] == 1
                }
        if "*" not in found.bound and found._is_ordered():
            found.functions = {
                node.name: node
                for node in found.body
                if isinstance(node, ast.FunctionDef) and found._is_quiet(node)
            }
        return found

    def dotted(self, node: ast.AST) -> str:
        """Return what an expression like `tl.load` is called where it comes from, "" if unknown."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return ""
        return ".".join([self.imports[node.id], *reversed(parts)])

    def _is_quiet(self, node: ast.FunctionDef) -> bool:
        """Say whether nobody can tell where in its file a function is defined."""
        if self.bound[node.name] != 1 or any(name.startswith("__") for name in names_in(node)):
            return False
        calls = [item for item in node.decorator_list if not isinstance(item, ast.Call)]
        calls += [
            item.func
            for part in _at_definition(node)
            for item in _outside_functions(part)
            if isinstance(item, ast.Call)
        ]
        if any(self.dotted(call) not in _QUIET_CALLS for call in calls):
            return False
        eager = {name for part in _at_definition(node) for name in names_in(part)}
        return all(name in self.imports or self.is_fixed(name) for name in eager & {*self.bound})

    def is_free(self, node: ast.stmt) -> bool:
        """Say whether a statement only defines a function that may stand anywhere."""
        return isinstance(node, ast.FunctionDef) and node.name in self.functions

    def is_fixed(self, name: str) -> bool:
        """Say whether a name is given a constant, once."""
        return self.bound[name] == 1 and any(
            _assigns_constant(node) and name in _binds(node) for node in self.body
        )

    def _is_ordered(self) -> bool:
        """Say whether what each statement runs is defined before it, as far as names tell."""
        bodies = {
            node.name: names_in(node)
            for node in self.body
            if isinstance(node, (*_DEFINED_LATER, ast.ClassDef))
        }
        known: set[str] = set()
        for node in self.body:
            known |= _binds(node)
            at_once = {
                item.id
                for item in _outside_functions(node)
                if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)
            }
            if not reachable(at_once, bodies) & {*self.bound} <= known:
                return False
        return True


@functools.lru_cache(maxsize=1024)
def module_of(path: str, content: bytes | None) -> Module | None:
    """Return a file's top level; None for one that is not there or whose text counts."""
    tree = plain_tree(content) if content is not None else None
    return Module.of(path, tree) if tree else None


def _split(node: ast.stmt) -> Sequence[ast.stmt]:
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return [node]


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield each name that an import binds, and the dotted name of what it is."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            joint = "" if module.endswith(".") or not module else "."
            yield alias.asname or alias.name, f"{module}{joint}{alias.name}"
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            yield (alias.name.partition(".")[0],) * 2


def _binds(node: ast.stmt) -> set[str]:
    """Return the names that a statement of the top level binds, deleted ones included."""
    found = set()
    for item in _outside_functions(node):
        if isinstance(item, (*_DEFINED_LATER, ast.ClassDef)):
            found.add(item.name)
        elif isinstance(item, IMPORTS):
            found |= {name for name, _ in _imported(item)}
        elif isinstance(item, ast.Name) and not isinstance(item.ctx, ast.Load):
            found.add(item.id)
        elif isinstance(item, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and item.name:
            found.add(item.name)
        elif isinstance(item, ast.MatchMapping) and item.rest:
            found.add(item.rest)
    return found


def _at_definition(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.AST]:
    return [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is below it, not the bodies of functions; a lambda's is."""
    yield node
    parts = ast.iter_child_nodes(node)
    if isinstance(node, _DEFINED_LATER):
        parts = iter(_at_definition(node))
    for part in parts:
        yield from _outside_functions(part)


def _assigns_constant(node: ast.stmt) -> bool:
    """Say whether a statement gives names a value of literals, which nothing can change."""
    plain = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator, ast.Load)
    return (
        isinstance(node, ast.Assign)
        and all(isinstance(target, ast.Name) for target in node.targets)
        and all(isinstance(item, plain) for item in ast.walk(node.value))
    )
