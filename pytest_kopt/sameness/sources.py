"""Which files of two versions hold other code, and which of that a function can run.

Sources are compared, and nothing is imported. Comments, docstrings and layout are set aside.
Everything else counts, and every file that is no Python, or that could read its own text, counts by
its bytes.

A function can only run another one that something names: its own code, code that it runs, or what
runs while a file is imported. Names are followed as words, wherever they lead, in every file that
it imports; a file that looks names up which stand nowhere makes the answer "any".
"""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pytest_kopt.imports import imports_at

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
#: What reaches an object by a name that need not stand in any source.
_LOOKS_UP = frozenset(
    {
        *("getattr", "attrgetter", "methodcaller", "import_module", "__import__", "modules"),
        *("__globals__", "__getattribute__", "__builtins__", "run_path", "exec_module"),
    }
)
#: What may be called where a function is defined: it runs nothing of the project's.
_QUIET_CALLS = frozenset(
    {
        *("triton.jit", "triton.autotune", "triton.heuristics", "triton.Config"),
        *("functools.cache", "functools.lru_cache", "torch.compile", "torch.no_grad"),
        *("torch.inference_mode", "torch.jit.ignore", "triton.constexpr_function"),
    }
)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: What a constant consists of: nothing can change it.
_LITERAL = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator, ast.Load)


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


def unreached(
    name: str, before: Mapping[str, bytes], after: Mapping[str, bytes], changed: Iterable[str]
) -> frozenset[tuple[str, str]] | None:
    """Return the functions that differ, by path and name, where function `name` runs none of them.

    None where it may run one, and where the changed files differ in more than plain functions.
    `before` and `after` are all files that importing the function's own can run, by their paths.
    """
    differing, unwanted = set[tuple[str, str]](), {*_LOOKS_UP}
    for path in changed:
        if before.get(path) == after.get(path):
            continue
        old, new = (_module(files.get(path)) for files in (before, after))
        if old is None or new is None:
            return None
        both = old.functions.keys() & new.functions.keys()
        if [*old.outline(both)] != [*new.outline(both)]:
            return None
        forms, others = ({n: ast.dump(f) for n, f in m.functions.items()} for m in (old, new))
        names = {n for n in {**forms, **others} if forms.get(n) != others.get(n)}
        if name in names:
            return None
        differing |= {(path, n) for n in names}
        unwanted |= names | old.state_of(names) | new.state_of(names)
    for files in (before, after):
        words = _reached(name, files)
        if words is None or words & unwanted:
            return None
    return frozenset(differing)


@dataclass(frozen=True, slots=True)
class _Module:
    """One Python file's top level."""

    body: list[ast.stmt]
    #: The plain functions by name: to define one runs no code of the project.
    functions: dict[str, ast.FunctionDef]
    #: Other names that the top level binds, except constants and imports that nothing binds again.
    variables: frozenset[str]

    def outline(self, names: Collection[str]) -> Iterator[str]:
        """Yield the statements in order, of plain functions the names among `names` alone."""
        for node in self.body:
            if not (isinstance(node, ast.FunctionDef) and node.name in self.functions):
                yield ast.dump(node)
            elif node.name in names:
                yield node.name

    def state_of(self, names: Iterable[str]) -> set[str]:
        """Return the variables that some of the plain functions use."""
        nodes = (self.functions[name] for name in names if name in self.functions)
        return set[str]().union(*map(_words, nodes)) & self.variables


@functools.lru_cache(maxsize=1024)
def _module(content: bytes | None) -> _Module | None:
    """Return a file's top level; None for one that is not there or whose text counts."""
    tree = code_tree(content) if content is not None else None
    if tree is None:
        return None
    bound, imports = Counter[str](), dict[str, str]()
    for node in _outside_functions(tree):
        if imported := dict(statement.bound for statement in imports_at(node)):
            imports |= imported
            bound.update(imported.keys())
        elif isinstance(node, ast.Name):
            bound.update([] if isinstance(node.ctx, ast.Load) else [node.id])
        elif not isinstance(node, ast.alias):
            # def, class, except … as name, case name, case {**rest}
            names = (getattr(node, attribute, None) for attribute in ("name", "rest"))
            bound.update(name for name in names if isinstance(name, str))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            bound.update(2 * node.names)
    fixed = {name for name in {*imports, *_constants(tree)} if bound[name] == 1}
    variables = bound.keys() - fixed
    functions = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        # A star import may bind any name again.
        and (bound[node.name], bound["*"]) == (1, 0)
        and _is_plain(node, {name: imports[name] for name in fixed & {*imports}}, variables)
    }
    return _Module(tree.body, functions, frozenset(variables - functions.keys()))


def _is_plain(
    function: ast.FunctionDef, imports: Mapping[str, str], variables: Collection[str]
) -> bool:
    """Say whether a function's definition makes quiet calls only, and reads no variable."""
    calls: list[ast.expr] = [d for d in function.decorator_list if not isinstance(d, ast.Call)]
    for node in _outside_functions(function):
        if isinstance(node, ast.Name) and node.id in variables:
            return False
        if isinstance(node, ast.Call):
            calls.append(node.func)
    parts = (ast.unparse(call).partition(".") for call in calls)
    return all(imports.get(head, "") + dot + rest in _QUIET_CALLS for head, dot, rest in parts)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the nodes below it that run with it: no bodies of functions."""
    yield node
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, _FUNCTION):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _outside_functions(child)


def _constants(tree: ast.Module) -> Iterator[str]:
    """Yield the names that statements of the top level give a value of literals."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and all(
            isinstance(part, _LITERAL) for part in ast.walk(node.value)
        ):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _reached(name: str, files: Mapping[str, bytes]) -> set[str] | None:
    """Return every word that a function can come by, None where a file's text counts."""
    waiting, leads = {name}, dict[str, set[str]]()
    for content in files.values():
        module = _module(content)
        if module is None:
            return None
        for node in module.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                # An import runs no function; what it is called here leads to what it is.
                for alias in node.names:
                    leads.setdefault(alias.asname or alias.name, set()).add(alias.name)
            elif not (
                _is_list_of_names(node)
                or (isinstance(node, ast.FunctionDef) and node.name in module.functions)
            ):
                waiting |= _words(node)
        for own, function in module.functions.items():
            leads.setdefault(own, set()).update(_words(function))
    reached = set[str]()
    while waiting:
        word = waiting.pop()
        reached.add(word)
        waiting |= leads.get(word, set()) - reached
    return reached


def _is_list_of_names(node: ast.stmt) -> bool:
    """Say whether a statement is `__all__ = [...]`, whose strings look up nothing."""
    match node:
        case ast.Assign([ast.Name("__all__")], ast.List(names) | ast.Tuple(names)):
            return all(isinstance(name, ast.Constant) for name in names)
        case _:
            return False


def _words(tree: ast.AST) -> set[str]:
    """Return the names in some code, those in its strings included."""
    words, spelled_out = set[str](), set[ast.AST]()
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("getattr") as function, [_, ast.Constant(), *_]):
                spelled_out.add(function)
            case ast.Name(name) if node not in spelled_out:
                words.add(name)
            case ast.Attribute(_, name):
                words.add(name)
            case ast.alias(name, short):
                words |= {*name.split("."), short or ""}
            case ast.Constant(str(text)):
                words |= {*re.findall(r"\w+", text)}
            case _:
                pass
    return words
