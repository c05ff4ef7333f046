"""A case as a test declares it: its arguments, and which of them do not fit."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_kopt.cases.result import named
from pytest_kopt.devices.states import CACHES, COLD, OPERATING_POINTS
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.nearby_shapes import DOMAIN
from pytest_kopt.schema.columns import BUILT_IN, GROUPED_GEMM, Scalar, Schema, resolve

if TYPE_CHECKING:
    from pytest_kopt.numerics.gates import Gate

Work = float | tuple[float, float]
#: Makes the error about an argument of a case.
Refusal: TypeAlias = Callable[..., BadInput]
#: How the names of returned results begin.
RETURNED = "out"
#: What stands in `consumes` for the gradients that a backward is given.
GRAD_OUT = "grad_out"
#: What `nan` is where NaN is the answer.
EQUAL = "equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The function under optimisation with everything needed to check and time it.

    It has the arguments of `kopt()`, some of them completed. The reference returns the `owed` ones
    of the inputs that the function `writes`, and writes the others.
    """

    nodeid: str
    function: Callable[..., Any]
    schema: Schema
    # What makes fresh arguments; tensors that a module holds are among them.
    inputs: Callable[[], Sequence[Any] | Mapping[str, Any]]
    # What computes the same in a higher precision.
    reference: Callable[..., Any]
    # What tells the case from others, complete and in column order, and the name that it gives.
    dims: dict[str, Scalar]
    label: str
    # Whether gradients are checked and timed too.
    backward: bool = False
    # Positions of inputs: parameters, results, and what may hold anything after the call; and
    # whether a backward consumes its gradients.
    weights: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    owed: tuple[int, ...] = ()
    consumes: tuple[int, ...] = ()
    consumes_incoming: bool = False
    # The work of forward and backward, as far as declared.
    flops: tuple[float, float] | None = None
    nbytes: tuple[float, float] | None = None
    # One of distributions for a case that is statistical.
    gate: Gate | Mapping[str, Gate] | None = None
    # The position of a grouped GEMM's group sizes (None: kopt looks for them), which kopt draws
    # again in multiples of the next.
    groups: int | None = None
    group_multiple: int = 1
    # What the function need not support, and whether NaN may be an answer.
    domain: tuple[str, ...] = ()
    nan: str | None = None
    # Where inputs are when their call is timed, and the clock that decides (None: the session's).
    cache: str = COLD
    operating_point: str | None = None
    # The case's own regression limit in percent and in microseconds, both of which a loss has to
    # exceed (None: the policy's), and what its time counts for.
    limit_pct: float | None = None
    limit_us: float | None = None
    weight: float = 1.0
    # Whether equal calls have to give equal bits, even where the incumbent's do not.
    deterministic: bool = False
    # Whether a row's result has to have equal bits in every batch.
    batch_invariant: bool = False
    # The names of inputs where they have some, and the positions of lists, dicts or dataclasses
    # that a call puts results into.
    keywords: tuple[str, ...] = ()
    fills: tuple[int, ...] = ()
    # The names of what the reference returns besides what it writes; None: not seen yet.
    returns: frozenset[str] | None = None
    # The gates of results, by name, that the tolerance of their dtype cannot judge.
    derived_gates: Mapping[str, Gate] = field(default_factory=dict)

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
        return self.declared_gate_of(name) or self.derived_gates.get(name)

    def declared_gate_of(self, name: str) -> Gate | None:
        return self.gate.get(name) if isinstance(self.gate, Mapping) else self.gate

    def like(self, observed: Case) -> Case:
        """Return the case with what another one's reference was seen to do, and its gates."""
        observed_fields = ("writes", "owed", "consumes", "keywords", "fills", "returns", "nan")
        observations = (*observed_fields, "derived_gates")
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


#: What `kopt()` takes for arguments that a test does not give.
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("inputs", "reference", "dims", "label", "statistical")),
    **{part.name: part.default for part in fields(Case) if part.default is not MISSING},
}


def declare(
    nodeid: str, schema: str | Schema, function: Callable[..., Any], **arguments: Any
) -> Case:
    """Build a case of the arguments of `kopt()`; BadInput names one that does not fit."""
    declared = SimpleNamespace(**_DEFAULTS | arguments)
    refusal = functools.partial(BadInput, where=f"case {nodeid}")
    words = declared.domain.split(",") if isinstance(declared.domain, str) else declared.domain
    domain = tuple(filter(None, (word.strip() for word in words)))
    _check(declared, function, domain, refusal)
    inputs, reference, weights = declared.inputs, declared.reference, declared.weights
    if _holds_tensors(function):
        function, inputs, reference, weights = _opened(
            function, inputs, reference, weights, refusal
        )
    row_schema = resolve(schema, nodeid)
    dims = row_schema.complete_dims(declared.dims, nodeid)
    if declared.backward and not _has_backward(row_schema):
        names = ", ".join(name for name, s in BUILT_IN.items() if _has_backward(s))
        raise refusal(
            f"backward=True, but schema {row_schema.name!r} has no backward column",
            fix=f"use one of the schemas {names}, or backward=False",
        )
    gate, error_rate = declared.gate, vars(declared).pop("statistical")
    if error_rate is not None:
        from pytest_kopt.numerics.gates import Gate

        gate = Gate(error_rate=error_rate)
    positions = [place for place in declared.consumes if place != GRAD_OUT]
    completed = {
        "nodeid": nodeid,
        "function": function,
        "schema": row_schema,
        "inputs": inputs,
        "reference": reference,
        "dims": dims,
        "label": declared.label or named(nodeid, dims),
        "weights": tuple(weights),
        "writes": _positions("writes", declared.writes, refusal),
        "consumes": _positions("consumes", positions, refusal),
        "consumes_incoming": GRAD_OUT in declared.consumes,
        **_work_of(declared, row_schema, dims, refusal),
        "gate": gate,
        "domain": domain,
    }
    return Case(**vars(declared) | completed)


