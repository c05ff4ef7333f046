"""Models of Python's builtins and standard library, as far as they move or hide what flows."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import ClassVar

from pytest_kopt.honesty.audit import vocabulary as known
from pytest_kopt.honesty.audit.machine import NAMESPACE
from pytest_kopt.honesty.audit.tensors import Tensors, opaque
from pytest_kopt.honesty.audit.trace import Call, Patch
from pytest_kopt.honesty.audit.values import (
    NOTHING,
    Fact,
    Object,
    Tag,
    Value,
    computed,
    flat,
    join,
    join_all,
    pack,
    retagged,
)
from pytest_kopt.honesty.audit.vocabulary import names

Arguments = list[Value]
Keywords = dict[str, Value]
#: Marks what `id` gave.
ID = "id"
#: Marks a question for whether something has a name.
ASKED = "hasattr"
_NAMES = "torch", "numpy"


class Library(Tensors):
    """Calls of what is not the kernel's own."""

    def external(
        self,
        name: str,
        arguments: Arguments,
        keywords: Keywords,
        node: ast.AST,
        base: Value = NOTHING,
    ) -> Value:
        """Return what a call of a dotted name outside the kernel gives."""
        self.trace.calls.append(Call(name, base, tuple(arguments), dict(keywords), self.site(node)))
        every = [*arguments, *keywords.values()]
        package = name.partition(".")[0]
        model = self._models.get(name)
        if model is not None:
            return model(self, arguments, keywords, node)
        if name in known.CONTAINERS:
            return self._container(name, arguments, keywords, node)
        if name in known.MEMOISERS:
            return self._memoiser(name, arguments)
        if name in known.SAVERS:
            self.store((self.disk, "[]"), join_all(map(self.deep, every)), NOTHING, node)
            return NOTHING
        if name in known.LOADERS:
            return self.load((self.disk, "[]"))
        if package in known.CONTENT_PACKAGES:
            whole = join_all(self.deep(value) for value in every)
            return retagged(whole, Tag.CONTENT, Tag.RAW, Tag.DATA, Tag.CONTENT)
        self._call_back(every, node)
        if package == "builtins":
            return self._builtin(name, every)
        if package in _NAMES and not name.startswith("numpy.ctypeslib"):
            return self.tensor_function(name, arguments, keywords, node)
        functions = frozenset(
            o for v in every for o in v.objects if o.kind in ("function", "class")
        )
        sources = [self.deep(value) for value in every]
        result = opaque([*sources, Value(texts=base.texts)])
        if result.has(Tag.OPAQUE) and package not in _STANDARD:
            self.launch(every, node)
        outcome = Value(result.facts, functions, frozenset({f"{name}()"}), result.texts)
        return outcome if len(name) < 120 else Value(result.facts)

    def _call_back(self, values: Arguments, node: ast.AST) -> None:
        """Enter functions that are handed to code outside: it will call them."""
        for value in values:
            for obj in value.objects:
                if obj in self.unseen and obj.kind == "function":
                    self.call(Value(objects=frozenset({obj})), [], {}, node)

    def elements_of(self, value: Value) -> Value:
        """Return what iterating over a value may give."""
        result = Value(value.facts, externals=value.externals, texts=value.texts)
        if value.items is not None:
            result = join(result, join_all(value.items))
        for obj in value.objects:
            if obj.kind in ("list", "set", "dict"):
                result = join(result, self.elements(obj))
            elif obj.kind == "tensor":
                result = join(result, Value(objects=frozenset({obj})))
        return result

    def _container(
        self, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
    ) -> Value:
        obj = self.new(known.CONTAINERS[name], node)
        if name.startswith("collections.defaultdict") and arguments:
            made = self.call(arguments[0], [], {}, node)
            if made is not NOTHING:
                obj.fields["[]"] = made
            arguments = arguments[1:]
        held = join_all(self.elements_of(value) for value in arguments)
        if held is not NOTHING and held != NOTHING:
            obj.fields["[]"] = held
        for key, value in keywords.items():
            obj.fields[key if obj.kind == "instance" else f"[{key}]"] = value
        facts = frozenset(f for v in arguments for f in v.facts if f[0] is Tag.MARK)
        return Value(facts, objects=frozenset({obj}))

    def _memoiser(self, name: str, arguments: Arguments) -> Value:
        functions = [o for v in arguments for o in v.objects if o.kind == "function"]
        if not functions:
            return Value(externals=frozenset({name.removesuffix("()") + "()"}))
        for function in functions:
            function.flags.add("memoised")
        return Value(objects=frozenset(functions))

    def _builtin(self, name: str, every: Arguments) -> Value:
        """Return what a builtin without a model of its own gives: its arguments, mixed."""
        return computed(self.deep(value) for value in every)

    # -- models by name

    def _id(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        whole = join_all(map(self.deep, arguments))
        return retagged(whole, Tag.IDENTITY, Tag.RAW, Tag.DATA).plus({(Tag.MARK, ID)})

    def _hash(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        whole = join_all(map(self.deep, arguments))
        kept = {f for f in whole.facts if f[0] in (Tag.IDENTITY, Tag.VERSION, Tag.CONTENT)}
        return retagged(whole, Tag.IDENTITY, Tag.RAW, Tag.DATA).plus(kept)

    def _cast(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        whole = join_all(map(self.deep, arguments))
        # int(n) of a size is not a read of elements: RAW alone says nothing without `.shape`.
        read = retagged(whole, Tag.CONTENT, Tag.RAW, Tag.DATA, Tag.CONTENT).plus(
            f for f in whole.facts if f[0] in (Tag.IDENTITY, Tag.VERSION)
        )
        return Value(read.facts, externals=whole.externals, texts=whole.texts)

    def _nothing(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        return NOTHING

    def _asked(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        looked: set[Fact] = {(Tag.MARK, ASKED)}
        if len(arguments) == 2:
            for text in sorted(arguments[1].texts):
                looked |= self.attribute(arguments[0], text, node).facts
        return Value(frozenset(f for f in looked if f[0] in (Tag.MARK, Tag.STALE)))

    def _listed(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        obj = self.new("list", node)
        held = join_all(self.elements_of(value) for value in arguments[:1])
        obj.fields["[]"] = held
        self._call_back([*arguments[1:], *keywords.values()], node)
        return Value(held.facts, frozenset({obj}), texts=held.texts)

    def _iterated(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        self._call_back(list(keywords.values()), node)
        return join_all(self.elements_of(v) for v in arguments).plus(
            f for v in arguments for f in v.facts
        )

    def _chosen(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        if len(arguments) > 1:
            return computed(map(self.deep, arguments))
        self._call_back(list(keywords.values()), node)
        return join_all(self.elements_of(value) for value in arguments)

    def _tupled(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        if arguments and arguments[0].items is not None:
            return arguments[0]
        return join_all(self.elements_of(value) for value in arguments[:1])

    def _zip(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        obj = self.new("list", node)
        obj.fields["[]"] = pack(self.elements_of(value) for value in arguments)
        return Value(objects=frozenset({obj}))

    def _enumerate(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        obj = self.new("list", node)
        obj.fields["[]"] = pack([NOTHING, join_all(map(self.elements_of, arguments[:1]))])
        return Value(objects=frozenset({obj}))

    def _map(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        if not arguments:
            return NOTHING
        held = [self.elements_of(value) for value in arguments[1:]]
        obj = self.new("list", node)
        obj.fields["[]"] = self.call(arguments[0], held, {}, node)
        return Value(objects=frozenset({obj}))

    def _getattr(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        if len(arguments) < 2:
            return NOTHING
        base, name = arguments[0], arguments[1]
        found = [self.attribute(base, text, node) for text in sorted(name.texts)]
        if not found and base.externals:
            found = [Value(externals=frozenset(f"{e}.?" for e in base.externals))]
        return join_all([*found, *arguments[2:]])

    def _setattr(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        if len(arguments) == 3:
            base, name, value = arguments
            self.assign_attribute(base, sorted(name.texts), value, node)
        elif len(arguments) == 2:
            self.assign_attribute(arguments[0], sorted(arguments[1].texts), NOTHING, node)
        return NOTHING

    def assign_attribute(self, base: Value, names: list[str], value: Value, node: ast.AST) -> None:
        """Follow a write to an attribute; no name where it is not known."""
        base = flat(base)
        for obj in base.objects:
            if obj.kind in ("instance", "class", "module", "param", "function"):
                for name in names or ["?"]:
                    self.store((obj, name), value, NOTHING, node)
        if base.externals or base.tensor or any(o.kind == "function" for o in base.objects):
            self.patch(base, names, value, node)

    def _vars(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        if not arguments:
            return Value(objects=frozenset({self.here.frame}))
        return self.attribute(arguments[0], "__dict__", node)

    def _globals(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        frame: Object | None = self.here.frame
        while frame is not None and frame.kind != "module":
            frame = frame.frame
        objects = frozenset({frame}) if frame is not None else frozenset()
        return Value(frozenset({(Tag.MARK, NAMESPACE)}), objects)

    def _imported(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        texts = arguments[0].texts if arguments else frozenset()
        return join_all(self.import_module(text, node) for text in sorted(texts))

    def import_module(self, name: str, node: ast.AST) -> Value:
        """Return a module by its dotted name: one of the kernel's, or something outside."""
        raise NotImplementedError

    def _attrgetter(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        obj = self.new("attrgetter", node)
        obj.fields["names"] = join_all(arguments)
        return Value(objects=frozenset({obj}))

    def _partial(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        if not arguments:
            return Value(externals=frozenset({"functools.partial()"}))
        obj = self.new("partial", node)
        obj.fields["function"] = arguments[0]
        obj.fields["arguments"] = pack(arguments[1:])
        for name, value in keywords.items():
            obj.fields[f"[{name}]"] = value
        return Value(objects=frozenset({obj}))

    def _wraps(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        return Value(externals=frozenset({"functools.wraps()"}))

    def _given(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        return arguments[0] if arguments else NOTHING

    def _weakref(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        target = arguments[0] if arguments else NOTHING
        return retagged(flat(target), Tag.IDENTITY, Tag.RAW, Tag.DATA)

    def _method_type(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        return self._partial(arguments, keywords, node)

    def _execute(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        texts = arguments[0].texts if arguments else frozenset()
        return join_all(self.run_source(text, node) for text in sorted(texts))

    def _setitem(self, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
        if len(arguments) == 3:
            self.assign_item(arguments[0], arguments[1], arguments[2], node)
        return NOTHING

    def assign_item(self, base: Value, key: Value, value: Value, node: ast.AST) -> None:
        """Follow a write to an element of a container, a namespace or a tensor."""
        base = flat(base)
        for obj in base.objects:
            if obj.kind in ("dict", "list", "set", "module", "instance", "class"):
                self.store((obj, self.item_field(base, obj, key)), value, key, node)
        tables = frozenset(e for e in base.externals if e.endswith(_TABLES))
        if tables:
            table = Value(externals=tables)
            self.trace.patches.append(Patch(table, key.texts, value, self.site(node)))
        if base.tensor or base.has(Tag.STALE):
            self.write_tensor(base, [value])

    _models: ClassVar[dict[str, Callable[[Library, Arguments, Keywords, ast.AST], Value]]] = {
        "builtins.id": _id,
        "builtins.hash": _hash,
        **dict.fromkeys([f"builtins.{name}" for name in sorted(known.CASTS)], _cast),
        "builtins.len": _nothing,
        "builtins.isinstance": _nothing,
        "builtins.issubclass": _nothing,
        "builtins.hasattr": _asked,
        "builtins.dir": _asked,
        "builtins.print": _nothing,
        "builtins.callable": _nothing,
        "builtins.type": _nothing,
        "builtins.range": _nothing,
        "builtins.sorted": _listed,
        "builtins.list": _listed,
        "builtins.iter": _iterated,
        "builtins.next": _iterated,
        "builtins.reversed": _listed,
        "builtins.min": _chosen,
        "builtins.max": _chosen,
        "builtins.tuple": _tupled,
        "builtins.frozenset": _listed,
        "builtins.zip": _zip,
        "builtins.enumerate": _enumerate,
        "builtins.map": _map,
        "builtins.filter": _map,
        "builtins.getattr": _getattr,
        "builtins.setattr": _setattr,
        "builtins.delattr": _setattr,
        "builtins.vars": _vars,
        "builtins.locals": _vars,
        "builtins.globals": _globals,
        "builtins.__import__": _imported,
        "importlib.import_module": _imported,
        "builtins.exec": _execute,
        "builtins.eval": _execute,
        "builtins.compile": _given,
        "operator.attrgetter": _attrgetter,
        "operator.setitem": _setitem,
        "functools.partial": _partial,
        "functools.wraps": _wraps,
        "functools.wraps()": _given,
        "types.MethodType": _method_type,
        "weakref.ref": _weakref,
        "weakref.proxy": _weakref,
        "copy.copy": _given,
        "copy.deepcopy": _given,
        "contextlib.contextmanager": _given,
        "builtins.staticmethod": _given,
        "builtins.classmethod": _given,
        "builtins.property": _given,
        "dataclasses.dataclass": _given,
        "typing.cast": lambda self, a, k, n: a[-1] if a else NOTHING,
    }


#: Namespaces that are written to by key.
_TABLES = ".__dict__", "sys.modules", "os.environ"

#: Packages whose functions are no kernels, whatever they are given.
_STANDARD = names(
    "math operator itertools functools collections logging warnings os sys time re json typing"
    " contextlib dataclasses pathlib string statistics random threading concurrent asyncio weakref"
    " types inspect copy atexit ctypes gc io traceback abc enum packaging einops triton queue"
    " multiprocessing subprocess tempfile builtins platform importlib"
)
