"""The state of following a kernel: frames, objects, and what holds on the path so far."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import cast

from pytest_kopt.honesty.audit.trace import Patch, Root, Site, Store, Trace
from pytest_kopt.honesty.audit.values import (
    NOTHING,
    Fact,
    Location,
    Object,
    Origin,
    Tag,
    Value,
    computed,
    flat,
    join,
    join_all,
)

#: Nodes evaluated for one root before calls are no longer entered, and for each file.
STEPS_PER_ROOT, STEPS_PER_FILE = 5_000, 20_000
#: Calls within calls; deeper ones are taken as functions that the audit cannot see.
DEPTH = 8
NAMESPACE = "namespace"
_NONE: frozenset[Fact] = frozenset()


class Exhausted(Exception):
    """The budget for following is spent."""


@dataclass(slots=True)
class Flow:
    """What holds on this path: locations stored to, overwritten in place, streams not joined."""

    fresh: frozenset[Location] = frozenset()
    overwritten: frozenset[Location] = frozenset()
    touched: frozenset[Location] = frozenset()
    pending: frozenset[ast.AST] = frozenset()
    launched: bool = False
    replayed: bool = False

    def meet(self, other: Flow) -> Flow:
        """Return what holds whichever of two paths was taken."""
        return Flow(
            self.fresh & other.fresh,
            self.overwritten & other.overwritten,
            self.touched & other.touched,
            self.pending | other.pending,
            self.launched or other.launched,
            self.replayed and other.replayed,
        )

    def copy(self) -> Flow:
        """Return a flow that can go its own way."""
        return replace(self)


@dataclass(slots=True)
class Activation:
    """A function being followed: its frame, where it stands, and how it has returned so far."""

    frame: Object
    path: str
    name: str
    outer: frozenset[str] = frozenset()
    module_names: frozenset[str] = frozenset()
    returns: list[tuple[Value, Flow]] = field(default_factory=list)
    loop_exits: list[tuple[dict[str, Value], Flow]] = field(default_factory=list)


class Machine(ABC):
    """Memory and bookkeeping; knows nothing of syntax."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.modules: dict[str, Object] = {}
        self.disk = Object("dict", 0)
        self.epoch = 0
        self.steps = 0
        self.limit = STEPS_PER_FILE
        self.flow = Flow()
        #: What had to hold to get here; each entry holds the ones below it too.
        self.controls: list[frozenset[Fact]] = []
        self.stack: list[Activation] = []
        self.running: list[Object] = []
        self.root = Root(0, "", "", importing=True)
        self.stored: set[Location] = set()
        #: The simple statement being followed: what a finding shows of a store.
        self.statement: ast.stmt | None = None
        #: Functions met and not entered yet.
        self.unseen: dict[Object, None] = {}

    @abstractmethod
    def call(
        self, callee: Value, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Return what a call of `callee` gives."""

    @abstractmethod
    def attribute(self, base: Value, name: str, node: ast.AST) -> Value:
        """Return an attribute of a value."""

    @abstractmethod
    def run_source(self, text: str, node: ast.AST) -> Value:
        """Follow code that is given as a string where it is executed."""

    # -- where we are

    @property
    def here(self) -> Activation:
        """The function being followed."""
        return self.stack[-1]

    def site(self, node: ast.AST) -> Site:
        """Return a node as a place, with what had to hold to get there."""
        controls = self.controls[-1] if self.controls else _NONE
        return Site(self.here.path, self.here.name, node, self.root, controls)

    def under(self, facts: frozenset[Fact]) -> None:
        """Go on where these hold as well as what held already."""
        self.controls.append(self.controls[-1] | facts if self.controls else facts)

    def snapshot(self) -> tuple[dict[str, Value], Flow]:
        """Return the state of this path, to go back to."""
        return dict(self.here.frame.fields), self.flow.copy()

    def restore(self, state: tuple[dict[str, Value], Flow]) -> None:
        """Go back to, or on with, a state."""
        # The dictionary itself is shared with closures and must stay the same one.
        self.here.frame.fields.clear()
        self.here.frame.fields.update(state[0])
        self.flow = state[1].copy()

    @staticmethod
    def merge(
        first: tuple[dict[str, Value], Flow], second: tuple[dict[str, Value], Flow]
    ) -> tuple[dict[str, Value], Flow]:
        """Return the state after either of two paths."""
        names = dict(first[0])
        for name, value in second[0].items():
            known = names.get(name)
            names[name] = value if known is None else join(known, value)
        return names, first[1].meet(second[1])

    # -- objects

    def persistent(self, obj: Object) -> bool:
        """Say whether an object was there before the call that is being followed."""
        return obj.epoch < self.epoch

    def new(self, kind: str, node: ast.AST | None = None) -> Object:
        """Make an object of this call."""
        return Object(kind, self.epoch, definition=node)

    def load(self, location: Location) -> Value:
        """Return what a location holds, told from what this call has put there itself."""
        obj, name = location
        value = obj.fields.get(name, NOTHING)
        return value.plus(self.staleness(location))

    def staleness(self, location: Location) -> Iterable[Fact]:
        """Return the facts of something read from a location that an earlier call may have left."""
        earlier = location in self.stored and self.persistent(location[0])
        if earlier and location not in self.flow.fresh:
            return ((Tag.STALE, location), (Tag.REPLAY, location))
        return ()

    def store(self, location: Location, value: Value, key: Value, node: ast.AST) -> None:
        """Write to a location; recorded where it outlives the call."""
        obj, name = location
        obj.fields[name] = join(obj.fields.get(name, NOTHING), value)
        if self.persistent(obj) and not self.root.importing:
            self.stored.add(location)
            self.flow.fresh |= {location}
            self._keep(value, location)
            site = self.site(self.statement or node)
            self.trace.stores.append(
                Store(location, self.deep(value), self.resolved(flat(key)), site)
            )

    def _keep(self, value: Value, location: Location, levels: int = 3) -> None:
        """Mark tensors that a location holds from now on: what fills them fills the location."""
        for obj in flat(value).objects:
            if obj.kind == "tensor" and obj.home is None:
                obj.home = location
            elif levels and obj.kind in ("instance", "dict", "list", "partial"):
                for held in list(obj.fields.values()):
                    self._keep(held, location, levels - 1)

    def resolved(self, value: Value) -> Value:
        """Return a value with what was written into the tensors it refers to."""
        facts: set[Fact] = set()
        for obj in value.objects:
            if obj.kind == "tensor":
                facts |= obj.fields.get("data", NOTHING).facts
        return value.plus(facts) if facts else value

    def deep(self, value: Value, levels: int = 3) -> Value:
        """Return a value with the facts of everything that can be reached from it."""
        whole = self.resolved(flat(value))
        if not levels:
            return whole
        facts: set[Fact] = set()
        for obj in whole.objects:
            if obj.kind in ("instance", "dict", "list", "set", "partial"):
                for held in list(obj.fields.values()):
                    facts |= self.deep(held, levels - 1).facts
        return whole.plus(facts)

    def write_tensor(self, target: Value, sources: Iterable[Value], *, whole: bool = True) -> None:
        """Follow a write of computed data into a tensor, in place."""
        data = computed(self.resolved(source) for source in sources)
        for obj in target.objects:
            if obj.kind != "tensor":
                continue
            if obj.home is not None:
                # A buffer that is kept: whether it is filled in every call is for the rules.
                site = self.site(self.statement or self.stack[-1].frame.definition or ast.Pass())
                self.trace.stores.append(Store(obj.home, data, NOTHING, site, late=True))
            elif not self.persistent(obj):
                obj.fields["data"] = join(obj.fields.get("data", NOTHING), data)
        written = {about for about in target.about(Tag.STALE) if isinstance(about, tuple)}
        self.flow.touched |= written
        if whole:
            self.flow.overwritten |= written

    def used_as_tensor(self, *values: Value, surely: bool = True) -> None:
        """Remember that these were used as tensors are: as only they are, or as others are too."""
        for value in values:
            origins = cast("frozenset[Origin]", value.about(Tag.RAW))
            self.trace.likely |= origins
            if surely:
                self.trace.tensors |= origins

    def patch(self, base: Value, attributes: Iterable[str], value: Value, node: ast.AST) -> None:
        """Record a write to something that may not be the kernel's."""
        self.trace.patches.append(Patch(base, frozenset(attributes), value, self.site(node)))

    # -- containers

    def item_field(self, base: Value, obj: Object, key: Value) -> str:
        """Return the field for a key: its own for a known string, a common one otherwise."""
        if len(key.texts) == 1 and key.facts == frozenset() and not key.objects:
            (text,) = key.texts
            return text if base.marked(NAMESPACE) or obj.kind == "module" else f"[{text}]"
        return "[]"

    def load_item(self, base: Value, obj: Object, key: Value) -> Value:
        """Return an element of a container."""
        name = self.item_field(base, obj, key)
        if name != "[]":
            value = self.load((obj, name))
            return join(value, self.load((obj, "[]"))) if "[]" in obj.fields else value
        return self.elements(obj)

    def elements(self, obj: Object) -> Value:
        """Return what any element of a container may be."""
        fields = [name for name in obj.fields if name.startswith("[") or obj.kind == "module"]
        return join_all(self.load((obj, name)) for name in fields)
