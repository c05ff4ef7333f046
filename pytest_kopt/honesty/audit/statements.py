"""Statements of a kernel's file: which paths there are, and what holds on each."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pytest_kopt.honesty.audit.attributes import inherited
from pytest_kopt.honesty.audit.calls import Function
from pytest_kopt.honesty.audit.definitions import Definitions
from pytest_kopt.honesty.audit.trace import Check, Read
from pytest_kopt.honesty.audit.values import (
    NOTHING,
    Fact,
    Object,
    Tag,
    Value,
    computed,
    flat,
)

_SIMPLE = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return
SWALLOWED = "a failure of the kernel's was swallowed"
#: What a handler must catch to hide a failure of any kind.
_BROAD = frozenset({"builtins.Exception", "builtins.BaseException", "builtins.RuntimeError"})


class Statements(Definitions):
    """Execution. A method says whether its statement always leaves the block."""

    def run_body(self, definition: Function) -> Value:
        if isinstance(definition, ast.Lambda):
            value = self.evaluate(definition.body)
            self.returned(value, definition.body)
            return value
        if not self.run(definition.body):
            self.here.returns.append((NOTHING, self.flow.copy()))
        return NOTHING

    def run(self, body: Sequence[ast.stmt]) -> bool:
        """Follow statements; say whether they always leave the block that holds them."""
        depth = len(self.controls)
        try:
            for statement in body:
                self.steps += 1
                self.statement = statement if isinstance(statement, _SIMPLE) else None
                method = self._statements.get(type(statement))
                if method is not None and method(self, statement):
                    return True
            return False
        finally:
            del self.controls[depth:]

    # -- paths

    def _if(self, node: ast.If) -> bool:
        if _is_main_guard(node.test):
            return bool(node.orelse) and self.run(node.orelse)
        control = self.truth(self.evaluate(node.test)).facts
        before = self.snapshot()
        self.under(control)
        left = self.run(node.body)
        after = self.snapshot()
        self.restore(before)
        right = self.run(node.orelse)
        self.controls.pop()
        if left and right:
            return True
        if right:
            self.restore(after)
        elif not left:
            self.restore(self.merge(after, self.snapshot()))
        if left or right:
            # The rest of the block runs only because the other branch was not taken.
            self.under(control)
        return False

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> bool:
        if isinstance(node, ast.While):
            control = self.truth(self.evaluate(node.test)).facts
        else:
            source = self.evaluate(node.iter)
            self.walked(source, node.iter)
            self.assign(node.target, self.elements_of(source))
            control = frozenset()
        before = self.snapshot()
        outer, self.here.loop_exits = self.here.loop_exits, []
        self.under(control)
        left = self.run(node.body)
        self.controls.pop()
        exits, self.here.loop_exits = self.here.loop_exits, outer
        # A loop is taken to run at least once.
        states = [*exits, *([] if left else [self.snapshot()])]
        state = states[0] if states else before
        for other in states[1:]:
            state = self.merge(state, other)
        names = self.merge(before, state)[0]
        self.restore((names, state[1]))
        self.run(node.orelse)
        return False

    def _leave_loop(self, node: ast.stmt) -> bool:
        self.here.loop_exits.append(self.snapshot())
        return True

    def _try(self, node: ast.Try) -> bool:
        before = self.snapshot()
        launches = len(self.trace.launches)
        returned = len(self.here.returns)
        left = self.run(node.body)
        launched = len(self.trace.launches) > launches
        if not left:
            left = self.run(node.orelse)
        states = [] if left else [self.snapshot()]
        body_end = self.snapshot()
        read: set[Fact] = {
            fact
            for value, _ in self.here.returns[returned:]
            for fact in value.facts
            if fact[0] is Tag.STALE
        }
        read |= {f for v in body_end[0].values() for f in v.facts if f[0] is Tag.STALE}
        read |= {(Tag.STALE, location) for location in self._looked_up(node.body)}
        residual: frozenset[Fact] = frozenset()
        for handler in node.handlers:
            self.restore((self.merge(before, body_end)[0], before[1].copy()))
            control = frozenset(read)
            if launched and self._broad(handler):
                control |= {(Tag.MARK, SWALLOWED)}
                self.flow.launched = False
            self.under(control)
            if handler.name:
                self.here.frame.fields[handler.name] = NOTHING
            gone = self.run(handler.body)
            self.controls.pop()
            if not gone:
                states.append(self.snapshot())
                residual |= control if left else frozenset()
        if states:
            state = states[0]
            for other in states[1:]:
                state = self.merge(state, other)
            self.restore(state)
        if self.run(node.finalbody):
            return True
        if states and residual:
            self.under(residual)
        return not states

    def _looked_up(self, body: Sequence[ast.stmt]) -> list[tuple[Object, str]]:
        """Return the containers that a `try` looks something up in: a miss is its failure."""
        found = []
        for statement in body:
            for part in ast.walk(statement):
                if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name):
                    value = self.lookup(part.value.id)
                    found += [(o, "[]") for o in value.objects if o.kind == "dict"]
        return found

    def _broad(self, handler: ast.ExceptHandler) -> bool:
        return handler.type is None or bool(self.evaluate(handler.type).externals & _BROAD)

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        side, managers = False, list[tuple[Value, ast.expr]]()
        for item in node.items:
            value = self.evaluate(item.context_expr)
            side = side or self._on_own_stream(value)
            entered = value
            for external in value.externals:
                self.trace.reads.append(Read(f"with {external}", self.site(item.context_expr)))
            if any(o.kind == "instance" for o in value.objects):
                entered = self.call_method(value, "__enter__", [], {}, item.context_expr)
                entered = entered if entered != NOTHING else value
                managers.append((value, item.context_expr))
            if item.optional_vars is not None:
                self.assign(item.optional_vars, entered)
        if side:
            self.flow.pending |= {node}
        left = self.run(node.body)
        for value, place in reversed(managers):
            self.call_method(value, "__exit__", [NOTHING] * 3, {}, place)
        if side:
            # A wait inside is the side stream's own.
            self.flow.pending |= {node}
        return left

    def _on_own_stream(self, value: Value) -> bool:
        """Say whether a `with` makes a stream current that the kernel itself has made."""
        if not any(e.endswith(".cuda.stream()") for e in value.externals):
            return False
        given = [a for a in self.trace.calls[-1].arguments if a.externals]
        return any("Stream()" in name for value in given for name in value.externals)

    def _match(self, node: ast.Match) -> bool:
        control = self.truth(self.evaluate(node.subject)).facts
        before = self.snapshot()
        states = [before]
        self.under(control)
        for case in node.cases:
            self.restore(before)
            if not self.run(case.body):
                states.append(self.snapshot())
        self.controls.pop()
        state = states[0]
        for other in states[1:]:
            state = self.merge(state, other)
        self.restore(state)
        return False

    def _return(self, node: ast.Return) -> bool:
        value = self.evaluate(node.value)
        self.returned(value, node)
        self.here.returns.append((value, self.flow.copy()))
        return True

    def returned(self, value: Value, node: ast.AST) -> None:
        """Record a return where the function is the one that following began with."""

    def _raise(self, node: ast.Raise) -> bool:
        self.evaluate(node.exc)
        return True

    # -- bindings

    def _assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        frame = self.here.frame
        if isinstance(node.target, ast.Name) and frame.kind == "class":
            frame.fields[f"annotated {node.target.id}"] = NOTHING
            if isinstance(node.value, ast.Call):
                for keyword in node.value.keywords:
                    if keyword.arg == "default_factory":
                        factory = self.evaluate(keyword.value)
                        frame.fields[f"factory {node.target.id}"] = factory
                        return
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        right = self.evaluate(node.value)
        target: Any = node.target
        old = self.evaluate(target)
        if old.tensor:
            self.write_tensor(flat(old), [self.deep(right)], whole=False)
        if len(old.texts) == 1 and len(right.texts) == 1 and isinstance(node.op, ast.Add):
            new = Value(texts=frozenset({next(iter(old.texts)) + next(iter(right.texts))}))
        else:
            mixed = computed([self.deep(old), self.deep(right)])
            new = Value(mixed.facts, old.objects, old.externals, mixed.texts)
        for obj in old.objects:
            if obj.kind in ("list", "dict", "set"):
                held = self.elements_of(right)
                self.assign_item(Value(objects=frozenset({obj})), NOTHING, held, node)
        self.assign(target, new)

    def assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._bind_name(target, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value)
        elif isinstance(target, ast.Attribute):
            base = self.evaluate(target.value)
            self.assign_attribute(base, [target.attr], value, target)
        elif isinstance(target, ast.Subscript):
            base, key = self.evaluate(target.value), self.evaluate(target.slice)
            self.assign_item(base, key, value, target)

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        if value.items is not None and len(value.items) == len(targets):
            for target, item in zip(targets, value.items, strict=True):
                self.assign(target, item.plus(inherited(value)))
            return
        held = self.elements_of(value)
        for target in targets:
            self.assign(target, held)

    def _bind_name(self, target: ast.Name, value: Value) -> None:
        here, name = self.here, target.id
        frame: Object | None = here.frame
        if name in here.module_names:
            while frame is not None and frame.kind != "module":
                frame = frame.frame
        elif name in here.outer:
            frame = here.frame.frame
            while frame is not None and name not in frame.fields:
                frame = frame.frame
        if frame is None or frame is here.frame:
            here.frame.fields[name] = value
        else:
            self.store((frame, name), value, NOTHING, target)

    def _scope(self, node: ast.Global | ast.Nonlocal) -> None:
        names = frozenset(node.names)
        if isinstance(node, ast.Global):
            self.here.module_names |= names
        else:
            self.here.outer |= names

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                base = self.evaluate(target.value)
                if base.externals:
                    self.patch(base, [target.attr], NOTHING, node)

    # -- the rest

    def _assert(self, node: ast.Assert) -> None:
        value = self.evaluate(node.test)
        self.trace.checks.append(Check(node.test, value, self.site(node)))

    def _expression(self, node: ast.Expr) -> None:
        self.evaluate(node.value)

    def run_source(self, text: str, node: ast.AST) -> Value:
        if len(text) > 20_000:
            return NOTHING
        try:
            tree = ast.parse(text.strip())
        except (SyntaxError, ValueError):
            return NOTHING
        for part in ast.walk(tree):
            if hasattr(part, "lineno"):
                part.lineno = getattr(node, "lineno", 0)
        if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr):
            return self.evaluate(tree.body[0].value)
        self.run(tree.body)
        return NOTHING

    _statements: ClassVar[dict[type[ast.stmt], Callable[[Statements, Any], bool | None]]] = {
        ast.If: _if,
        ast.For: _loop,
        ast.AsyncFor: _loop,
        ast.While: _loop,
        ast.Break: _leave_loop,
        ast.Continue: _leave_loop,
        ast.Try: _try,
        ast.With: _with,
        ast.AsyncWith: _with,
        ast.Match: _match,
        ast.Return: _return,
        ast.Raise: _raise,
        ast.Assign: _assign,
        ast.AnnAssign: _annotated,
        ast.AugAssign: _augmented,
        ast.Global: _scope,
        ast.Nonlocal: _scope,
        ast.Delete: _delete,
        ast.FunctionDef: Definitions._function,
        ast.AsyncFunctionDef: Definitions._function,
        ast.ClassDef: Definitions._class,
        ast.Import: Definitions._import,
        ast.ImportFrom: Definitions._import_from,
        ast.Assert: _assert,
        ast.Expr: _expression,
    }


def _is_main_guard(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and isinstance(test.ops[0], ast.Eq)
    )
