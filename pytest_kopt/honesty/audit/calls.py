"""Calls inside the kernel: functions entered with what they are given, classes, bound methods."""

from __future__ import annotations

import ast
import contextlib
import itertools
from abc import abstractmethod
from collections.abc import Iterator

from pytest_kopt.honesty.audit.library import Arguments, Keywords, Library
from pytest_kopt.honesty.audit.machine import (
    DEPTH,
    NAMESPACE,
    Activation,
    Exhausted,
    Flow,
)
from pytest_kopt.honesty.audit.tensors import JOINS, opaque
from pytest_kopt.honesty.audit.values import (
    NOTHING,
    Object,
    Tag,
    Value,
    flat,
    join,
    join_all,
    pack,
)
from pytest_kopt.honesty.audit.vocabulary import names

LAUNCHER = "launcher"
_TEXT_METHODS = names(
    "lower upper strip lstrip rstrip replace removeprefix removesuffix title swapcase"
)
_CONTAINERS = ("dict", "list", "set")
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Calls(Library):
    """Entering functions, making instances, and finding methods."""

    @abstractmethod
    def run_body(self, definition: Function) -> Value:
        """Follow a function's body in the frame that is active; return what falls off its end."""

    def call(self, callee: Value, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        results: list[Value] = []
        before = self.flow
        after: Flow | None = None
        targets = list(callee.objects)
        for obj in targets:
            if len(targets) > 1:
                self.flow = before.copy()
            results.append(self._call_object(callee, obj, arguments, keywords, node))
            after = self.flow if after is None else after.meet(self.flow)
        if after is not None:
            self.flow = after
        results += [
            self.external(name, arguments, keywords, node) for name in sorted(callee.externals)
        ]
        if callee.marked(LAUNCHER):
            results.append(self.launch([*arguments, *keywords.values()], node))
        if not results:
            sources = [self.deep(value) for value in (*arguments, *keywords.values())]
            self._call_back([*arguments, *keywords.values()], node)
            return opaque([*sources, callee])
        return join_all(results)

    def _call_object(
        self, callee: Value, obj: Object, arguments: Arguments, keywords: Keywords, node: ast.AST
    ) -> Value:
        match obj.kind:
            case "function":
                return self.enter(obj, arguments, keywords, node)
            case "class":
                return self.instantiate(obj, arguments, keywords, node)
            case "bound":
                return self.call_method(obj.fields["self"], obj.path, arguments, keywords, node)
            case "partial":
                given = obj.fields["arguments"].items or ()
                named = {n[1:-1]: v for n, v in obj.fields.items() if n.startswith("[")}
                target = obj.fields["function"]
                return self.call(target, [*given, *arguments], {**named, **keywords}, node)
            case "attrgetter":
                return self._fetch(obj, arguments, node)
            case "instance":
                itself = Value(callee.facts, frozenset({obj}))
                for name in ("__call__", "forward"):
                    if self.find(obj, name):
                        return self.call_method(itself, name, arguments, keywords, node)
        return opaque([self.deep(v) for v in (*arguments, *keywords.values())])

    def _fetch(self, obj: Object, arguments: Arguments, node: ast.AST) -> Value:
        results = []
        for text in sorted(obj.fields["names"].texts):
            value = arguments[0] if arguments else NOTHING
            for part in text.split("."):
                value = self.attribute(value, part, node)
            results.append(value)
        return join_all(results)

    # -- functions

    def enter(
        self, function: Object, arguments: Arguments, keywords: Keywords, node: ast.AST
    ) -> Value:
        """Follow a function of the kernel with these arguments; return what it returns."""
        self.unseen.pop(function, None)
        if "device" in function.flags:
            return self.launch([*arguments, *keywords.values()], node)
        definition = function.definition
        assert isinstance(definition, Function)
        sources = [*arguments, *keywords.values()]
        if function in self.running or len(self.running) > DEPTH or self.steps > self.limit:
            return opaque([self.deep(value) for value in sources])
        if "memoised" in function.flags and not self.root.importing:
            return self._memoised(function, arguments, keywords)
        return self._enter(function, definition, arguments, keywords)

    def _memoised(self, function: Object, arguments: Arguments, keywords: Keywords) -> Value:
        definition = function.definition
        assert isinstance(definition, Function)
        location = (function, "[]")
        key = join_all(self.deep(value) for value in (*arguments, *keywords.values()))
        self.under(key.facts | {(Tag.STALE, location)})
        value = self._enter(function, definition, arguments, keywords)
        self.store(location, value, key, definition)
        self.controls.pop()
        self.flow.fresh -= {location}
        return join(value, self.load(location))

    def _enter(
        self, function: Object, definition: Function, arguments: Arguments, keywords: Keywords
    ) -> Value:
        frame = Object("frame", self.epoch, frame=function.frame, path=function.path)
        frame.fields.update(self._bind(function, definition, arguments, keywords))
        name = getattr(definition, "name", "<lambda>")
        activation = Activation(frame, function.path, name)
        self.stack.append(activation)
        self.running.append(function)
        depth = len(self.controls)
        try:
            value = self.run_body(definition)
        except Exhausted:
            value = opaque(arguments)
        finally:
            del self.controls[depth:]
            self.running.pop()
            self.stack.pop()
        flows = [flow for _, flow in activation.returns]
        if flows:
            self.flow = flows[0]
            for flow in flows[1:]:
                self.flow = self.flow.meet(flow)
        return join(value, join_all(returned for returned, _ in activation.returns))

    def _bind(
        self, function: Object, definition: Function, arguments: Arguments, keywords: Keywords
    ) -> dict[str, Value]:
        spec = definition.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        bound: dict[str, Value] = {}
        bound.update(zip(names, arguments, strict=False))
        left = arguments[len(names) :]
        more = {n: v for n, v in keywords.items() if n != "**"}
        spread = keywords.get("**", NOTHING)
        for name in (*names, *(a.arg for a in spec.kwonlyargs)):
            if name in more:
                bound[name] = more.pop(name)
            elif name not in bound:
                bound[name] = join(function.fields.get(f"default {name}", NOTHING), spread)
        if spec.vararg:
            bound[spec.vararg.arg] = pack(left)
        if spec.kwarg:
            obj = self.new("dict", definition)
            obj.fields.update({f"[{name}]": value for name, value in more.items()})
            if spread is not NOTHING:
                obj.fields["[]"] = spread
            bound[spec.kwarg.arg] = Value(objects=frozenset({obj}))
        return bound

    # -- classes and instances

    def family(self, cls: Object) -> Iterator[Object]:
        """Yield a class and the kernel's classes that it derives from."""
        waiting, met = [cls], set()
        while waiting:
            each = waiting.pop(0)
            if each not in met:
                met.add(each)
                yield each
                waiting += each.classes

    def derives(self, cls: Object, *names: str) -> bool:
        """Say whether a class derives from something outside with one of these last names."""
        flags = itertools.chain.from_iterable(each.flags for each in self.family(cls))
        return any(flag.rpartition(".")[2] in names for flag in flags)

    def find(self, obj: Object, name: str) -> Value | None:
        """Return what an instance's or class's family defines under a name."""
        starts = (obj,) if obj.kind == "class" else obj.classes
        for start in starts:
            for cls in self.family(start):
                if name in cls.fields:
                    return self.load((cls, name))
        return None

    def instantiate(
        self, cls: Object, arguments: Arguments, keywords: Keywords, node: ast.AST
    ) -> Value:
        """Return a new instance, after its `__init__`."""
        obj = Object("instance", self.epoch, definition=node, classes=(cls,))
        itself = Value(objects=frozenset({obj}))
        names: list[str] = []
        for each in reversed(list(self.family(cls))):
            names += [n[len("annotated ") :] for n in each.fields if n.startswith("annotated ")]
            for name, value in each.fields.items():
                if name.startswith("factory "):
                    obj.fields[name[len("factory ") :]] = self.call(value, [], {}, node)
        if self.find(obj, "__init__"):
            self.call_method(itself, "__init__", arguments, keywords, node)
        else:
            for name, value in itertools.chain(
                zip(names, arguments, strict=False), keywords.items()
            ):
                obj.fields[name] = value
        if self.derives(cls, "Tensor"):
            return itself.plus(f for v in arguments for f in self.deep(v).facts)
        return itself

    def call_method(
        self,
        base: Value,
        name: str,
        arguments: Arguments,
        keywords: Keywords,
        node: ast.AST,
    ) -> Value:
        """Return what `base.name(…)` gives."""
        base = flat(base) if base.objects or base.facts else base
        if name == "replay" and (self.flow.overwritten or self.flow.launched):
            self.flow.replayed = True
        if name in JOINS:
            self.flow.pending = frozenset()
        results: list[Value] = []
        for obj in base.objects:
            found = self._method_of(base, obj, name, arguments, keywords, node)
            if found is not None:
                results.append(found)
        results += [
            self.external(f"{external}.{name}", arguments, keywords, node, base)
            for external in sorted(base.externals)
        ]
        if base.texts and not base.objects and not base.has(Tag.RAW, Tag.DATA):
            results.append(self._text(base, name, arguments))
        if base.tensor or (not results and base.facts):
            results.append(self.tensor_method(base, name, arguments, keywords, node))
        if results:
            return join_all(results)
        self._call_back([*arguments, *keywords.values()], node)
        return opaque([self.deep(value) for value in (*arguments, *keywords.values())])

    def _method_of(
        self,
        base: Value,
        obj: Object,
        name: str,
        arguments: Arguments,
        keywords: Keywords,
        node: ast.AST,
    ) -> Value | None:
        itself = Value(base.facts, frozenset({obj}))
        if obj.kind in _CONTAINERS or base.marked(NAMESPACE):
            return self._container_method(itself, obj, name, arguments, keywords, node)
        if obj.kind == "module":
            return self.call(self.attribute(itself, name, node), arguments, keywords, node)
        if obj.kind in ("instance", "param") and name in obj.fields:
            return self.call(self.load((obj, name)), arguments, keywords, node)
        if obj.kind == "class" and name == "apply" and self.derives(obj, "Function"):
            return self._apply(obj, arguments, node)
        if obj.kind in ("instance", "class"):
            found = self.find(obj, name)
            if found is None:
                return None
            results = []
            for function in found.objects:
                given = list(arguments)
                if "class method" in function.flags:
                    given.insert(0, Value(objects=frozenset(obj.classes or {obj})))
                elif obj.kind == "instance" and "static" not in function.flags:
                    given.insert(0, itself)
                target = Value(found.facts, frozenset({function}))
                results.append(self.call(target, given, keywords, node))
            return join_all(results)
        return None

    def _apply(self, cls: Object, arguments: Arguments, node: ast.AST) -> Value:
        context = Value(objects=frozenset({self.new("instance", node)}))
        if self.find(cls, "setup_context"):
            result = self.call(self.find(cls, "forward") or NOTHING, arguments, {}, node)
            given = [context, pack(arguments), result]
            self.call(self.find(cls, "setup_context") or NOTHING, given, {}, node)
            return result
        return self.call(self.find(cls, "forward") or NOTHING, [context, *arguments], {}, node)

    def _container_method(
        self,
        base: Value,
        obj: Object,
        name: str,
        arguments: Arguments,
        keywords: Keywords,
        node: ast.AST,
    ) -> Value:
        first = arguments[0] if arguments else NOTHING
        if name in ("get", "pop", "__getitem__", "popleft"):
            return join_all([self.load_item(base, obj, first), *arguments[1:]])
        if name == "setdefault":
            held = self.load_item(base, obj, first)
            self.under(held.facts | {(Tag.STALE, (obj, "[]"))})
            self.assign_item(base, first, join_all(arguments[1:]), node)
            self.controls.pop()
            location = (obj, self.item_field(base, obj, first))
            self.flow.fresh -= {location}
            return join(held, self.load(location))
        if name in ("append", "add", "appendleft", "insert", "extend", "update", "__setitem__"):
            value = arguments[-1] if arguments else NOTHING
            if name in ("extend", "update"):
                self._update(base, obj, value, node)
            else:
                key = first if name == "__setitem__" else NOTHING
                self.assign_item(base, key, value, node)
            for key_name, each in keywords.items():
                self.assign_item(base, Value(texts=frozenset({key_name})), each, node)
            return NOTHING
        if name == "items":
            return self._list_of(pack([NOTHING, self.elements(obj)]), node)
        if name in ("values", "copy", "keys"):
            held = NOTHING if name == "keys" else self.elements(obj)
            return self._list_of(held, node)
        if name == "__contains__":
            return Value(base.facts | {(Tag.STALE, (obj, "[]"))})
        return NOTHING

    def _update(self, base: Value, obj: Object, value: Value, node: ast.AST) -> None:
        for other in value.objects:
            for field, held in list(other.fields.items()):
                key = frozenset({field[1:-1]}) if field != "[]" and field[0] == "[" else frozenset()
                self.assign_item(base, Value(texts=key), held, node)
        if not value.objects:
            self.assign_item(base, NOTHING, self.elements_of(value), node)

    def _list_of(self, held: Value, node: ast.AST) -> Value:
        obj = self.new("list", node)
        obj.fields["[]"] = held
        return Value(objects=frozenset({obj}))

    def _text(self, base: Value, name: str, arguments: Arguments) -> Value:
        sources = [self.deep(value) for value in arguments]
        mixed = frozenset().union(base.texts, *(s.texts for s in sources))
        if name in _TEXT_METHODS and len(base.texts) == 1:
            given = [next(iter(s.texts)) for s in sources if len(s.texts) == 1]
            if len(given) == len(arguments):
                with contextlib.suppress(TypeError):
                    mixed = frozenset({getattr(next(iter(base.texts)), name)(*given)})
        facts = frozenset(f for v in (base, *sources) for f in v.facts)
        return Value(facts, texts=mixed)
