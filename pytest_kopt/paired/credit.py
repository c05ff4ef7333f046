"""Whether a gain is credited: what a version that would be kept is asked beyond its ratios.

The incumbent has to be as fast next to the candidate as in a process without it. A candidate can
slow down the code that runs next to it, by a hook in an allocator, a scheduling class, a cache of
the machine. That slows incumbent and control alike, so that no ratio inside of its process shows
it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_kopt.decide.inference import KNOWN_BIAS_PCT, Estimate, percent
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.replica import Caught, Refused
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.paired.witness import Witness, hidden_time, look_outside

#: While the mean is above this, in percent, and above this share of the gain, the incumbent is
#: timed alone so many times in all: by some percent processes differ anyway.
_SUSPECT_PCT, _SUSPECT_SHARE, _TIMES = 2.0, 0.25, 4
#: A gain of which so much is the incumbent's loss is no gain; less is told.
_SHARE = 0.5
#: One-sided level of the bound on how much slower it is.
_LEVEL = 0.005


@dataclass(frozen=True, slots=True)
class Company:
    """The measured slowdown of the incumbent next to the candidate, in percent by process.

    `why_not` says why it could not be timed alone, `doubt` why the gain may be the incumbent's loss
    where that was not shown.
    """

    slower_pct: tuple[float, ...] = ()
    finding: Finding | None = None
    why_not: str = ""
    doubt: str = ""

    def to_document(self) -> dict[str, object]:
        return {
            "slower_pct": list(self.slower_pct),
            "why_not": self.why_not,
            "doubt": self.doubt,
        }


def look_alone(
    in_company: Callable[[], Mapping[str, CaseQuads]], gain_pct: float | None
) -> Company:
    """Time the incumbent alone, more than once where that differs; `gain_pct` is the candidate's.

    Each time `in_company` returns it next to the candidate against itself alone, by node id. Raises
    what that raises, but for Refused.
    """
    slower: list[float] = []
    gain = math.log1p((gain_pct or 0.0) / 100)
    suspect = max(math.log1p(_SUSPECT_PCT / 100), _SUSPECT_SHARE * gain)
    try:
        for _ in range(_TIMES):
            slower.append(_slower(in_company()))
            if statistics.fmean(slower) <= suspect:
                break
    except Refused as reason:
        if not slower:
            return Company(why_not=str(reason))
    slower_pct = tuple(map(percent, slower))
    if len(slower) < 2:
        return Company(slower_pct)
    estimate = Estimate.of(tuple(slower))
    finding = Finding(
        "incumbent-slowed",
        (
            f"the incumbent is {percent(estimate.mean):.1f} % slower in one process with the "
            "candidate than without it"
        ),
        advice="leave the process, its libraries and the machine as they are",
        rejects=estimate.mean >= _SHARE * gain,
    )
    if estimate.lower(_LEVEL) > math.log1p(KNOWN_BIAS_PCT / 100):
        return Company(slower_pct, finding)
    if finding.rejects and estimate.mean > math.log1p(_SUSPECT_PCT / 100):
        return Company(
            slower_pct, doubt=f"{finding.message}, in the mean of {len(slower_pct)} that scatter"
        )
    return Company(slower_pct)


def _slower(cases: Mapping[str, CaseQuads]) -> float:
    """Return how much longer the incumbent takes there, as a log-ratio over all cases."""
    timed: Sequence[CaseQuads] = [quads for quads in cases.values() if not quads.is_same]
    return statistics.fmean(-quads.ratio("step", "alone") for quads in timed) if timed else 0.0


@dataclass(frozen=True, slots=True)
class Credit:
    """The verdict of the outside clock on a version, and of the current best alone."""

    witness: Witness = field(default_factory=Witness)
    alone: Company = field(default_factory=Company)

    @property
    def doubt(self) -> str:
        """Why the version is not kept all the same, "" where it is."""
        return self.witness.doubt or self.alone.doubt

    @property
    def flags(self) -> list[str]:
        return [str(self.alone.finding)] if self.alone.finding else []

    def to_document(self) -> dict[str, object]:
        return {
            "incumbent_alone": self.alone.to_document(),
            "outside_clock": self.witness.to_document(),
        }


def examine(
    comparison: Comparison,
    replicas: Sequence[Mapping[str, CaseQuads]],
    gain_pct: float | None,
    loss_pct: float | None,
) -> Credit:
    """Hold what was measured against the outside clock, and against the current best alone.

    With `loss_pct` no gain is claimed, but that no more than so much is lost. Raises Caught.
    """
    _refuse(hidden_time(replicas))
    witness = look_outside(replicas, lambda: comparison.replicas(1), loss_pct)
    _refuse([witness.contradiction] if witness.contradiction else [])
    if comparison.written:
        _refuse([_written(comparison.written)])
    beside_alone: list[Mapping[str, CaseQuads]] = []

    def in_company() -> Mapping[str, CaseQuads]:
        beside_alone.append(comparison.in_company())
        return beside_alone[-1]

    alone = look_alone(in_company, gain_pct)
    _refuse(hidden_time(beside_alone))
    if alone.finding and alone.finding.rejects:
        _refuse([alone.finding])
    return Credit(witness, alone)


def _refuse(findings: Iterable[Finding]) -> None:
    if caught := [*findings]:
        raise Caught(caught)


def _written(path: str) -> Finding:
    return Finding(
        "harness-written",
        f"the kernel wrote {path} in the tree of the current best during the comparison",
        advice="write to the kernel's own tree only",
    )
