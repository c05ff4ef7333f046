"""Following a whole kernel: its modules as they are imported, then every function as called."""

from __future__ import annotations

import ast
import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from pytest_kopt.honesty.audit.calls import Function
from pytest_kopt.honesty.audit.machine import STEPS_PER_FILE, STEPS_PER_ROOT, Activation, Exhausted
from pytest_kopt.honesty.audit.statements import Statements
from pytest_kopt.honesty.audit.trace import Read, Return, Root, Trace
from pytest_kopt.honesty.audit.values import (
    NOTHING,
    Object,
    Tag,
    Value,
    flat,
    join,
    join_all,
)
from pytest_kopt.honesty.audit.vocabulary import names

#: Positions of the arguments that outlive a step, by the dotted name of the function under
#: optimisation.
Entries = Mapping[str, Collection[int]]

Mentions = Mapping[str, set[ast.AST]]

_SETTING_UP = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__"})
_MOST_FILES = 10
_SCALARS = frozenset({"int", "float", "bool", "str"})
_CALLED_BY_TORCH = names(
    "forward backward __call__ setup_context jvp vmap __torch_function__ __torch_dispatch__"
)


def parse(sources: Mapping[str, bytes]) -> dict[str, ast.Module]:
    """Return the syntax trees of the Python files that have one; the build speaks of the others."""
    trees = {}
    for path, text in sorted(sources.items()):
        if path.endswith(".py"):
            try:
                trees[path] = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError):
                continue
    return trees