def _check(
    declared: SimpleNamespace, function: object, domain: Sequence[str], refusal: Refusal
) -> None:
    """Raise BadInput, naming the argument that does not fit and what would."""
    for name, argument, legal in (
        ("function", function, "the function itself, uncalled"),
        (
            "inputs",
            declared.inputs,
            "a function that returns fresh arguments: lambda: (torch.randn(…), …)",
        ),
        (
            "reference",
            declared.reference,
            "a function of the same arguments that computes in higher precision",
        ),
        ("dims", declared.dims, "the values that distinguish the case: {'n': 4096}"),
    ):
        if not (isinstance(argument, Mapping) if name == "dims" else callable(argument)):
            problem = "missing" if argument is None else f"a {type(argument).__name__}"
            raise refusal(f"{name} is {problem}", legal=legal)
    gates = declared.gate.values() if isinstance(declared.gate, Mapping) else [declared.gate]
    if not all(gate is None or hasattr(gate, "passes") for gate in gates):
        raise refusal(
            f"gate is {declared.gate!r}",
            legal="None, snr(…), tolerance(…), bitwise(), or a dict of them by name of the result",
        )
    for name, number, least in (
        ("groups", declared.groups, 0),
        ("group_multiple", declared.group_multiple, 1),
    ):
        is_number = type(number) is int and number >= least
        if not is_number and (name, number) != ("groups", None):
            raise refusal(f"{name} is {number!r}", legal=f"an integer of at least {least}")
    for name, figure, most, legal in (
        ("limit_pct", declared.limit_pct, 100, "None, or a percentage above 0, at most 100"),
        ("limit_us", declared.limit_us, math.inf, "None, or a number of microseconds above 0"),
        ("weight", declared.weight, math.inf, "a number above 0"),
    ):
        is_number = isinstance(figure, int | float) and not isinstance(figure, bool)
        is_legal = is_number and 0 < (figure or 0) <= most and math.isfinite(figure or 0)
        is_left_out = figure is None and name != "weight"
        if not (is_legal or is_left_out):
            raise refusal(f"{name} is {figure!r}", legal=legal)
    for name, word, words in (
        ("cache", declared.cache, CACHES),
        ("operating_point", declared.operating_point, (None, *OPERATING_POINTS)),
    ):
        if word not in words:
            raise refusal(f"{name} is {word!r}", legal=" or ".join(map(repr, words)))
    if declared.nan not in (None, EQUAL):
        raise refusal(
            f"nan is {declared.nan!r}", legal=f"None, or {EQUAL!r} if NaN is a right result"
        )
    for name in ("deterministic", "batch_invariant"):
        if type(getattr(declared, name)) is not bool:
            raise refusal(f"{name} is {getattr(declared, name)!r}", legal="True or False")
    if declared.statistical is not None:
        if not (isinstance(declared.statistical, float) and 0 < declared.statistical < 1):
            raise refusal(
                f"statistical is {declared.statistical!r}", legal="an error rate such as 1e-6"
            )
        if declared.gate or declared.deterministic or declared.batch_invariant:
            raise refusal(
                "statistical is declared together with gate, deterministic or batch_invariant",
                fix="remove these: kopt compares the distribution, and no element or bit",
            )
    for unknown in {*domain}.difference(DOMAIN):
        raise refusal(f"domain has {unknown!r}", legal=DOMAIN)


def _work_of(
    declared: SimpleNamespace, schema: Schema, dims: Mapping[str, Scalar], refusal: Refusal
) -> dict[str, tuple[float, float] | None]:
    """Return FLOPs and bytes, each (forward, backward); a GEMM's FLOPs follow from its dims."""
    flops = declared.flops
    if flops is None and schema.name == "gemm":
        flops = 2.0 * math.prod(int(dims[name]) for name in "BMNK")
    work = {
        "flops": _pair("flops", flops, refusal),
        "nbytes": _pair("nbytes", declared.nbytes, refusal),
    }
    if schema.work is not None and work[schema.work] is None:
        fix = f"add {schema.work}=NUMBER, or a pair (forward, backward)"
        raise refusal(f"schema {schema.name!r} needs {schema.work}", fix=fix)
    return work


def _pair(name: str, work: Work | None, refusal: Refusal) -> tuple[float, float] | None:
    """Return (forward, backward); the backward counts double unless told."""
    if work is None:
        return None
    pair = work if isinstance(work, tuple) else (work, work)
    if len(pair) != 2 or not all(isinstance(part, int | float) and part > 0 for part in pair):
        raise refusal(f"{name} is {work!r}", legal="a number above 0, or a pair of them")
    return float(pair[0]), float(pair[1]) * (1.0 if isinstance(work, tuple) else 2.0)


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
