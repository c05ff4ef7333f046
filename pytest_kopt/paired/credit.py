"""Whether a gain is credited: what a version that would be kept is asked beyond its ratios.

The incumbent has to be as fast next to the candidate as in a process without it. A candidate can
slow down the code that runs next to it, by a hook in an allocator, a scheduling class, a cache of
the machine. That slows incumbent and control alike, so that no ratio inside of its process shows
it.

A gain is no larger than these other measurements of it allow: where one shows less, that counts.

Medians over pairs leave out blocks that take many times as long. The total time does not: a gain is
no larger than one ratio of sums over all blocks of all processes that ran the candidate.

Nor do its ratios show work that the candidate has moved to where nothing is counted, which the
clock of the deciding process sees. On the CPU a comparison counts the processor time of a block, on
a GPU the device's events. A gain of processor time that this clock shows to be a loss, as calls
wait, is none. The work around the counted time is the same for all versions. A version that gains,
and for which this work takes as much longer, has moved its work there (a hook, a finalizer, a clock
that lies). Blocks that a GPU replays are run many times over as well, so that what passes around
them cancels: a gain has to show there by the outside clock too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT, Estimate, percent
from pytest_kopt.devices.states import BOOST
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.replica import Caught
from pytest_kopt.paired.samples import BlockTime, CaseQuads, pairs_of
from pytest_kopt.paired.verifier_process import Refused

#: While another measurement shows less by more than this, in percent, by more than this share of
#: the gain, and by more than the A/A control changed in any replicate, it is taken so many times in
#: all: by some percent processes differ anyway.
_SUSPECT_PCT, _SUSPECT_SHARE, _TIMES = 2.0, 0.02, 4
#: A gain of which so much is not there by another measurement is none; less is taken off.
_LOSS_SHARE = 0.5
#: One-sided level of the bound on how much less another measurement shows, and of one that accuses.
_LOSS_LEVEL, _ACCUSING_LEVEL = 0.05, 0.005
#: The times of a row and of a call near the declared shape are those of few calls by a clock that
#: others on the machine disturb: they count where the candidate takes so many times as long there.
_LOST_TIMES = 8.0
#: Of a gain, and of the counted time, so much may pass elsewhere; and of what passes elsewhere for
#: the current best, which differs by the contents of the processor's caches.
_MOVED_SHARE, _MOVED_LEAST, _CACHES = 0.25, 0.02, 0.1
#: The same between two processes, which differ by where their memory lies.
_PROCESSES = 0.5
#: A version's time by the outside clock is at least this share of the current best's: differences
#: of what passes scatter.
_LEAST_SHARE = 1e-4
#: Messages to a GPU's process and the launches of its calls take their time, in ms.
_LAUNCHES_MS = 5.0
#: One-sided level of the bound on the time that passes elsewhere.
_MOVED_LEVEL = 0.001
#: One-sided level at which the outside clock has to see a gain of a GPU, and how many replicas may
#: be measured for that alone.
_SEEN_LEVEL, _MORE_REPLICAS = 0.05, 2

Replicas = Sequence[Mapping[str, CaseQuads]]


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
    #: By how much, as a log-ratio, the gain is the incumbent's loss, where that was shown.
    excess: float = 0.0

    def to_document(self) -> dict[str, object]:
        return {
            "slower_pct": list(self.slower_pct),
            "why_not": self.why_not,
            "doubt": self.doubt,
        }


def least_suspect(gain: float, replicas: Replicas) -> float:
    """Return by how much less, as a log-ratio, another measurement shows before it is suspect."""
    copies = [
        statistics.fmean(ratios)
        for replica in replicas
        if (ratios := [q.ratio("step", PLACEBO) for q in replica.values() if q.at(PLACEBO)])
    ]
    return max(math.log1p(_SUSPECT_PCT / 100), _SUSPECT_SHARE * gain, *map(abs, copies))


def look_alone(
    in_company: Callable[[], Mapping[str, CaseQuads]],
    gain_pct: float | None,
    replicas: Replicas = (),
) -> Company:
    """Time the incumbent alone, more than once where that differs; `gain_pct` is the candidate's.

    `replicas` tell how identical code differs. Each time `in_company` returns it next to the
    candidate against itself alone, by node id. Raises what that raises, but for Refused.
    """
    slower: list[float] = []
    gain = math.log1p((gain_pct or 0.0) / 100)
    suspect = least_suspect(gain, replicas)
    try:
        for _ in range(_TIMES):
            timed = [quads for quads in in_company().values() if not quads.is_same]
            ratios = [quads.ratio("step", "alone") for quads in timed]
            slower.append(-statistics.fmean(ratios) if ratios else 0.0)
            if statistics.fmean(slower) <= suspect:
                break
    except Refused as reason:
        if not slower:
            return Company(why_not=str(reason))
    slower_pct = tuple(map(percent, slower))
    if len(slower) < 2:
        return Company(slower_pct)
    estimate, bias = Estimate.of(tuple(slower)), math.log1p(KNOWN_BIAS_PCT / 100)
    is_lost = estimate.mean >= _LOSS_SHARE * gain
    finding = Finding(
        "incumbent-slowed",
        (
            f"the incumbent is {percent(estimate.mean):.1f} % slower in one process with the "
            "candidate than without it"
        ),
        advice="leave the process, its libraries and the machine as they are",
        rejects=is_lost,
    )
    if estimate.lower(_ACCUSING_LEVEL if is_lost else _LOSS_LEVEL) > bias:
        return Company(slower_pct, finding, excess=estimate.mean)
    if is_lost and estimate.mean > math.log1p(_SUSPECT_PCT / 100):
        return Company(
            slower_pct, doubt=f"{finding.message}, in the mean of {len(slower_pct)} that scatter"
        )
    return Company(slower_pct)


@dataclass(frozen=True, slots=True)
class TotalTime:
    """By how much, as a log-ratio, one ratio of sums over all blocks shows less than the gain.

    `without_worst` is that without the pair of blocks that adds most: a block may be held up once.
    """

    gain: float = 0.0
    less: Estimate | None = None
    without_worst: float = 0.0
    #: What it has to show less by before it is suspect.
    suspect: float = 0.0

    @property
    def excess(self) -> float:
        """By how much the gain is more than that ratio, where this was shown."""
        is_less = self.less and self.less.lower(_LOSS_LEVEL) > math.log1p(KNOWN_BIAS_PCT / 100)
        return self.less.mean if self.less and is_less else 0.0

    @property
    def is_suspect(self) -> bool:
        """Whether more blocks have to show if the gain is more than that ratio."""
        return not self.excess and self.less is not None and self.less.mean > self.suspect

    @property
    def doubt(self) -> str:
        """Why the gain may not be there in total where that was not shown."""
        is_lost = self.without_worst >= _LOSS_SHARE * self.gain
        return self.message if self.is_suspect and is_lost else ""

    @property
    def message(self) -> str:
        left = percent(self.gain - self.less.mean) if self.less else 0.0
        return f"by the total time of all blocks the change is {left:+.1f} %"

    def to_document(self) -> dict[str, float] | None:
        return self.less.figures(_LOSS_LEVEL) if self.less else None


def look_total(
    replicas: Replicas,
    others: Replicas,
    elsewhere: Mapping[str, Sequence[tuple[float, float]]],
    another: Callable[[], Iterable[Mapping[str, CaseQuads]]],
) -> TotalTime:
    """Hold the gain in `replicas` against the total time of all processes.

    `others` were not claimed for the gain. `elsewhere` are times of the candidate and the current
    best, by node id, in processes that had no blocks. `another` replica is asked for while blocks
    say too little.
    """
    measured = [*replicas, *others]
    for _ in range(len(others), _TIMES):
        total = _total(replicas, measured, elsewhere, _counted)
        if not total.is_suspect:
            return total
        measured += another()
    return _total(replicas, measured, elsewhere, _counted)


def _total(
    replicas: Replicas,
    measured: Replicas,
    elsewhere: Mapping[str, Sequence[tuple[float, float]]],
    clock: Callable[[BlockTime, BlockTime], tuple[float, float]],
) -> TotalTime:
    """Hold the gain in `replicas` against sums over `measured` pairs, whose ms a clock tells."""
    gains, less, variances, worst, freedom = list[float](), list[float](), list[float](), 0.0, 0
    for nodeid, first in replicas[0].items() if replicas else ():
        # What was timed beside the incumbent alone may be here twice.
        timed = (replica[nodeid].at(CANDIDATE) for replica in measured if nodeid in replica)
        quads = {id(of_process): of_process for of_process in timed}
        pairs = [clock(*pair) for each in quads.values() for pair in pairs_of(each)]
        if first.is_same or len(pairs) < 2:
            continue
        pairs += elsewhere.get(nodeid, ())
        new, old = (math.fsum(times) for times in zip(*pairs, strict=True))
        gain = statistics.fmean(replica[nodeid].ratio("step") for replica in replicas)
        least = _LEAST_SHARE * old
        without = [gain - math.log((old - b) / max(new - a, least)) for a, b in pairs]
        gains.append(gain)
        less.append(gain - math.log(old / max(new, least)))
        variances.append((len(pairs) - 1) * statistics.pvariance(without))
        worst = max(worst, less[-1] - min(without))
        freedom += len(pairs) - 1
    if not less:
        return TotalTime()
    # Delete-one jackknife: a sum of few large terms scatters by as much as one of them.
    error = math.sqrt(math.fsum(variances)) / len(less)
    estimate = Estimate(statistics.fmean(less), error, freedom)
    gain, without_worst = statistics.fmean(gains), estimate.mean - worst / len(less)
    return TotalTime(gain, estimate, without_worst, least_suspect(gain, replicas))


def lost_elsewhere(
    tried: Iterable[Tried], rows: Mapping[str, float], replicas: Replicas
) -> dict[str, list[tuple[float, float]]]:
    """Return ms of candidate and current best in processes without blocks, where it lost there.

    These are the trials near the declared shapes, and the candidate's `rows`.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    beside = {
        nodeid: statistics.fmean(times)
        for nodeid in (replicas[0] if replicas else ())
        if (times := [ms for r in replicas if (ms := r[nodeid].incumbent_ms("step"))])
    }
    factors = [(nodeid, rows[nodeid] / ms) for nodeid, ms in beside.items() if rows.get(nodeid)]
    for trial in tried:
        if trial.nodeid in beside and {CANDIDATE, INCUMBENT} <= trial.declared_seconds.keys():
            seconds = trial.declared_seconds
            factors.append((trial.nodeid, seconds[CANDIDATE] / seconds[INCUMBENT]))
    for nodeid, factor in factors:
        if factor > _LOST_TIMES:
            found.setdefault(nodeid, []).append((factor * beside[nodeid], beside[nodeid]))
    return found


