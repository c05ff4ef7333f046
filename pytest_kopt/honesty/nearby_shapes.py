"""Shapes and contents near the declared ones: a kernel is to be right, and fast, there as well.

The results only say how the candidate differs from the incumbent there: an input that neither
supports says nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from pytest_kopt.honesty.finding import Finding

#: One of PATTERNS, or `renewed`: the content of timed blocks, a little larger or smaller, a few
#: elements exchanged.
Kind = str
#: Standard normal inputs then reach beyond 88, where exp overflows in float32.
LARGER = 32.0
_SHAPE, _VALUES = "held-out-shape", "held-out-range"
_LAYOUT, _DTYPE, _GRADIENTS = "held-out-layout", "held-out-dtype", "held-out-gradients"
SIZES, _MODERATE, _ORDER = "declared shapes", "moderate values", "declared order"
_CONTIGUOUS = "contiguous"
#: A test's parameters are moved to these, and the sizes of inputs to the kinds of `_SHAPE`.
SHAPES: tuple[Kind, ...] = ("aligned", "uneven")
#: With these, elements of a row are equal: which of them an index names is nobody's promise, and
#: what an integer becomes of NaN is not defined.
TIED: tuple[Kind, ...] = ("large", "masked", "constant", "exact", "expanded")
#: With this, places alone are judged: what else is computed of such values may round.
CLOSE: Kind = "close"
#: With this, each row is judged: what is wrong in another is small beside the large one.
DOMINANT: Kind = "dominant"
#: With this, gradients are differentiated once more.
TWICE: Kind = "twice"
#: What a kernel has no way to refuse: where it is plainly wrong, it does not support that.
UNSAID: tuple[Kind, ...] = ("wider", TWICE)
Outcome = Literal["right", "wrong", "raises"]
#: A speed-up at the declared shape from this on is expected nearby: half of it, as a logarithm.
_SPEEDUP = 1.1
#: Below this in the mean, and nowhere above the second, the candidate is slower than what it
#: replaces, whatever the noise of a few calls.
_SLOWER, _AS_FAST = 0.8, 0.95
#: So many cases have to be slower nearby, and none that is not, before it is no coincidence.
_CASES = 2


class Pattern(NamedTuple):
    """Inputs that a case does not draw: what they are, the check, and what excludes them."""

    description: str
    check: str
    excluded_by: str


#: By kind; the last is what a case says that declares less (`domain=`). `aligned` keeps the power
#: of two that divides a size, `uneven` does not.
PATTERNS: dict[Kind, Pattern] = {
    "aligned": Pattern("another size", _SHAPE, SIZES),
    "uneven": Pattern("another size", _SHAPE, SIZES),
    "none": Pattern("no rows", _SHAPE, SIZES),
    "one": Pattern("one row", _SHAPE, SIZES),
    "large": Pattern(f"inputs {LARGER:g} times as large, the first row zeros", _VALUES, _MODERATE),
    "outlier": Pattern("one outlier in every row", _VALUES, _MODERATE),
    "lopsided": Pattern(
        "rows of different size, with larger elements at equal distances", _VALUES, _MODERATE
    ),
    DOMINANT: Pattern("one row far larger than the others", _VALUES, _MODERATE),
    "masked": Pattern("infinities, as masks have them", _VALUES, "finite"),
    "padded": Pattern("NaN where a length or a mask says that nothing is read", _VALUES, "finite"),
    "constant": Pattern("rows of one value", _VALUES, _MODERATE),
    "far": Pattern("a mean far from zero", _VALUES, _MODERATE),
    "tiny": Pattern("inputs 4096 times smaller", _VALUES, _MODERATE),
    "exact": Pattern("the numbers -1, 0 and 1, whose result is exact", _VALUES, _MODERATE),
    "filled": Pattern("other values where a tensor holds zeros only", _VALUES, "declared zeros"),
    "negated": Pattern("inputs of the other sign", _VALUES, "declared signs"),
    "sorted": Pattern("rows in falling order", _VALUES, _ORDER),
    "numbers": Pattern("other numbers and switches as arguments", _VALUES, "declared numbers"),
    "signs": Pattern("numbers of the other sign as arguments", _VALUES, "declared signs"),
    "absent": Pattern("None for an optional argument", _VALUES, "declared arguments"),
    "indices": Pattern("masks and integers in another order", _VALUES, _ORDER),
    "places": Pattern("indices that all name one end, or stand in another order", _VALUES, _ORDER),
    "behind": Pattern("indices that count from the end", _VALUES, "declared signs"),
    "close": Pattern("values that a coarser number format makes equal", _VALUES, _MODERATE),
    "masks": Pattern("a mask that keeps nothing or everything", _VALUES, "declared masks"),
    "counts": Pattern("a count or length of zero", _VALUES, "declared counts"),
    "aliased": Pattern("a result that goes into an input", _LAYOUT, "separate results"),
    "same": Pattern("one tensor as two inputs", _LAYOUT, "separate inputs"),
    "strided": Pattern("transposed inputs and incoming gradients", _LAYOUT, _CONTIGUOUS),
    "turned": Pattern("one transposed tensor", _LAYOUT, _CONTIGUOUS),
    "pitched": Pattern("one tensor whose rows have gaps between them", _LAYOUT, _CONTIGUOUS),
    "column": Pattern("one vector that is a column of a matrix", _LAYOUT, _CONTIGUOUS),
    "shifted": Pattern("one tensor with a storage offset", _LAYOUT, _CONTIGUOUS),
    "expanded": Pattern("one expanded tensor", _LAYOUT, _CONTIGUOUS),
    "frozen": Pattern("an input that requires no gradient", _GRADIENTS, "declared gradients"),
    "twice": Pattern("gradients of its gradients", _GRADIENTS, "declared gradients"),
    "single": Pattern("a gradient of one result alone", _GRADIENTS, "declared gradients"),
    "wider": Pattern("inputs of the next wider dtype", _DTYPE, "declared dtypes"),
    "integers": Pattern(
        "32-bit integers for 64-bit ones, or the reverse", _DTYPE, "declared dtypes"
    ),
}
#: What is met in timed blocks, and not tried for itself.
RENEWED = Pattern("the input values of timed calls", _VALUES, _MODERATE)
#: What a case may say of what its kernels need not support.
DOMAIN = tuple(dict.fromkeys(pattern.excluded_by for pattern in PATTERNS.values()))


@dataclass(frozen=True, slots=True)
class Tried:
    """One shape, or other inputs, and what became of the versions there.

    `outcomes` by version's name, `what` the first line of what went wrong, `variant` which input
    was changed. `seconds` of a call here, and `declared_seconds` of one at the declared shape, if
    they were measured. Without outcomes it could not be tried, for the reason in `untried`.
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

    @property
    def is_another_shape(self) -> bool:
        return PATTERNS[self.kind].check == _SHAPE and "right" in self.outcomes.values()

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