class Program(Statements):
    """A kernel's files, followed; `trace` holds what happened."""

    def __init__(self, trees: Mapping[str, ast.Module], entries: Entries) -> None:
        super().__init__()
        self._trees = trees
        self._budget = STEPS_PER_FILE * max(1, min(len(trees), _MOST_FILES))
        self._entries = entries
        self._names = {path: _dotted(path) for path in trees}
        self._functions: list[Object] = []
        self._made: list[Object] = []
        self._entered: set[ast.AST] = set()
        self._instances: dict[Object, list[Object]] = {}
        self._wanted: dict[Object, Collection[int]] = {}
        self._loads, self._attributes = _mentions(trees.values())

    def follow(self) -> Trace:
        """Follow everything, as far as the budget goes."""
        for path in self._trees:
            self._module(path)
        self.root = Root(0, "", "")
        roots = list(self._roots())
        for number, (function, owner) in enumerate(roots, start=1):
            self._follow_root(number, function, owner)
        number = len(roots)
        while self.unseen and self.steps < self._budget:
            function = next(iter(self.unseen))
            number += 1
            self._follow_root(number, function, None, nested=True)
        return self.trace

    @property
    def device_functions(self) -> list[Object]:
        """The kernel's functions that are compiled for a device."""
        return [function for function in self._functions if "device" in function.flags]

    # -- modules

    def _module(self, path: str) -> Object:
        if path in self.modules:
            return self.modules[path]
        module = Object("module", 0, definition=self._trees[path], path=path)
        module.fields["__name__"] = Value(texts=frozenset({self._names[path]}))
        self.modules[path] = module
        root, self.root = self.root, Root(0, "", path, importing=True)
        stack, self.stack = self.stack, [Activation(module, path, "<module>")]
        flow, controls = self.flow, self.controls
        self.controls = []
        self.limit = self.steps + STEPS_PER_ROOT
        with contextlib.suppress(Exhausted):
            self.run(self._trees[path].body)
        self.root, self.stack, self.flow, self.controls = root, stack, flow, controls
        return module

    def import_module(self, name: str, node: ast.AST) -> Value:
        self.trace.reads.append(Read(f"import {name}", self.site(node)))
        for path, dotted in self._names.items():
            if _same_module(dotted, name):
                return Value(objects=frozenset({self._module(path)}))
        return Value(externals=frozenset({name}))

    def own_module(self, name: str) -> Object | None:
        return next((self._module(p) for p, dotted in self._names.items() if dotted == name), None)

    def instantiate(
        self, cls: Object, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        value = super().instantiate(cls, arguments, keywords, node)
        if self.root.importing and not self.root.called:
            self._instances.setdefault(cls, []).extend(value.objects)
        return value

    def make_function(self, node: Function) -> Value:
        value = super().make_function(node)
        self._functions += value.objects
        if self.root.importing:
            self._made += value.objects
        return value

    # -- roots

    def _roots(self) -> Iterator[tuple[Object, Object | None]]:
        owners = {
            function: cls
            for module in self.modules.values()
            for cls in _classes(module)
            for value in cls.fields.values()
            for function in value.objects
            if function.kind == "function"
        }
        self._wanted = wanted = self._entry_functions()

        def rank(function: Object) -> tuple[bool, bool]:
            """Put what is measured first, and what other functions lead to last."""
            name = getattr(function.definition, "name", "")
            mentions = self._attributes if function in owners else self._loads
            return function not in wanted, bool(mentions.get(name))

        for function in sorted(self._made, key=rank):
            name = getattr(function.definition, "name", "<lambda>")
            skipped = "device" in function.flags or name in _SETTING_UP
            if not skipped and not name.startswith("test_"):
                yield function, owners.get(function)

    def _entry_functions(self) -> dict[Object, Collection[int]]:
        """Return the functions that cases call, with their arguments that outlive a step."""
        found: dict[Object, Collection[int]] = {}
        for dotted, weights in self._entries.items():
            parts = dotted.split(".")
            for length in range(1, min(3, len(parts)) + 1):
                home, names = ".".join(parts[:-length]), parts[-length:]
                for path, module in self.modules.items():
                    if not home or _same_module(home, self._names[path]):
                        value = Value(objects=frozenset({module}))
                        for name in names:
                            value = self._field(value, name)
                        found.update(dict.fromkeys(self._called_through(value), weights))
        return found

    @staticmethod
    def _field(value: Value, name: str) -> Value:
        return join_all(obj.fields.get(name, NOTHING) for obj in value.objects)

    def _called_through(self, value: Value) -> Iterator[Object]:
        """Yield the functions that a call of a value ends in."""
        for obj in value.objects:
            found: Value | None = None
            if obj.kind == "function":
                yield obj
            elif obj.kind == "instance":
                found = self.find(obj, "__call__") or self.find(obj, "forward")
            elif obj.kind == "bound":
                name = "forward" if obj.path == "apply" else obj.path
                for holder in obj.fields["self"].objects:
                    found = self.find(holder, name)
            if found is not None:
                yield from (each for each in found.objects if each.kind == "function")

    def _follow_root(
        self, number: int, function: Object, owner: Object | None, *, nested: bool = False
    ) -> None:
        definition = function.definition
        assert isinstance(definition, Function)
        if self.steps > self._budget:
            return
        spec = definition.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        bound = owner is not None and "static" not in function.flags and bool(names)
        taken = names[1:] if bound else names
        weights = None
        entry = function in self._wanted
        if entry:
            skipped = owner is not None and not bound and self.derives(owner, "Function")
            given = taken[1:] if skipped and not self._set_up_apart(owner) else taken
            weights = frozenset(given[i] for i in self._wanted[function] if i < len(given))
        name = getattr(definition, "name", "<lambda>")
        self.root = Root(
            number=number,
            name=name,
            path=function.path,
            entry=entry,
            called=nested or (not entry and self._is_called(definition, name, owner)),
            method=owner is not None,
            parameters=(*taken, *(a.arg for a in spec.kwonlyargs)),
            weights=weights,
        )
        self.stack = [Activation(Object("frame", 0), function.path, name)]
        context = self._instance(owner) if owner is not None and bound else None
        for _ in range(2):
            self.epoch += 1
            self.flow = type(self.flow)()
            self.controls = []
            self.running = []
            self.limit = min(self.steps + STEPS_PER_ROOT, self._budget)
            stores = len(self.trace.stores)
            arguments, keywords = self._parameters(function, definition, owner, context)
            try:
                self.enter(function, arguments, keywords, definition)
            except (Exhausted, RecursionError):
                return
            if len(self.trace.stores) == stores:
                return

    def _instance(self, owner: Object) -> Value:
        """Return an instance that was there before: what `__init__` makes of nothing known."""
        self.limit = self.steps + STEPS_PER_ROOT
        if self._instances.get(owner):
            return Value(objects=frozenset(self._instances[owner]))
        root, self.root = self.root, Root(0, "", owner.path, importing=True, called=True)
        try:
            value = self.instantiate(owner, [], {}, owner.definition or ast.Pass())
        except Exhausted:
            value = Value(objects=frozenset({Object("instance", self.epoch, classes=(owner,))}))
        self.root = root
        return value

    def _parameters(
        self, function: Object, definition: Function, owner: Object | None, itself: Value | None
    ) -> tuple[list[Value], dict[str, Value]]:
        spec = definition.args
        positional: list[Value] = []
        named: dict[str, Value] = {}
        context = self._context(definition, owner)
        first = [*spec.posonlyargs, *spec.args]
        for index, argument in enumerate(first):
            if index == 0 and context is not None:
                positional.append(context)
            elif index == 0 and itself is not None:
                if owner is not None and "class method" in function.flags:
                    positional.append(Value(objects=frozenset({owner})))
                else:
                    positional.append(itself)
            else:
                positional.append(self._parameter(function, argument))
        if spec.vararg:
            positional.append(self._parameter(function, spec.vararg))
        for argument in spec.kwonlyargs:
            named[argument.arg] = self._parameter(function, argument)
        if spec.kwarg:
            named["**"] = self._parameter(function, spec.kwarg)
        return positional, named

    def _set_up_apart(self, owner: Object | None) -> bool:
        """Say whether an autograd function's forward takes no context."""
        return owner is not None and self.find(owner, "setup_context") is not None

    def _context(self, definition: Function, owner: Object | None) -> Value | None:
        """Return the new context that torch hands to a method of an autograd function."""
        name = getattr(definition, "name", "")
        if owner is None or not self.derives(owner, "Function"):
            return None
        if name == "forward" and self._set_up_apart(owner):
            return None
        if name not in ("forward", "backward", "setup_context", "jvp", "vmap"):
            return None
        context = self.new("instance", definition)
        origin = (self.root.number, "saved_tensors")
        self.trace.tensors.add(origin)
        for attribute in ("saved_tensors", "saved_variables"):
            context.fields[attribute] = Value(frozenset({(Tag.RAW, origin)}))
        return Value(objects=frozenset({context}))

    def _parameter(self, function: Object, argument: ast.arg) -> Value:
        default = function.fields.get(f"default {argument.arg}", NOTHING)
        note = ast.unparse(argument.annotation) if argument.annotation else ""
        origin = (self.root.number, argument.arg)
        if note in _SCALARS or default.texts:
            return default
        if "Tensor" in note:
            self.trace.tensors.add(origin)
        key = f"parameter {self.root.number}"
        known = function.fields.get(key + argument.arg)
        if known is None:
            obj = Object("param", 0, path=argument.arg)
            known = Value(frozenset({(Tag.RAW, origin)}), frozenset({obj}))
            function.fields[key + argument.arg] = known
        return join(known, default)

    def _is_called(self, definition: Function, name: str, owner: Object | None) -> bool:
        if name in _CALLED_BY_TORCH:
            return False
        # A case may call more than it says it does: its other functions are looked at as well.
        if definition in self._entered:
            return True
        index = self._attributes if owner is not None else self._loads
        return bool(index.get(name, set()) - {definition})

    def enter(
        self,
        function: Object,
        arguments: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
    ) -> Value:
        if self.running and function.definition is not None:
            self._entered.add(function.definition)
        return super().enter(function, arguments, keywords, node)

    def returned(self, value: Value, node: ast.AST) -> None:
        if len(self.running) == 1 and not self.root.importing:
            flow = self.flow
            whole = self.deep(value)
            if flow.replayed:
                facts = {f for f in whole.facts if f[0] not in (Tag.STALE, Tag.REPLAY)}
            else:
                facts = {f for f in whole.facts if f[1] not in flow.overwritten}
            known = Value(frozenset(facts), value.objects, value.externals)
            self.trace.returns.append(
                Return(
                    known,
                    flat(value).has(Tag.RAW),
                    self.site(node),
                    flow.fresh,
                    flow.touched,
                    flow.pending,
                    flow.launched,
                )
            )


def _same_module(one: str, other: str) -> bool:
    """Say whether two dotted names may mean one module, seen from different import roots."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _dotted(path: str) -> str:
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def _classes(module: Object) -> Iterator[Object]:
    waiting = [module]
    met: set[Object] = set()
    while waiting:
        holder = waiting.pop()
        for value in holder.fields.values():
            for obj in value.objects:
                if obj.kind == "class" and obj not in met:
                    met.add(obj)
                    waiting.append(obj)
                    yield obj


def _mentions(trees: Iterable[ast.Module]) -> tuple[Mentions, Mentions]:
    """Return the outermost functions that load a name, and those that take an attribute."""
    loads: dict[str, set[ast.AST]] = defaultdict(set)
    attributes: dict[str, set[ast.AST]] = defaultdict(set)
    waiting: list[tuple[ast.AST, ast.AST | None]] = [(tree, None) for tree in trees]
    while waiting:
        node, outer = waiting.pop()
        if outer is not None:
            if isinstance(node, ast.Name):
                loads[node.id].add(outer)
            elif isinstance(node, ast.Attribute):
                attributes[node.attr].add(outer)
        elif isinstance(node, Function):
            outer = node
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
            # Handing a function on is not calling it.
            continue
        for name in node._fields:
            child = getattr(node, name)
            if isinstance(child, list):
                waiting += [(each, outer) for each in child if isinstance(each, ast.AST)]
            elif isinstance(child, ast.AST):
                waiting.append((child, outer))
    return loads, attributes