@dataclass(frozen=True, slots=True)
class Witness:
    """The controller's clock on a change that others measured.

    `change` is that and `differs` by how much it is more than theirs, over all cases as
    log-ratios; None where that clock was not asked. On a GPU the device's events measured it. On
    the CPU processor time did (`is_gpu`), and this clock, which others on the machine disturb, can
    only contradict. With `loss_pct` the verdict claims no gain, but that no more than this is lost.
    `more` replicas were measured for this clock alone.
    """

    change: Estimate | None = None
    differs: Estimate | None = None
    loss_pct: float | None = None
    more: int = 0
    is_gpu: bool = True
    #: By how much, as a log-ratio, a gain on the CPU is more than this clock allows.
    excess: float = 0.0
    #: Whether a gain is claimed that this clock could have told, and was not asked about.
    is_missing: bool = False

    @property
    def doubt(self) -> str:
        """Why the verdict is not credited, empty where it is."""
        if self.change is None:
            return "the controller's clock could not time the change" if self.is_missing else ""
        low, high = self.change.lower(_SEEN_LEVEL), self.change.upper(_SEEN_LEVEL)
        least = math.log1p(-(self.loss_pct or 0.0) / 100)
        if low > 0 if self.is_gpu and self.loss_pct is None else high >= least:
            return ""
        return (
            "by the controller's clock the change is "
            f"{percent(self.change.mean):+.1f} % [{percent(low):+.1f}, {percent(high):+.1f}]"
        )

    @property
    def contradiction(self) -> Finding | None:
        """The contradiction between the events and this clock."""
        if self.change is None or self.differs is None or not self.is_gpu:
            return None
        gain = self.change.mean - self.differs.mean
        if self.differs.upper(_MOVED_LEVEL) >= -max(_MOVED_SHARE * gain, _MOVED_LEAST):
            return None
        return Finding(
            "hidden-time",
            (
                f"the device's events measure a change of {percent(gain):+.1f} %, the "
                f"clock of the controller one of {percent(self.change.mean):+.1f} %"
            ),
            advice="do all the work within the timed call, and leave clocks and hooks alone",
        )

    def to_document(self) -> dict[str, object] | None:
        if self.change is None:
            return None
        return {**self.change.figures(_SEEN_LEVEL), "more_replicas": self.more}


