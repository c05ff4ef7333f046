"""The axes along which inputs near a case's own are tried, and what the trials say of a candidate.

The results only say how the candidate differs from the current best: inputs that the current best
does not support say nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from pytest_kopt.honesty.finding import Finding

#: Why something could not be tried; other processes may have had the memory.
NO_MEMORY_LEFT = "the GPU had not enough memory left"
#: A name in AXES, or `renewed`: the content of timed blocks.
Kind = str
Outcome = Literal["right", "wrong", "raises"]
_SHAPE, _VALUES, _LAYOUT = "held-out-shape", "held-out-range", "held-out-layout"
_DTYPE, _GRADIENTS = "held-out-dtype", "held-out-gradients"
SIZES, _EQUAL, _MODERATE = "declared shapes", "equal sizes", "moderate values"
_ORDER, _DECLARED_DTYPES, _DECLARED_GRADIENTS = (
    *("declared order", "declared dtypes", "declared gradients"),
)
#: A speed-up at the declared shape from this on is expected nearby: half of it, as a logarithm.
_SPEEDUP = 1.1
#: Below this in the mean, and nowhere above the second, the candidate is slower than what it
#: replaces, whatever the noise of a few calls.
_SLOWER, _AS_FAST = 0.8, 0.95
#: So many cases have to be slower nearby, and none that is not, before it is no coincidence.
_CASES = 2


class NearAxis(NamedTuple):
    """Inputs that a case does not draw, and the consequence of a wrong result for them.

    A word in the case's `domain=` excludes them. An axis with a second word is another use than the
    case's: a wrong result is a flag, and REPAIR only if the case declares that use by the word.
    """

    description: str
    check: str
    excluded_by: str
    declared_by: str = ""


#: By kind. `cases/nearby/near_inputs.py` has the transformations of the same names.
AXES: dict[Kind, NearAxis] = {
    "aligned": NearAxis("another size", _SHAPE, SIZES),
    "size": NearAxis("another size", _SHAPE, SIZES),
    "alone": NearAxis("another size of one input alone", _SHAPE, _EQUAL),
    "broadcast": NearAxis("a dimension of one in one input alone", _SHAPE, _EQUAL, "broadcasting"),
    "values": NearAxis("other values", _VALUES, _MODERATE),
    "exact": NearAxis("the numbers -1, 0 and 1, whose result is exact", _VALUES, _MODERATE),
    "infinite": NearAxis("-inf in rows", _VALUES, "finite"),
    "unread": NearAxis("NaN in elements that the reference does not read", _VALUES, "finite"),
    "signs": NearAxis("the other sign", _VALUES, "declared signs"),
    "order": NearAxis("another order", _VALUES, _ORDER),
    "ends": NearAxis("integers at their ends", _VALUES, _ORDER),
    "numbers": NearAxis("other numbers and switches as arguments", _VALUES, "declared numbers"),
    "absent": NearAxis("None for a tensor", _VALUES, "declared arguments"),
    "masks": NearAxis("a mask that keeps nothing or everything", _VALUES, "declared masks"),
    "counts": NearAxis("a count or length of zero", _VALUES, "declared counts"),
    "filled": NearAxis("other values for a tensor of one value", _VALUES, "declared zeros"),
    "layout": NearAxis("another memory layout", _LAYOUT, "contiguous"),
    "aliased": NearAxis("a result that goes into an input", _LAYOUT, "separate results"),
    "same": NearAxis("one tensor as two inputs", _LAYOUT, "separate inputs"),
    "gradients": NearAxis("a call without some of its gradients", _GRADIENTS, _DECLARED_GRADIENTS),
    "again": NearAxis(
        "a second backward over one graph", _GRADIENTS, _DECLARED_GRADIENTS, "second backward"
    ),
    "twice": NearAxis(
        "gradients of gradients", _GRADIENTS, _DECLARED_GRADIENTS, "second gradients"
    ),
    "dtypes": NearAxis("inputs of another dtype", _DTYPE, _DECLARED_DTYPES, "other dtypes"),
    "autocast": NearAxis("a call under autocast", _DTYPE, _DECLARED_DTYPES, "autocast"),
}
#: A fused backward has none and cannot say so: nobody asks for it unless the case declares it.
_ONLY_DECLARED = ("twice",)
#: The input values of timed blocks, which are not tried by themselves.
RENEWED = NearAxis("the input values of timed calls", _VALUES, _MODERATE)
#: The words that declare another use, and all, most of which exclude inputs.
USES = tuple(axis.declared_by for axis in AXES.values() if axis.declared_by)
DOMAIN = (*dict.fromkeys(axis.excluded_by for axis in AXES.values()), *USES)


def tried_axes(domain: Container[str]) -> list[Kind]:
    """Return the kinds of inputs that a case of this domain is tried with."""
    return [
        kind
        for kind, axis in AXES.items()
        if axis.declared_by in domain
        or (axis.excluded_by not in domain and kind not in _ONLY_DECLARED)
    ]


def is_required(kind: Kind, domain: Container[str]) -> bool:
    """Say whether a wrong result is to be repaired, in a case of this domain."""
    return not AXES[kind].declared_by or AXES[kind].declared_by in domain


@dataclass(frozen=True, slots=True)
class Tried:
    """One shape, or other inputs, and what became of the versions there.

    `outcomes` by version's name, `what` the first line of what went wrong, `variant` which input
    was changed. `seconds` of a call here, and `declared_seconds` of one at the declared shape, if
    they were measured. Without outcomes it could not be tried, for the reason in `untried`. A wrong
    result that is not `required` is a flag.
    """

    nodeid: str
    kind: Kind
    dims: dict[str, Any]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    # Its name stands in the evidence of earlier rounds.
    what: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    declared_seconds: dict[str, float] = field(default_factory=dict)
    variant: str = ""
    untried: str = ""
    required: bool = True

    @property
    def asks_for_times(self) -> bool:
        """Whether the versions are to be timed here, too: a gain is to be one at other sizes."""
        return self.kind == "aligned" and {*self.outcomes.values()} == {"right"}

    def plus(self, more: Tried) -> Tried:
        """Return what two processes found about one shape."""
        return replace(
            self,
            outcomes=self.outcomes | more.outcomes,
            what=self.what | more.what,
            seconds=self.seconds | more.seconds,
            declared_seconds=self.declared_seconds | more.declared_seconds,
        )

    def speedups(
        self, candidate: str, incumbent: str, gains: Mapping[str, float]
    ) -> tuple[float, float] | None:
        """Return the incumbent's time over the candidate's at the declared shape and here.

        The declared shape's is at most the comparison's (`gains` by node id): these are a few
        calls, and alone they may see a gain that is not there.
        """
        ratios = []
        for times in (self.declared_seconds, self.seconds):
            if candidate not in times or incumbent not in times:
                return None
            ratios.append(times[incumbent] / times[candidate])
        return min(ratios[0], gains.get(self.nodeid, ratios[0])), ratios[1]


#: Where support is asked for, what has to be supported, and where an exclusion begins to hold.
_BY_INCUMBENT = (
    *("where the incumbent is right", "what the incumbent supports"),
    ", in a new campaign or at the base first",
)
_BY_REFERENCE = "where the reference gives a result", "it", ""


def held_out_findings(
    tried: Iterable[Tried], candidate: str, incumbent: str, gains: Mapping[str, float]
) -> list[Finding]:
    """Return what the trials say about the candidate, at most one finding a case.

    `gains` are the speed-ups of a forward that the comparison found, as ratios of times by node id.
    Wrong where the incumbent is right is to be repaired, in another use than the case's a note.
    Raising is a note, since a kernel may say what it does not support; in another use it is none. A
    speed-up that is gone nearby is a note: dispatching by shape is honest. A candidate that is
    slower than the incumbent near every shape where it was to be faster rejects.
    """
    comparable = [trial for trial in tried if trial.outcomes.get(incumbent) == "right"]
    speedups = [trial.speedups(candidate, incumbent, gains) for trial in comparable]
    nearby = [near for declared, near in filter(None, speedups) if declared >= _SPEEDUP]
    slower = (
        len(nearby) >= _CASES
        and statistics.geometric_mean(nearby) < _SLOWER
        and max(nearby) < _AS_FAST
    )
    return _worst_of_each_case(
        (trial, _finding(trial, candidate, _BY_INCUMBENT) or _lost_speed(trial, measured, slower))
        for trial, measured in zip(comparable, speedups, strict=True)
        if candidate in trial.outcomes
    )


def findings_by_reference(tried: Iterable[Tried], version: str) -> list[Finding]:
    """Return what the trials say about a version that is compared with no other."""
    return _worst_of_each_case(
        (trial, _finding(trial, version, _BY_REFERENCE))
        for trial in tried
        if version in trial.outcomes
    )


def _worst_of_each_case(found: Iterable[tuple[Tried, Finding | None]]) -> list[Finding]:
    findings: dict[str, Finding] = {}
    for trial, finding in found:
        earlier = findings.get(trial.nodeid)
        if finding and (earlier is None or finding.rejects > earlier.rejects):
            findings[trial.nodeid] = finding
    return list(findings.values())


def untried(tried: Iterable[Tried]) -> Iterator[Finding]:
    """Name once for each reason the axes that could not be tried, and in how many cases."""
    reasons: dict[str, list[Tried]] = {}
    for trial in tried:
        if trial.untried:
            reasons.setdefault(trial.untried, []).append(trial)
    for trials in reasons.values():
        yield _untried(trials, ", ".join(_axes(trials)))


def count_untried(tried: Iterable[Tried]) -> Iterator[Finding]:
    """Count the axes that could not be tried, once for all reasons."""
    if trials := [trial for trial in tried if trial.untried]:
        yield _untried(trials, f"{len(_axes(trials))} kinds of near inputs")


def _axes(trials: Sequence[Tried]) -> list[str]:
    return [*dict.fromkeys(AXES[trial.kind].description for trial in trials)]


def _untried(trials: Sequence[Tried], kinds: str) -> Finding:
    count = len({trial.nodeid for trial in trials})
    places = dict.fromkeys(
        f"{trial.nodeid}: {AXES[trial.kind].description} {trial.variant}".rstrip()
        for trial in trials
    )
    why = "; ".join(dict.fromkeys(trial.untried for trial in trials))
    message = f"kopt did not try {kinds} in {count} case{'s'[: count != 1]}: {why}"
    return Finding("held-out-untried", message, where=trials[0].nodeid, details=tuple(places))


def merged(tried: Iterable[Tried]) -> list[Tried]:
    """Return one entry a shape from what several processes found."""
    by_shape: dict[tuple[str, ...], Tried] = {}
    for trial in tried:
        sizes = sorted(trial.dims.items())
        key = trial.nodeid, trial.kind, trial.variant, repr(sizes)
        by_shape[key] = by_shape[key].plus(trial) if key in by_shape else trial
    return list(by_shape.values())


def _finding(trial: Tried, version: str, wording: tuple[str, str, str]) -> Finding | None:
    outcome, (where, supported, begin) = trial.outcomes[version], wording
    # In another use than the case's a kernel may say that it does not support it.
    if outcome == "right" or (outcome == "raises" and not trial.required):
        return None
    axis = RENEWED if trial.kind == "renewed" else AXES[trial.kind]
    place = f"for {axis.description}" + (f" ({trial.variant})" if trial.variant else "")
    example = "the drawn inputs are examples"
    if axis.check == _SHAPE:
        example = "the declared shapes are examples"
        if not trial.variant:
            place = f"at {_shape(trial)}, near the declared shape"
    advice = (
        f"support {supported} ({example}), or exclude it with domain={axis.excluded_by!r} in the "
        f"case{begin}"
    )
    if not trial.required:
        advice = (
            "correct the kernel if its callers do this; the case declares another use, so it is "
            f"no reason to refuse, unless it has domain={axis.declared_by!r}"
        )
    return Finding(
        axis.check,
        f"{outcome} {place}, {where}: {trial.what.get(version, '')}",
        where=trial.nodeid,
        advice=advice,
        rejects=outcome == "wrong" and trial.required,
    )


def _lost_speed(
    trial: Tried, measured: tuple[float, float] | None, rejects: bool
) -> Finding | None:
    if measured is None or measured[0] < _SPEEDUP:
        return None
    declared, near = measured
    if math.log(near) >= 0.5 * math.log(declared):
        return None
    return Finding(
        "held-out-speed",
        f"{declared:.2f} times as fast as the incumbent at the declared shape, {near:.2f} times "
        f"at {_shape(trial)}",
        where=trial.nodeid,
        advice=("make the kernel no slower than the incumbent at sizes that differ a little")
        if rejects
        else "say in the notes which shapes the gain is for",
        rejects=rejects,
    )


def _shape(trial: Tried) -> str:
    return ", ".join(f"{name}={value}" for name, value in trial.dims.items())
