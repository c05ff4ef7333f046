"""The declaration of a case by its test, and the arguments in it that do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_kopt.devices.states import CACHES, COLD, OPERATING_POINTS
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.nearby_shapes import DOMAIN
from pytest_kopt.schema.profile import Scalar, Schema

if TYPE_CHECKING:
    from pytest_kopt.numerics.gates import Gate

Work = float | tuple[float, float]
#: Makes the error about an argument of a case.
Refusal: TypeAlias = Callable[..., BadInput]
#: What `nan` is where NaN is the answer.
EQUAL = "equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The declaration of a case, as the arguments of `kopt()`; see there."""

    # What makes fresh arguments, and what computes the same in a higher precision.
    inputs: Callable[[], Sequence[Any] | Mapping[str, Any]] | None = None
    reference: Callable[..., Any] | None = None
    # What tells the case from others, and the name that this gives it.
    dims: Mapping[str, Scalar] | None = None
    label: str | None = None
    # Whether gradients are checked and timed too.
    backward: bool = False
    # Positions of inputs: parameters, results, and what may hold anything after the call.
    weights: Sequence[int] = ()
    writes: Sequence[int] = ()
    consumes: Sequence[int | str] = ()
    # The work of a forward, or of forward and backward.
    flops: Work | None = None
    nbytes: Work | None = None
    gate: Gate | Mapping[str, Gate] | None = None
    # The position of a grouped GEMM's group sizes (None: kopt looks for them), which kopt draws
    # again in multiples of the next.
    groups: int | None = None
    group_multiple: int = 1
    # What the function need not support, and whether NaN may be an answer.
    domain: str | Sequence[str] = ()
    nan: str | None = None
    # Where inputs are when their call is timed, and the clock that decides (None: the session's).
    cache: str = COLD
    operating_point: str | None = None
    # The case's own regression limit in percent (None: the policy's), and what its time counts for.
    limit_pct: float | None = None
    weight: float = 1.0
    # Whether equal calls have to give equal bits, even where the incumbent's do not.
    deterministic: bool = False
    # Whether a row's result has to have equal bits in every batch.
    batch_invariant: bool = False
    # Compare distributions, not values: how often an honest function may fail.
    statistical: float | None = None


def check(declared: Declaration, function: object, refusal: Refusal) -> None:
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
        ("weight", declared.weight, math.inf, "a number above 0"),
    ):
        is_number = isinstance(figure, int | float) and not isinstance(figure, bool)
        is_legal = is_number and 0 < (figure or 0) <= most and math.isfinite(figure or 0)
        if not is_legal and (name, figure) != ("limit_pct", None):
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
        other = declared.gate or declared.deterministic or declared.batch_invariant
        if other:
            raise refusal(
                "statistical is declared together with gate, deterministic or batch_invariant",
                fix="remove these: kopt compares the distribution, and no element or bit",
            )
    for unknown in {*excluded_by(declared)}.difference(DOMAIN):
        raise refusal(f"domain has {unknown!r}", legal=DOMAIN)


def gate_of(declared: Declaration) -> Gate | Mapping[str, Gate] | None:
    if declared.statistical is None:
        return declared.gate
    from pytest_kopt.numerics.gates import Gate

    return Gate(error_rate=declared.statistical)


def excluded_by(declared: Declaration) -> tuple[str, ...]:
    """Return the words of `domain`."""
    words = declared.domain.split(",") if isinstance(declared.domain, str) else declared.domain
    return tuple(filter(None, (word.strip() for word in words)))


def work_of(
    declared: Declaration, schema: Schema, dims: Mapping[str, Scalar], refusal: Refusal
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