def look_outside(
    replicas: Replicas,
    another: Callable[[], Iterable[Mapping[str, CaseQuads]]],
    loss_pct: float | None = None,
    beside_alone: Replicas = (),
) -> Witness:
    """Ask the outside clock, and `another` replica while it does not bear a verdict out.

    `replicas` are those that the verdict claims a gain by, whether or not that clock was asked in
    them; it may have been asked in those `beside_alone` as well.
    """
    asked = [*replicas, *beside_alone]
    is_replayed = any(case.engine == "graph" for replica in replicas for case in replica.values())
    if any(case.engine == "wall" for replica in replicas for case in replica.values()):
        by_wall = _total(replicas, asked, {}, _by_wall)
        if (less := by_wall.less) is None:
            return Witness(is_gpu=False)
        is_less = loss_pct is None and less.lower(_ACCUSING_LEVEL) > _MOVED_LEAST
        left = replace(less, mean=by_wall.gain - less.mean)
        excess = less.mean if is_less else 0.0
        return Witness(left, loss_pct=loss_pct, is_gpu=False, excess=excess)
    for more in range(_MORE_REPLICAS + 1):
        change, differs = _estimates(replicas, asked)
        is_missing = is_replayed and change is None and loss_pct is None
        witness = Witness(change, differs, loss_pct, more, is_missing=is_missing)
        if not witness.doubt or more == _MORE_REPLICAS:
            break
        asked += another()
    return witness