def held_out_findings(
    tried: Iterable[Tried], candidate: str, incumbent: str, gains: Mapping[str, float]
) -> list[Finding]:
    """Return what the shapes say about the candidate, at most one finding a case.

    `gains` are the speed-ups of a forward that the comparison found, as ratios of times by node id.
    Wrong where the incumbent is right is to be repaired; raising is a note, since a kernel may say
    what it does not support. A speed-up that is gone nearby is a note: dispatching by shape is
    honest. A candidate that is slower than the incumbent near every shape where it was to be faster
    rejects.
    """
    comparable = [trial for trial in tried if trial.outcomes.get(incumbent) == "right"]
    speedups = [trial.speedups(candidate, incumbent, gains) for trial in comparable]
    nearby = [near for declared, near in filter(None, speedups) if declared >= _SPEEDUP]
    slower = (
        len(nearby) >= _CASES
        and statistics.geometric_mean(nearby) < _SLOWER
        and max(nearby) < _AS_FAST
    )
    findings: dict[str, Finding] = {}
    for trial, measured in zip(comparable, speedups, strict=True):
        if candidate not in trial.outcomes:
            continue
        finding = _finding(trial, trial.outcomes[candidate], trial.what.get(candidate, ""))
        finding = finding or _lost_speed(trial, measured, rejects=slower)
        earlier = findings.get(trial.nodeid)
        if finding and (earlier is None or finding.rejects > earlier.rejects):
            findings[trial.nodeid] = finding
    return list(findings.values())


def untried(tried: Iterable[Tried]) -> Iterator[Finding]:
    """Say once for each reason in how many cases something could not be tried."""
    reasons: dict[str, list[Tried]] = {}
    for trial in tried:
        if trial.untried:
            reasons.setdefault(trial.untried, []).append(trial)
    for reason, items in reasons.items():
        count = len({trial.nodeid for trial in items})
        kinds = sorted({PATTERNS[trial.kind].description for trial in items})
        message = (
            f"kopt did not try {len(kinds)} kind{'s'[: len(kinds) != 1]} of inputs in {count} "
            f"case{'s'[: count != 1]}: {reason}"
        )
        where = items[0].nodeid
        yield Finding("held-out-untried", message, where=where, details=tuple(kinds))


def merged(tried: Iterable[Tried]) -> list[Tried]:
    """Return one entry a shape from what several processes found."""
    by_shape: dict[tuple[str, ...], Tried] = {}
    for trial in tried:
        sizes = sorted(trial.dims.items())
        key = trial.nodeid, trial.kind, trial.variant, repr(sizes)
        by_shape[key] = by_shape[key].plus(trial) if key in by_shape else trial
    return list(by_shape.values())


def _finding(trial: Tried, outcome: Outcome, problem: str) -> Finding | None:
    if outcome == "right":
        return None
    pattern = RENEWED if trial.kind == "renewed" else PATTERNS[trial.kind]
    place = f"for {pattern.description}" + (f" ({trial.variant})" if trial.variant else "")
    example = "the drawn inputs are examples"
    if pattern.check == _SHAPE:
        place = f"at {_shape(trial)}, near the declared shape"
        example = "the declared shapes are examples"
    # It may have raised, or have given what it has no way to refuse.
    how = "gives no right result" if trial.kind in UNSAID and outcome == "raises" else outcome
    return Finding(
        pattern.check,
        f"{how} {place}, where the incumbent is right: {problem}",
        where=trial.nodeid,
        advice=(
            f"support what the incumbent supports ({example}), or exclude it with "
            f"domain={pattern.excluded_by!r} in the case, in a new campaign or at the base first"
        ),
        rejects=outcome == "wrong",
    )


def _lost_speed(
    trial: Tried, measured: tuple[float, float] | None, *, rejects: bool
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
