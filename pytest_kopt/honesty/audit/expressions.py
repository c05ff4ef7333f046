"""Expressions of a kernel's file, evaluated to what the audit knows of their values."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pytest_kopt.honesty.audit.attributes import Attributes, inherited
from pytest_kopt.honesty.audit.calls import LAUNCHER
from pytest_kopt.honesty.audit.machine import NAMESPACE, Exhausted
from pytest_kopt.honesty.audit.trace import Comparison, Read
from pytest_kopt.honesty.audit.values import (
    NOTHING,
    Object,
    Tag,
    Value,
    computed,
    flat,
    join,
    join_all,
    pack,
)

#: Marks a comparison of numbers that were read from a tensor's elements.
ELEMENTS = "elements"


class Expressions(Attributes):
    """Evaluation, one method for each kind of expression."""

    def evaluate(self, node: ast.expr | None) -> Value:
        """Return what is known of an expression's value."""
        if node is None:
            return NOTHING
        self.steps += 1
        if self.steps > self.limit:
            raise Exhausted
        method = self._methods.get(type(node))
        return method(self, node) if method else NOTHING

    def evaluate_all(self, nodes: Sequence[ast.expr]) -> list[Value]:
        """Evaluate several expressions, a starred one to what its elements may be."""
        values: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                spread = self.evaluate(node.value)
                if spread.items is not None:
                    values += spread.items
                else:
                    values.append(self.elements_of(spread))
            else:
                values.append(self.evaluate(node))
        return values

    # -- names and attributes

    def _constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, str):
            return Value(texts=frozenset({node.value}))
        if isinstance(node.value, bytes):
            return Value(texts=frozenset({node.value.decode("latin1")}))
        return NOTHING

    def _name(self, node: ast.Name) -> Value:
        return self.lookup(node.id)

    def _attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.evaluate(node.value), node.attr, node)

    def _subscript(self, node: ast.Subscript) -> Value:
        base, key = self.evaluate(node.value), self.evaluate(node.slice)
        if base.items is not None:
            index = node.slice
            if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
                index = index.operand
                sign = -1
            else:
                sign = 1
            if isinstance(index, ast.Constant) and isinstance(index.value, int):
                at = sign * index.value
                if -len(base.items) <= at < len(base.items):
                    return base.items[at].plus(inherited(base))
            base = flat(base)
        if len(base.texts) == 1 and isinstance(node.slice, ast.Slice) and not base.facts:
            return self._sliced(next(iter(base.texts)), node.slice)
        results = [Value(base.facts, texts=base.texts)]
        for obj in base.objects:
            if obj.kind in ("dict", "list", "set") or base.marked(NAMESPACE):
                results.append(self.load_item(base, obj, key))
            elif obj.kind == "tensor":
                results.append(Value(objects=frozenset({obj})))
            elif obj.kind == "function":
                # kernel[grid]: also where autotuners wrap the function.
                results.append(Value(frozenset({(Tag.MARK, LAUNCHER)})))
            elif self.find(obj, "__getitem__"):
                itself = Value(base.facts, frozenset({obj}))
                results.append(self.call_method(itself, "__getitem__", [key], {}, node))
        for external in base.externals:
            if external == "sys.modules":
                results += [
                    Value(objects=frozenset({module}))
                    for text in key.texts
                    if (module := self.own_module(text)) is not None
                ]
                if results[1:]:
                    continue
            if external.endswith("__dict__") or external in ("sys.modules", "os.environ"):
                parts = sorted(key.texts) or ["?"]
                names = frozenset(f"{external}.{part}" for part in parts)
                results.append(Value(externals=names))
                for name in sorted(names):
                    self.trace.reads.append(Read(name, self.site(node)))
            elif external.partition(".")[0] not in ("torch", "numpy", "typing", "builtins"):
                results.append(Value(frozenset({(Tag.MARK, LAUNCHER)})))
        return join_all(results)

    @staticmethod
    def _sliced(text: str, where: ast.Slice) -> Value:
        try:
            parts = [
                None if part is None else ast.literal_eval(part)
                for part in (where.lower, where.upper, where.step)
            ]
            return Value(texts=frozenset({text[slice(*parts)]}))
        except (ValueError, TypeError):
            return Value(texts=frozenset({text}))

    # -- operators

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if isinstance(node.op, ast.Add):
            if left.items is not None and right.items is not None:
                return pack([*left.items, *right.items])
            if len(left.texts) == 1 and len(right.texts) == 1 and not left.facts | right.facts:
                return Value(texts=frozenset({next(iter(left.texts)) + next(iter(right.texts))}))
        if isinstance(node.op, ast.MatMult):
            self.used_as_tensor(flat(left), flat(right))
        result = computed([self.deep(left), self.deep(right)])
        paths = left.externals | right.externals
        return Value(result.facts, result.objects, paths, result.texts) if paths else result

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        return self.truth(value) if isinstance(node.op, ast.Not) else computed([self.deep(value)])

    def truth(self, value: Value) -> Value:
        """Return what a decision made on a value depends on."""
        looked = {
            (Tag.STALE, (obj, "[]")) for obj in value.objects if obj.kind in ("dict", "list", "set")
        }
        return Value(flat(value).facts | looked, externals=value.externals, texts=value.texts)

    def _boolean(self, node: ast.BoolOp) -> Value:
        depth = len(self.controls)
        values = []
        for operand in node.values:
            value = self.evaluate(operand)
            values.append(value)
            self.under(self.truth(value).facts)
        del self.controls[depth:]
        return join_all(values)

    def _compare(self, node: ast.Compare) -> Value:
        operands = [self.evaluate(node.left), *(self.evaluate(c) for c in node.comparators)]
        self.trace.comparisons.append(Comparison(tuple(operands), self.site(node)))
        identity = any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
        none = any(_is_none(each) for each in (node.left, *node.comparators))
        facts = set()
        for operand in operands:
            for tag, about in self.truth(operand).facts:
                if tag in (Tag.RAW, Tag.DATA):
                    # `is`, `==`: which object it is, or what it holds. Against None: neither.
                    if not none:
                        facts.add((Tag.IDENTITY if identity else Tag.CONTENT, about))
                elif tag is not Tag.REPLAY:
                    facts.add((tag, about))
                if tag is Tag.CONTENT:
                    facts.add((Tag.MARK, ELEMENTS))
        texts = frozenset().union(*(o.texts for o in operands))
        return Value(frozenset(facts), texts=texts)

    def _conditional(self, node: ast.IfExp) -> Value:
        self.under(self.truth(self.evaluate(node.test)).facts)
        before = self.flow.copy()
        first = self.evaluate(node.body)
        after, self.flow = self.flow, before
        second = self.evaluate(node.orelse)
        self.flow = self.flow.meet(after)
        self.controls.pop()
        return join(first, second)

    # -- calls

    def _call(self, node: ast.Call) -> Value:
        arguments = None
        if isinstance(node.func, ast.Attribute):
            base = self.evaluate(node.func.value)
            name = node.func.attr
            arguments = self.evaluate_all(node.args)
            keywords = self._keywords(node)
            if name == "join" and len(base.texts) == 1 and node.args:
                folded = self._joined(next(iter(base.texts)), node.args[0])
                if folded is not None:
                    return folded
            if base.externals and not base.objects:
                for external in base.externals:
                    self.trace.reads.append(Read(f"{external}.{name}", self.site(node)))
            if isinstance(node.func.value, ast.Call) and _is_super(node.func.value):
                return self._super(name, arguments, keywords, node)
            return self.call_method(base, name, arguments, keywords, node)
        callee = self.evaluate(node.func)
        arguments = self.evaluate_all(node.args)
        return self.call(callee, arguments, self._keywords(node), node)

    def _super(
        self, name: str, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        itself = self.here.frame.fields.get("self", NOTHING)
        for obj in itself.objects:
            for cls in [c for start in obj.classes for c in self.family(start)][1:]:
                if name in cls.fields:
                    return self.call(cls.fields[name], [itself, *arguments], keywords, node)
        return NOTHING

    def _keywords(self, node: ast.Call) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is None:
                found["**"] = join(found.get("**", NOTHING), self.elements_of(value))
            else:
                found[keyword.arg] = value
        return found

    def _joined(self, separator: str, node: ast.expr) -> Value | None:
        if isinstance(node, ast.List | ast.Tuple):
            values = self.evaluate_all(node.elts)
            if all(len(v.texts) == 1 and not v.facts for v in values):
                return Value(texts=frozenset({separator.join(next(iter(v.texts)) for v in values)}))
        return None

    # -- displays

    def _tuple(self, node: ast.Tuple) -> Value:
        if any(isinstance(element, ast.Starred) for element in node.elts):
            return join_all(flat(value) for value in self.evaluate_all(node.elts))
        return pack(self.evaluate_all(node.elts))

    def _list(self, node: ast.List | ast.Set) -> Value:
        obj = self.new("list" if isinstance(node, ast.List) else "set", node)
        values = self.evaluate_all(node.elts)
        if values:
            obj.fields["[]"] = join_all(values)
        return Value(objects=frozenset({obj}))

    def _dict(self, node: ast.Dict) -> Value:
        obj = self.new("dict", node)
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.evaluate(item)
            if key is None:
                name, value = "[]", self.elements_of(value)
            else:
                name = self.item_field(NOTHING, obj, self.evaluate(key))
            obj.fields[name] = join(obj.fields.get(name, NOTHING), value)
        return Value(objects=frozenset({obj}))

    def _comprehension(self, node: Any) -> Value:
        self._generators(node.generators)
        obj = self.new("dict" if isinstance(node, ast.DictComp) else "list", node)
        if isinstance(node, ast.DictComp):
            name = self.item_field(NOTHING, obj, self.evaluate(node.key))
            obj.fields[name] = self.evaluate(node.value)
            return Value(objects=frozenset({obj}))
        held = self.evaluate(node.elt)
        obj.fields["[]"] = held
        # The elements' facts are shown too: such a list is often a key at once.
        return Value(flat(held).facts, frozenset({obj}), texts=held.texts)

    def _generators(self, generators: list[ast.comprehension]) -> None:
        for generator in generators:
            source = self.evaluate(generator.iter)
            self.walked(source, generator.iter)
            self.assign(generator.target, self.elements_of(source))
            for condition in generator.ifs:
                self.evaluate(condition)

    def own_module(self, name: str) -> Object | None:
        """Return the kernel's module of exactly this name."""
        raise NotImplementedError

    def walked(self, source: Value, node: ast.AST) -> None:
        """Record that something outside the kernel was iterated over."""
        for external in source.externals:
            self.trace.reads.append(Read(f"iterate {external}", self.site(node)))

    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind a target to a value."""
        raise NotImplementedError

    def make_function(self, node: Any) -> Value:
        """Return a function object, its defaults evaluated."""
        raise NotImplementedError

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.assign(node.target, value)
        return value

    def _string(self, node: ast.JoinedStr) -> Value:
        parts = [
            self.evaluate(part.value if isinstance(part, ast.FormattedValue) else part)
            for part in node.values
        ]
        known = [p for p in parts if len(p.texts) == 1 and not p.facts and p.items is None]
        if len(known) == len(parts):
            return Value(texts=frozenset({"".join(next(iter(p.texts)) for p in parts)}))
        result = computed(self.deep(part) for part in parts)
        kept = {f for p in parts for f in flat(p).facts if f[0] is Tag.IDENTITY}
        return result.plus(kept)

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> Value:
        value = self.evaluate(node.value)
        if isinstance(node, ast.YieldFrom):
            value = self.elements_of(value)
        obj = self.new("list", node)
        obj.fields["[]"] = value
        self.here.returns.append((Value(objects=frozenset({obj})), self.flow.copy()))
        return NOTHING

    def _slice(self, node: ast.Slice) -> Value:
        return computed(map(self.evaluate, (node.lower, node.upper, node.step)))

    _methods: ClassVar[dict[type[ast.AST], Callable[[Expressions, Any], Value]]] = {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.Subscript: _subscript,
        ast.BinOp: _binary,
        ast.UnaryOp: _unary,
        ast.BoolOp: _boolean,
        ast.Compare: _compare,
        ast.IfExp: _conditional,
        ast.Call: _call,
        ast.Tuple: _tuple,
        ast.List: _list,
        ast.Set: _list,
        ast.Dict: _dict,
        ast.ListComp: _comprehension,
        ast.SetComp: _comprehension,
        ast.GeneratorExp: _comprehension,
        ast.DictComp: _comprehension,
        ast.Lambda: lambda self, node: self.make_function(node),
        ast.NamedExpr: _named,
        ast.JoinedStr: _string,
        ast.Yield: _yield,
        ast.YieldFrom: _yield,
        ast.Await: lambda self, node: self.evaluate(node.value),
        ast.Starred: lambda self, node: self.elements_of(self.evaluate(node.value)),
        ast.Slice: _slice,
    }


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_super(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "super"