def _by_wall(new: BlockTime, old: BlockTime) -> tuple[float, float]:
    """Return the ms of both by what passed meanwhile; what passes around any block cancels."""
    return old.counted - (old.passed - new.passed), old.counted


def _counted(new: BlockTime, old: BlockTime) -> tuple[float, float]:
    return new.of("step"), old.of("step")


def _estimates(
    replicas: Replicas, asked_in: Replicas
) -> tuple[Estimate, Estimate] | tuple[None, None]:
    """Return the change by the outside clock, and by how much it is more than the events'.

    The events' is that of all `replicas`: a version whose replica is `asked_in` cannot be honest
    there alone. The scatter of the two clocks' difference is that of the outside clock.
    """
    asked = [case for replica in asked_in for case in replica.values() if case.outside]
    # That clock was asked at boost.
    claimed = {
        nodeid: statistics.fmean(
            replica[nodeid].ratio("step", point=BOOST)
            for replica in replicas
            if nodeid in replica and not replica[nodeid].is_same
        )
        for nodeid in {case.nodeid for case in asked}
    }
    differs = [wall - claimed[case.nodeid] for case in asked for wall in case.outside]
    if len(differs) < 2:
        return None, None
    difference = Estimate.of(tuple(differs))
    change = statistics.fmean(claimed[case.nodeid] for case in asked for _ in case.outside)
    return replace(difference, mean=change + difference.mean), difference


def hidden_time(replicas: Replicas) -> Iterator[Finding]:
    """Say what contradicts the gain of a case that is not replayed as a graph."""
    for nodeid in {name: None for replica in replicas for name in replica}:
        cases = [replica[nodeid] for replica in replicas if nodeid in replica]
        if any(case.engine == "graph" for case in cases):
            continue
        pairs = [pair for case in cases for pair in pairs_of(case.quads.get(CANDIDATE, ()))]
        alone = [
            time
            for case in cases
            for quad in case.quads.get("alone", ())
            for arm, time in quad
            if arm == ALONE
        ]
        is_gpu = any(case.engine != "wall" for case in cases)
        if len(pairs) > 1 and (finding := _contradiction(nodeid, pairs, alone, is_gpu=is_gpu)):
            yield finding


