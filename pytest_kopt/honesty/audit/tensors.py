"""How tensors flow through torch and numpy: which results hold data, identity, content or none."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from pytest_kopt.honesty.audit import vocabulary as known
from pytest_kopt.honesty.audit.machine import Machine
from pytest_kopt.honesty.audit.values import (
    NOTHING,
    Object,
    Tag,
    Value,
    computed,
    flat,
    join,
    join_all,
    retagged,
)

#: Keywords that say how to make a tensor, not of what.
_MANNERS = frozenset({"dtype", "device", "layout", "dim", "axis", "memory_format"})
#: Calls by which one stream or the host waits for another.
JOINS = frozenset({"wait_stream", "wait_event", "synchronize", "wait"})


_ALSO_OPERATORS = "torch.ops.", "torch._", "torch.Tensor."


def opaque(values: Sequence[Value]) -> Value:
    """Return what a function that the audit cannot see may have made of these."""
    mixed = computed(values)
    facts = frozenset((Tag.OPAQUE, a) if t is Tag.DATA else (t, a) for t, a in mixed.facts)
    return Value(facts, texts=mixed.texts)


class Tensors(Machine):
    """Models of torch's and numpy's functions and of tensors' methods and attributes."""

    def launch(self, arguments: Sequence[Value], node: ast.AST) -> Value:
        """Follow a kernel of the author's own: it may write to every tensor it is given."""
        self.flow.launched = True
        self.trace.launches.append(self.site(node))
        sources = [self.deep(value) for value in arguments]
        self._see(arguments)
        for value in arguments:
            self.write_tensor(flat(value), sources, whole=False)
        return opaque(sources)

    def tensor_function(
        self, name: str, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Return what a function of torch or numpy gives."""
        last = name.rpartition(".")[2]
        every = [*arguments, *(v for n, v in keywords.items() if n not in _MANNERS)]
        if name.startswith("torch.ops.") and name.split(".")[2] not in known.VENDOR_OPS:
            return self.launch(every, node)
        if last in known.ALLOCATORS and "out" not in keywords:
            if last.endswith("_like"):
                self.used_as_tensor(*map(flat, arguments[:1]))
            return Value(objects=frozenset({self.new("tensor", node)}))
        if last in ("_make_subclass", "_make_wrapper_subclass") and arguments:
            made = frozenset(
                Object("instance", self.epoch, definition=node, classes=(cls,))
                for cls in arguments[0].objects
            )
            return Value(computed(map(self.deep, arguments[1:])).facts, made)
        if name.startswith(known.WITHOUT_DATA):
            self._streams(name, last)
            given = join_all(value for value in every if value.objects)
            functions = frozenset(o for o in given.objects if o.kind in ("function", "class"))
            texts = frozenset().union(*(value.texts for value in every))
            return Value(objects=functions, externals=frozenset({f"{name}()"}), texts=texts)
        if name in known.CONTENT_FUNCTIONS:
            whole = join_all(self.deep(value) for value in every)
            return retagged(whole, Tag.CONTENT, Tag.RAW, Tag.DATA, Tag.CONTENT)
        home = name.rpartition(".")[0]
        sources = [self.deep(value) for value in every]
        operator = home in known.OPERATORS or name.startswith(_ALSO_OPERATORS)
        if name.startswith("torch.") and not operator:
            self._see(every)
            return opaque(sources)
        if home in (*known.OPERATORS, "torch.Tensor") and last not in known.CONVERSIONS:
            operands = arguments if last in known.PRODUCTS else arguments[:1]
            self.used_as_tensor(*map(flat, operands))
        self._see(every)
        result = computed(sources)
        if "out" in keywords:
            self.write_tensor(flat(keywords["out"]), sources)
            return keywords["out"]
        if last.endswith("_") and arguments:
            self.write_tensor(arguments[0], sources, whole=last in known.OVERWRITES)
            return join(arguments[0], result)
        if last in ("from_numpy", "as_tensor", "asarray", "clone", "as_strided", "detach"):
            return result.plus(f for s in sources for f in s.facts if f[0] is Tag.REPLAY)
        return result

    def _see(self, values: Sequence[Value]) -> None:
        self.used_as_tensor(*map(flat, values), surely=False)

    def _streams(self, name: str, last: str) -> None:
        if name.startswith(("torch.cuda", "torch.xpu", "torch.accelerator")) and last in JOINS:
            self.flow.pending = frozenset()

    def tensor_method(
        self,
        base: Value,
        name: str,
        arguments: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
    ) -> Value:
        """Return what a method of a tensor, or of something unknown made of one, gives."""
        base = self.resolved(flat(base))
        self.used_as_tensor(base, surely=name in known.TENSORS_ONLY)
        if name in known.META_METHODS or name in known.ALLOCATING_METHODS:
            if name in known.META_METHODS:
                return NOTHING
            return Value(objects=frozenset({self.new("tensor", node)}))
        if name in known.IDENTITY_METHODS:
            return retagged(base, Tag.IDENTITY, Tag.RAW, Tag.DATA)
        every = [*arguments, *keywords.values()]
        if name in known.CONTENT_METHODS:
            whole = join_all([base, *(self.deep(value) for value in every)])
            return retagged(whole, Tag.CONTENT, Tag.RAW, Tag.DATA, Tag.CONTENT)
        if name in known.VIEWS:
            return base
        if name in known.COPIES:
            result = computed([base]).plus(f for f in base.facts if f[0] is Tag.REPLAY)
            if name != "clone":
                result = result.plus(f for f in base.facts if f[0] is Tag.RAW)
            return result
        sources = [base, *(self.deep(value) for value in every)]
        if name.endswith("_") and not name.endswith("__"):
            self.write_tensor(base, sources, whole=name in known.OVERWRITES)
            return join(base, replace(computed(sources), texts=frozenset()))
        if "out" in keywords:
            self.write_tensor(flat(keywords["out"]), sources)
            return keywords["out"]
        if any(o.kind == "tensor" for o in base.objects) or base.has(Tag.DATA):
            self._see(arguments)
        return computed(sources)

    def tensor_attribute(self, base: Value, name: str) -> Value | None:
        """Return an attribute of a tensor; None for one that tensors do not have."""
        self.used_as_tensor(base, surely=name in known.TENSORS_ONLY)
        if name in known.META_ATTRIBUTES:
            return NOTHING
        if name in known.VIEWS:
            return base
        if name == "_version":
            return retagged(base, Tag.VERSION, Tag.RAW, Tag.DATA)
        if name in known.IDENTITY_ATTRIBUTES:
            return retagged(base, Tag.IDENTITY, Tag.RAW, Tag.DATA)
        if name == "grad":
            return retagged(base, Tag.DATA, Tag.RAW, Tag.DATA)
        return None
