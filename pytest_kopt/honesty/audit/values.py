"""What the audit knows of a value: where it came from, never what it is.

A value is a set of *facts*, each a tag with what it is about. A tensor parameter is followed by its
*origin*: the analysed function (root) that took it, and its name.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeVar

T = TypeVar("T")
Origin = tuple[int, str]
Location = tuple["Object", str]
Fact = tuple["Tag", Hashable]

#: What is followed of one value; a value that can be more than this can be anything.
_MOST_TEXTS, _MOST_EXTERNALS, _MOST_OBJECTS, _MOST_FACTS = 24, 12, 48, 160


class Tag(Enum):
    """What a fact says of a value."""

    RAW = "a parameter itself, or a view of it"
    DATA = "tensor data computed from a parameter"
    OPAQUE = "what a function outside the kernel made of a parameter"
    IDENTITY = "which object a parameter is: its id, its address"
    VERSION = "how often a parameter was written to"
    CONTENT = "host numbers or bytes read from a parameter's elements"
    STALE = "computed from what an earlier call may have left in a location"
    REPLAY = "what an earlier call may have left in a location, itself"
    MARK = "a property, named by its text"

    # Members are compared by identity; Enum's own hash goes through the name.
    __hash__ = object.__hash__


class Object:
    """Something with fields that can outlive a call: container, instance, class, module, frame.

    `epoch` counts the calls analysed so far: an object of an earlier epoch was there before this
    call began.
    """

    __slots__ = (
        "classes",
        "definition",
        "epoch",
        "fields",
        "flags",
        "frame",
        "home",
        "kind",
        "path",
    )

    def __init__(
        self,
        kind: str,
        epoch: int,
        *,
        definition: ast.AST | None = None,
        frame: Object | None = None,
        path: str = "",
        classes: tuple[Object, ...] = (),
    ) -> None:
        self.kind = kind
        self.epoch = epoch
        self.fields: dict[str, Value] = {}
        self.definition = definition
        self.frame = frame
        self.path = path
        self.classes = classes
        self.flags: set[str] = set()
        #: Where a tensor is kept beyond its call.
        self.home: Location | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """An abstract value.

    `objects` are what it may refer to, `externals` dotted names outside the kernel (`torch.mm`;
    a call's result ends in `()`), `texts` the strings that it may be or was made of, `items` the
    elements of a tuple written out.
    """

    facts: frozenset[Fact] = frozenset()
    objects: frozenset[Object] = frozenset()
    externals: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    items: tuple[Value, ...] | None = None

    def about(self, *tags: Tag) -> frozenset[Hashable]:
        """Return what facts with one of these tags are about."""
        return frozenset(about for tag, about in self.facts if tag in tags)

    def has(self, *tags: Tag) -> bool:
        """Say whether a fact has one of these tags."""
        return any(tag in tags for tag, _ in self.facts)

    def marked(self, text: str) -> bool:
        """Say whether the value bears a mark."""
        return (Tag.MARK, text) in self.facts

    def plus(self, facts: Iterable[Fact]) -> Value:
        """Return the value with more facts."""
        more = frozenset(facts)
        return self if more <= self.facts else replace(self, facts=self.facts | more)

    @property
    def tensor(self) -> bool:
        """Whether it may be a parameter or a tensor."""
        return self.has(Tag.RAW, Tag.DATA) or any(o.kind == "tensor" for o in self.objects)


NOTHING: Final = Value()


def join(first: Value, second: Value) -> Value:
    """Return what holds of a value that is one or the other."""
    if first is second or second is NOTHING or second == NOTHING:
        return first
    if first is NOTHING or first == NOTHING:
        return second
    items = None
    if first.items is not None and second.items is not None:
        if len(first.items) == len(second.items):
            items = tuple(join(a, b) for a, b in zip(first.items, second.items, strict=True))
    elif first.items is not None or second.items is not None:
        first, second = flat(first), flat(second)
    if items is None and (first.items or second.items):
        first, second = flat(first), flat(second)
    return Value(
        _either(first.facts, second.facts, _MOST_FACTS),
        _either(first.objects, second.objects, _MOST_OBJECTS),
        _either(first.externals, second.externals, _MOST_EXTERNALS),
        _either(first.texts, second.texts, _MOST_TEXTS),
        items,
    )


def _either(first: frozenset[T], second: frozenset[T], most: int) -> frozenset[T]:
    """Return the union, or the first alone where the union is too large to follow."""
    if second <= first or len(first) >= most:
        return first
    return first | second


def join_all(values: Iterable[Value]) -> Value:
    """Return what holds of a value that is any of these."""
    result = NOTHING
    for value in values:
        result = join(result, value)
    return result


def flat(value: Value) -> Value:
    """Return a tuple as one value that may be any of its elements; others unchanged."""
    if value.items is None:
        return value
    return join(replace(value, items=None), join_all(flat(item) for item in value.items))


def pack(items: Iterable[Value]) -> Value:
    """Return a tuple of these values."""
    return Value(items=tuple(items))


_KEPT = frozenset(
    {Tag.DATA, Tag.OPAQUE, Tag.IDENTITY, Tag.VERSION, Tag.CONTENT, Tag.STALE, Tag.MARK}
)


def computed(values: Iterable[Value]) -> Value:
    """Return the result of arithmetic on these: parameters become data, replays become stale."""
    facts: set[Fact] = set()
    texts: set[str] = set()
    for value in values:
        whole = flat(value)
        texts |= whole.texts
        for fact in whole.facts:
            if fact[0] in _KEPT:
                facts.add(fact)
            elif fact[0] is Tag.RAW:
                facts.add((Tag.DATA, fact[1]))
        if len(facts) > _MOST_FACTS:
            break
    known = frozenset(texts) if len(texts) <= _MOST_TEXTS else frozenset(sorted(texts)[:8])
    return Value(frozenset(facts), texts=known)


def retagged(value: Value, tag: Tag, *sources: Tag) -> Value:
    """Return a value that says `tag` of whatever `value` says with one of `sources`.

    What the value knows of locations and marks is kept.
    """
    facts = {(tag, about) for about in value.about(*sources)}
    kept = {f for f in value.facts if f[0] in (Tag.STALE, Tag.MARK, tag)}
    return Value(frozenset(facts | kept))