def _contradiction(
    nodeid: str,
    pairs: Sequence[tuple[BlockTime, BlockTime]],
    alone: Sequence[BlockTime],
    *,
    is_gpu: bool,
) -> Finding | None:
    """Return a finding where the candidate's other time outweighs its gain, in ms of a block.

    The time around is compared with that of the current best next to it and, if there is one, with
    the current best's in a process of its own. Code that puts work off to where nothing is counted
    may hold the current best up there as well.
    """
    counted = statistics.fmean(old.counted for _, old in pairs)
    gained = counted - statistics.fmean(new.counted for new, _ in pairs)
    beside = [old.outside - old.counted for _, old in pairs]
    around = [new.outside - new.counted for new, _ in pairs]
    held_against = [
        (_mean_of([new - old for new, old in zip(around, beside, strict=True)]), beside)
    ]
    if len(alone) > 1:
        apart = [time.outside - time.counted for time in alone]
        new, old = _mean_of(around), _mean_of(apart)
        error = math.hypot(new.error, old.error)
        held_against.append((Estimate(new.mean - old.mean, error, new.freedom), apart))
    for longer, reference in held_against:
        least = statistics.fmean(reference)
        if is_gpu:
            least += _LAUNCHES_MS
        else:
            least *= _CACHES if reference is beside else _PROCESSES
        if gained > 0 and longer.lower(_MOVED_LEVEL) > max(
            _MOVED_SHARE * gained, _MOVED_LEAST * counted, least
        ):
            return Finding(
                "hidden-time",
                f"the timed calls of a block take {gained:.3g} ms less than the current best's, "
                f"and {longer.mean:.3g} ms more pass outside of them",
                where=nodeid,
                advice="do all the work within the timed call, and leave clocks and hooks alone",
            )
    return None


def _mean_of(values: Sequence[float]) -> Estimate:
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), error, len(values) - 1)


@dataclass(frozen=True, slots=True)
class Credit:
    """The verdict of the other measurements on a version that would be kept."""

    witness: Witness = field(default_factory=Witness)
    alone: Company = field(default_factory=Company)
    total: TotalTime = field(default_factory=TotalTime)

    @property
    def doubt(self) -> str:
        """Why the version is not kept all the same, "" where it is."""
        return self.witness.doubt or self.alone.doubt or self.total.doubt

    @property
    def excess(self) -> float:
        """By how much, as a log-ratio, the gain is more than the other measurements allow."""
        return max(self.witness.excess, self.alone.excess, self.total.excess)

    @property
    def flags(self) -> list[str]:
        flags = [str(self.alone.finding)] if self.alone.finding else []
        flags += [self.total.message] if self.total.excess else []
        if self.excess:
            flags.append(f"{percent(self.excess):.1f} % of the gain in pairs are not credited")
        return flags

    def to_document(self) -> dict[str, object]:
        return {
            "incumbent_alone": self.alone.to_document(),
            "outside_clock": self.witness.to_document(),
            "total_time": self.total.to_document(),
        }


def examine(
    comparison: Comparison,
    replicas: Sequence[Mapping[str, CaseQuads]],
    gain_pct: float | None,
    loss_pct: float | None,
    rows: Mapping[str, float],
) -> Credit:
    """Hold what was measured against total time, outside clock, and the current best alone.

    `rows` are the ms of a call in the candidate's rows, by node id. With `loss_pct` no gain is
    claimed, but that no more than so much is lost. Raises Caught.
    """
    beside_alone: list[Mapping[str, CaseQuads]] = []
    to_tell = -math.log1p(-loss_pct / 100) if loss_pct else math.log1p((gain_pct or 0.0) / 100)

    def in_company() -> Mapping[str, CaseQuads]:
        beside_alone.append(comparison.in_company(to_tell))
        return beside_alone[-1]

    def another() -> Iterable[Mapping[str, CaseQuads]]:
        try:
            return [in_company()]
        except Refused:
            return comparison.replicas(1)

    _refuse(hidden_time(replicas))
    alone = look_alone(in_company, gain_pct, replicas)
    elsewhere = lost_elsewhere(comparison.tried, rows, replicas)
    # A copy: what `another` adds there it returns as well.
    total = look_total(replicas, (*beside_alone,), elsewhere, another)
    witness = look_outside(replicas, another, loss_pct, (*beside_alone,))
    _refuse([witness.contradiction] if witness.contradiction else [])
    if comparison.written:
        what = f"the kernel wrote {comparison.written} in the tree of the current best"
        advice = "write to the kernel's own tree only"
        _refuse([Finding("harness-written", f"{what} during the comparison", advice=advice)])
    _refuse(hidden_time(beside_alone))
    if alone.finding and alone.finding.rejects:
        _refuse([alone.finding])
    return Credit(witness, alone, total)


def _refuse(findings: Iterable[Finding]) -> None:
    if caught := [*findings]:
        raise Caught(caught)
