"""Names and attributes: where a value is found, and what of it may be left from earlier calls."""

from __future__ import annotations

import ast
import builtins

from pytest_kopt.honesty.audit.calls import Calls
from pytest_kopt.honesty.audit.machine import NAMESPACE
from pytest_kopt.honesty.audit.trace import Read
from pytest_kopt.honesty.audit.values import (
    NOTHING,
    Fact,
    Object,
    Tag,
    Value,
    flat,
    join_all,
)
from pytest_kopt.honesty.audit.vocabulary import names

_BUILTINS = frozenset(dir(builtins))
#: Attributes by which one frame leads to another, and to what is in them.
FRAMES = names("f_back f_locals f_globals f_builtins tb_frame gi_frame cr_frame")


class Attributes(Calls):
    """Lookups, in scopes and in objects."""

    def lookup(self, name: str) -> Value:
        """Return the value of a name, from the innermost scope that has it."""
        frame: Object | None = self.here.frame
        while frame is not None:
            # A class's names are not seen from the functions in it.
            hidden = frame.kind == "class" and frame is not self.here.frame
            if name in frame.fields and not hidden:
                return self.load((frame, name))
            frame = frame.frame
        if name in _BUILTINS:
            return Value(externals=frozenset({f"builtins.{name}"}))
        return NOTHING

    def attribute(self, base: Value, name: str, node: ast.AST) -> Value:
        base = flat(base) if base.facts or base.objects else base
        results: list[Value] = []
        for external in base.externals:
            dotted = f"{external}.{name}"
            self.trace.reads.append(Read(dotted, self.site(node)))
            if len(dotted) < 200:
                results.append(Value(externals=frozenset({dotted})))
        if name in FRAMES:
            self.trace.reads.append(Read(f"frame.{name}", self.site(node)))
        results += [self._attribute_of(base, obj, name, node) for obj in base.objects]
        if base.tensor or base.has(Tag.RAW):
            found = self.tensor_attribute(self.resolved(base), name)
            if found is not None:
                return found
        elif base.facts and not results:
            kept = frozenset(f for f in base.facts if f[0] is not Tag.RAW)
            results.append(Value(kept))
        if any(result != NOTHING for result in results):
            return join_all(results)
        bound = self.new("bound", node)
        bound.path = name
        bound.fields["self"] = base
        return Value(objects=frozenset({bound})) if base != NOTHING else NOTHING

    def _attribute_of(self, base: Value, obj: Object, name: str, node: ast.AST) -> Value:
        if name == "__dict__":
            return Value(base.facts | {(Tag.MARK, NAMESPACE)}, frozenset({obj}))
        if name == "__class__":
            return Value(objects=frozenset(obj.classes))
        if name in obj.fields:
            # A part of what may be left over is left over too.
            return self.load((obj, name)).plus(inherited(base))
        if obj.kind in ("instance", "class"):
            found = self.find(obj, name)
            if found is None:
                return NOTHING
            if any("property" in o.flags for o in found.objects):
                return self.call(found, [Value(base.facts, frozenset({obj}))], {}, node)
            if any(o.kind == "function" for o in found.objects):
                return self._bound(base, obj, name, node)
            return found
        if obj.kind == "module":
            return self.missing(obj, name, node)
        if obj.kind in ("dict", "list", "set"):
            return self._bound(base, obj, name, node)
        return NOTHING

    def missing(self, module: Object, name: str, node: ast.AST) -> Value:
        """Return what a module's own `__getattr__` gives for a name that it does not have."""
        hook = module.fields.get("__getattr__")
        if hook is None:
            return NOTHING
        return self.call(hook, [Value(texts=frozenset({name}))], {}, node)

    def _bound(self, base: Value, obj: Object, name: str, node: ast.AST) -> Value:
        bound = self.new("bound", node)
        bound.path = name
        bound.fields["self"] = Value(base.facts, frozenset({obj}))
        return Value(objects=frozenset({bound}))


def inherited(whole: Value) -> frozenset[Fact]:
    """Return what holds of the parts of a value because it holds of the whole."""
    return frozenset(f for f in whole.facts if f[0] in (Tag.STALE, Tag.REPLAY))
