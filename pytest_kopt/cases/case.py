"""A case as a test declares it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_kopt.cases.declaration import (
    Declaration,
    Refusal,
    check,
    excluded_by,
    gate_of,
    work_of,
)
from pytest_kopt.cases.result import named
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.profile import BUILT_IN, GROUPED_GEMM, Scalar, Schema, resolve

if TYPE_CHECKING:
    from pytest_kopt.numerics.gates import Gate

#: How the names of returned results begin.
RETURNED = "out"
#: What stands in `consumes` for the gradients that a backward is given.
GRAD_OUT = "grad_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Declaration):
    """The function under optimisation with everything needed to check and time it.

    It has the arguments of its declaration, some of them completed. The reference returns the
    `owed` ones of the inputs that the function `writes`, and writes the others.
    """

    nodeid: str
    function: Callable[..., Any]
    schema: Schema
    # Tensors that a module holds are among the inputs, which the reference takes too.
    inputs: Callable[[], Sequence[Any] | Mapping[str, Any]]
    reference: Callable[..., Any]
    # Complete and in column order.
    dims: dict[str, Scalar]
    label: str
    # Positions, whatever they were declared as; and whether a backward consumes its gradients.
    weights: tuple[int, ...]
    writes: tuple[int, ...]
    owed: tuple[int, ...]
    consumes: tuple[int, ...]
    consumes_incoming: bool
    # (forward, backward), as far as declared.
    flops: tuple[float, float] | None
    nbytes: tuple[float, float] | None
    # One of distributions for a case that is statistical.
    gate: Gate | Mapping[str, Gate] | None
    domain: tuple[str, ...]
    # The names of inputs where they have some, and the positions of lists, dicts or dataclasses
    # that a call puts results into.
    keywords: tuple[str, ...] = ()
    fills: tuple[int, ...] = ()
    # The names of what the reference returns besides what it writes; None: not seen yet.
    returns: frozenset[str] | None = None

    def refusal(self, problem: str, legal: str | Iterable[str] = "", *, fix: str = "") -> BadInput:
        return BadInput(problem, where=f"case {self.nodeid}", legal=legal, fix=fix)

    @property
    def is_grouped(self) -> bool:
        """Whether it is a grouped GEMM, which has to hold whatever the groups' sizes are."""
        named = self.schema.name == GROUPED_GEMM.name or {"G", "distribution"} <= self.dims.keys()
        return named or self.groups is not None

    def arguments(self) -> tuple[Any, ...]:
        """Return fresh inputs in order, with names or without."""
        drawn = self.inputs()
        return tuple(drawn.values() if isinstance(drawn, Mapping) else drawn)

    def gate_of(self, name: str) -> Gate | None:
        """Return the gate of an output or gradient of this name, None where its dtype chooses."""
        return self.gate.get(name) if isinstance(self.gate, Mapping) else self.gate

    def like(self, observed: Case) -> Case:
        """Return the case with what another one's reference was seen to do."""
        observations = ("writes", "owed", "consumes", "keywords", "fills", "returns", "nan")
        return replace(self, **{name: getattr(observed, name) for name in observations})

    def positional(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls a function with the inputs in order, by keyword where named.

        If the function `fills` inputs, each call has copies of them that hold the same, and returns
        what is in them as well.
        """
        if not (self.keywords or self.fills):
            return function

        def named(*arguments: Any) -> Any:
            return function(**dict(zip(self.keywords, arguments, strict=True)))

        call = named if self.keywords else function
        return self._filling(call) if self.fills else call

    def _filling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        from pytest_kopt.numerics.nested import Filled, flatten, with_own_containers

        def call(*arguments: Any) -> Filled:
            holders = {place: with_own_containers(arguments[place]) for place in self.fills}
            returned = function(*(holders.get(place, x) for place, x in enumerate(arguments)))
            results = {} if returned is None else flatten(returned, RETURNED)
            for place, holder in holders.items():
                before = flatten(arguments[place], input_name(place))
                now = flatten(holder, input_name(place))
                results |= {n: x for n, x in now.items() if x is not before.get(n)}
            return Filled(tuple(results), tuple(results.values()))

        return call

    @property
    def work(self) -> tuple[float, float] | None:
        return {"flops": self.flops, "nbytes": self.nbytes, None: None}[self.schema.work]

    @property
    def is_statistical(self) -> bool:
        """Whether results have to have the reference's distribution, not its values."""
        return getattr(self.gate, "error_rate", None) is not None

    @property
    def keeps_order(self) -> bool:
        """Whether elements of the inputs are to keep their places, also in timed content."""
        return "declared order" in self.domain

    @property
    def rewritten(self) -> frozenset[int]:
        return frozenset(self.writes + self.consumes)

    @property
    def header(self) -> tuple[str, ...]:
        return self.schema.header(tuple(self.dims))


def declare(
    nodeid: str, schema: str | Schema, function: Callable[..., Any], **arguments: Any
) -> Case:
    """Build a case of the arguments of a declaration; BadInput names one that does not fit."""
    declared = Declaration(**arguments)
    refusal = functools.partial(BadInput, where=f"case {nodeid}")
    check(declared, function, refusal)
    inputs, reference, weights = declared.inputs, declared.reference, declared.weights
    assert inputs and reference and declared.dims is not None
    if _holds_tensors(function):
        function, inputs, reference, weights = _opened(
            function, inputs, reference, weights, refusal
        )
    profile = resolve(schema, nodeid)
    full = profile.complete_dims(declared.dims, nodeid)
    if declared.backward and not _has_backward(profile):
        names = ", ".join(name for name, s in BUILT_IN.items() if _has_backward(s))
        raise refusal(
            f"backward=True, but schema {profile.name!r} has no backward column",
            fix=f"use one of the schemas {names}, or backward=False",
        )
    work = work_of(declared, profile, full, refusal)
    positions = [place for place in declared.consumes if place != GRAD_OUT]
    return Case(
        nodeid=nodeid,
        function=function,
        inputs=inputs,
        reference=reference,
        schema=profile,
        dims=full,
        label=declared.label or named(nodeid, full),
        weights=tuple(weights),
        writes=_positions("writes", declared.writes, refusal),
        owed=(),
        consumes=_positions("consumes", positions, refusal),
        consumes_incoming=GRAD_OUT in declared.consumes,
        flops=work["flops"],
        nbytes=work["nbytes"],
        gate=gate_of(declared),
        domain=excluded_by(declared),
        **{name: arguments[name] for name in arguments.keys() - Case.__annotations__.keys()},
    )


def input_name(place: int) -> str:
    """Return the name of an input that holds a result."""
    return f"input {place}"


def _has_backward(schema: Schema) -> bool:
    return any(column.is_backward for column in schema.columns)


def _holds_tensors(function: Any) -> bool:
    """Say whether a function is a module with parameters or buffers, or a method of one."""
    owner = getattr(function, "__self__", function)
    is_module = hasattr(owner, "state_dict") and not isinstance(owner, type)
    return is_module and bool(owner.state_dict())


def _opened(
    function: Any,
    inputs: Callable[[], Any],
    reference: Any,
    weights: Sequence[int],
    refusal: Refusal,
) -> tuple[Callable[..., Any], Callable[[], Any], Callable[..., Any], tuple[int, ...]]:
    """Return a module as a function of its inputs and its state; the reference likewise."""
    from torch.func import functional_call

    module = getattr(function, "__self__", function)
    names = tuple(module.state_dict())
    sample = inputs()
    if function not in (module, module.forward) or not isinstance(sample, tuple | list):
        raise refusal(
            f"the function is {function_name(function)} of a {type(module).__name__}, which holds "
            f"{', '.join(names)}",
            fix="pass the module itself, with inputs() returning a tuple, or a function that takes "
            "its parameters and calls torch.func.functional_call",
        )
    count = len(sample)

    def drawn() -> tuple[Any, ...]:
        state = module.state_dict(keep_vars=True).values()
        copies = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in state]
        return (*inputs(), *copies)

    def layer(*items: Any) -> Any:
        return functional_call(module, dict(zip(names, items[count:], strict=True)), items[:count])

    def exact(*items: Any) -> Any:
        state = reference.state_dict()
        width = next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
        wide = [x.to(width) if is_floating(x) else x for x in items]
        return functional_call(
            reference, dict(zip(names, wide[count:], strict=True)), tuple(wide[:count])
        )

    layer.__qualname__ = type(module).__qualname__
    same = exact if _holds_tensors(reference) else reference
    # Buffers are what a step finds, and leaves: running statistics.
    parameters = {name for name, _ in module.named_parameters()}
    parameter_places = (place for place, name in enumerate(names, count) if name in parameters)
    return layer, drawn, same, (*weights, *parameter_places)


def is_floating(value: Any) -> bool:
    return getattr(value, "is_floating_point", bool)()


def _positions(name: str, positions: Sequence[Any], refusal: Refusal) -> tuple[int, ...]:
    if isinstance(positions, str) or not all(
        type(place) is int and place >= 0 for place in positions
    ):
        more = f", or {GRAD_OUT!r}" if name == "consumes" else ""
        raise refusal(f"{name} is {positions!r}", legal=f"a tuple of positions of inputs{more}")
    return tuple(positions)


def function_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
