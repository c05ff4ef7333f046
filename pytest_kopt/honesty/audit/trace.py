"""What happened while the kernel's files were followed: the only thing that the rules read."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from pytest_kopt.honesty.audit.values import Fact, Location, Object, Origin, Value


@dataclass(frozen=True, slots=True)
class Root:
    """Where following began: a module's import, or a function that nobody had to call first.

    `called` says that other code of the kernel calls it, or of an import that nothing shows to
    happen; `weights` are the parameters known to outlive a step, None where nothing is known.
    """

    number: int
    name: str
    path: str
    importing: bool = False
    entry: bool = False
    called: bool = False
    method: bool = False
    parameters: tuple[str, ...] = ()
    weights: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the kernel, how it was reached, and what had to hold to get there."""

    path: str
    function: str
    node: ast.AST
    root: Root
    controls: frozenset[Fact]

    @property
    def line(self) -> int:
        """The line in the file; 0 where the syntax has none."""
        return getattr(self.node, "lineno", 0)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of something outside the kernel."""

    name: str
    base: Value
    arguments: tuple[Value, ...]
    keywords: dict[str, Value]
    site: Site


@dataclass(frozen=True, slots=True)
class Read:
    """An attribute or module outside the kernel that was looked at; `value` for a local base."""

    name: str
    site: Site


@dataclass(frozen=True, slots=True)
class Patch:
    """A write to something that is not the kernel's: `base` names it, `attribute` may be ''."""

    base: Value
    attributes: frozenset[str]
    value: Value
    site: Site


@dataclass(frozen=True, slots=True)
class Store:
    """A write to a location that outlives the call; objects in `value` are looked into.

    `late` is a tensor's memory, filled when the tensor was there already.
    """

    location: Location
    value: Value
    key: Value
    site: Site
    late: bool = False


@dataclass(frozen=True, slots=True)
class Return:
    """A return of a root: with what was stored or overwritten on the way to it.

    `argument` says that it may be an argument itself.
    """

    value: Value
    argument: bool
    site: Site
    fresh: frozenset[Location]
    touched: frozenset[Location]
    pending: frozenset[ast.AST]
    launched: bool


@dataclass(frozen=True, slots=True)
class Class:
    """A class definition."""

    object: Object
    bases: frozenset[str]
    site: Site


@dataclass(frozen=True, slots=True)
class Check:
    """An assertion: its test."""

    test: ast.expr
    value: Value
    site: Site


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison or a truth test that mixes these values."""

    operands: tuple[Value, ...]
    site: Site


@dataclass(slots=True)
class Trace:
    """Everything recorded, in the order it was met; one site can come up several times."""

    calls: list[Call] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    launches: list[Site] = field(default_factory=list)
    #: Parameters seen to be used as only tensors are, and as tensors are among others.
    tensors: set[Origin] = field(default_factory=set)
    likely: set[Origin] = field(default_factory=set)
