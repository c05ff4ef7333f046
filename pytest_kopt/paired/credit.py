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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT, Estimate, percent
from pytest_kopt.devices.states import BOOST
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.replica import Caught
from pytest_kopt.paired.samples import BlockTime, CaseQuads, Replicates, best_ms, pairs_of
from pytest_kopt.paired.verifier_process import Refused

#: While another measurement shows less by more than this, in percent, by more than this share of
#: the gain, and by more than the A/A control changed in any replicate, it is taken so many times in
#: all: by some percent processes differ anyway.
_SUSPECT_PCT, _SUSPECT_SHARE, _TIMES = 2.0, 0.02, 4
#: A gain of which so much is not there by another measurement is none; less is taken off.
_LOSS_SHARE = 0.5
#: One-sided level of the bound on how much less another measurement shows, and of one that accuses.
_LOSS_LEVEL, _ACCUSING_LEVEL = 0.05, 0.005
#: A call of a GPU takes some µs more where its content was just written, as the cache gives that
#: back: so much of a gain may not be there then.
_ANEW_SHARE = 0.15
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
_BIAS = math.log1p(KNOWN_BIAS_PCT / 100)


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """The result of another measurement of a gain that pairs show.

    `change` is its estimate: the gain by the outside clock, or how much less it is by total time.
    """

    #: Why the gain may not be there, where that was not shown; "" where it is.
    doubt: str = ""
    #: By how much, as a log-ratio, the gain is more than is shown here.
    excess: float = 0.0
    finding: Finding | None = None
    #: The words of the verdict.
    flag: str = ""
    change: Estimate | None = None
    document: Mapping[str, Any] | None = None


def least_suspect(gain: float, replicas: Replicates) -> float:
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
    replicas: Replicates = (),
) -> CrossCheck:
    """Time the incumbent alone, more than once where that differs; `gain_pct` is the candidate's.

    `replicas` tell how identical code differs. Each time `in_company` returns it next to the
    candidate against itself alone, by node id. Raises what that raises, but for Refused.
    """
    slower, why_not = list[float](), ""
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
        why_not = "" if slower else str(reason)
    document = {"slower_pct": [*map(percent, slower)], "why_not": why_not}
    if len(slower) < 2:
        return CrossCheck(document=document)
    estimate = Estimate.of(tuple(slower))
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
    if estimate.lower(_ACCUSING_LEVEL if is_lost else _LOSS_LEVEL) > _BIAS:
        return CrossCheck("", estimate.mean, finding, str(finding), document=document)
    is_suspect = is_lost and estimate.mean > math.log1p(_SUSPECT_PCT / 100)
    doubt = f"{finding.message}, in the mean of {len(slower)} that scatter" if is_suspect else ""
    return CrossCheck(doubt, document=document)


class _Sums(NamedTuple):
    """By how much, as a log-ratio, one ratio of sums over all blocks shows less than the gain.

    `without_worst` is that without the pair of blocks that adds most: a block may be held up once.
    """

    gain: float
    less: Estimate
    without_worst: float


def look_total(
    replicas: Replicates,
    others: Replicates,
    elsewhere: Mapping[str, Sequence[tuple[float, float]]],
    another: Callable[[], Iterable[Mapping[str, CaseQuads]]],
) -> CrossCheck:
    """Hold the gain in `replicas` against the total time of all processes.

    `others` were not claimed for the gain. `elsewhere` are times of the candidate and the current
    best, by node id, in processes that had no blocks. `another` replica is asked for while blocks
    say too little.
    """
    measured, taken = [*replicas, *others], len(others)
    while sums := _total(replicas, measured, elsewhere, _counted):
        gain, less, without_worst = sums
        excess = less.mean if less.lower(_LOSS_LEVEL) > _BIAS else 0.0
        is_suspect = not excess and less.mean > least_suspect(gain, replicas)
        if is_suspect and taken < _TIMES:
            measured += another()
            taken += 1
            continue
        message = (
            f"by the total time of all blocks the change is {percent(gain - less.mean):+.1f} %"
        )
        is_lost = is_suspect and without_worst >= _LOSS_SHARE * gain
        return CrossCheck(
            message if is_lost else "",
            excess,
            flag=message if excess else "",
            change=less,
            document=less.figures(_LOSS_LEVEL),
        )
    return CrossCheck()


def _total(
    replicas: Replicates,
    measured: Replicates,
    elsewhere: Mapping[str, Sequence[tuple[float, float]]],
    clock: Callable[[BlockTime, BlockTime], tuple[float, float]],
) -> _Sums | None:
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
        return None
    # Delete-one jackknife: a sum of few large terms scatters by as much as one of them.
    error = math.sqrt(math.fsum(variances)) / len(less)
    estimate = Estimate(statistics.fmean(less), error, freedom)
    return _Sums(statistics.fmean(gains), estimate, estimate.mean - worst / len(less))


def lost_elsewhere(
    tried: Iterable[Tried], rows: Mapping[str, float], replicas: Replicates
) -> dict[str, list[tuple[float, float]]]:
    """Return ms of candidate and current best in processes without blocks, where it lost there.

    These are the trials near the declared shapes, and the candidate's `rows`.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    beside = best_ms(replicas, "step")
    factors = [(nodeid, rows[nodeid] / ms) for nodeid, ms in beside.items() if rows.get(nodeid)]
    for trial in tried:
        if trial.nodeid in beside and {CANDIDATE, INCUMBENT} <= trial.declared_seconds.keys():
            seconds = trial.declared_seconds
            factors.append((trial.nodeid, seconds[CANDIDATE] / seconds[INCUMBENT]))
    for nodeid, factor in factors:
        if factor > _LOST_TIMES:
            found.setdefault(nodeid, []).append((factor * beside[nodeid], beside[nodeid]))
    return found


def look_outside(
    replicas: Replicates,
    another: Callable[[], Iterable[Mapping[str, CaseQuads]]],
    loss_pct: float | None = None,
    beside_alone: Replicates = (),
) -> CrossCheck:
    """Ask the controller's clock, and `another` replica while it does not bear a verdict out.

    On a GPU the device's events measured the change. On the CPU processor time did, and this clock,
    which others on the machine disturb, can only contradict. `replicas` are those that the verdict
    claims a gain by, whether or not that clock was asked in them; it may have been asked in those
    `beside_alone` as well. With `loss_pct` no gain is claimed, but that no more than this is lost.
    """
    asked = [*replicas, *beside_alone]
    engines = {case.engine for replica in replicas for case in replica.values()}
    if "wall" in engines:
        sums = _total(replicas, asked, {}, _by_wall)
        if sums is None:
            return CrossCheck()
        gain, less, _ = sums
        is_less = loss_pct is None and less.lower(_ACCUSING_LEVEL) > _MOVED_LEAST
        left = replace(less, mean=gain - less.mean)
        return _witnessed(left, loss_pct, less.mean if is_less else 0.0)
    more = 0
    while True:
        if estimates := _estimates(replicas, asked):
            change, differs = estimates
            found = _witnessed(change, loss_pct, differs=differs, more=more)
        else:
            is_due = "graph" in engines and loss_pct is None
            found = CrossCheck("the controller's clock could not time the change" * is_due)
        if not found.doubt or more == _MORE_REPLICAS:
            return found
        asked += another()
        more += 1


def _witnessed(
    change: Estimate,
    loss_pct: float | None,
    excess: float = 0.0,
    differs: Estimate | None = None,
    more: int = 0,
) -> CrossCheck:
    """Return what the controller's clock says, which took `more` replicas.

    On a GPU its change `differs` from that of the events.
    """
    low, high = change.lower(_SEEN_LEVEL), change.upper(_SEEN_LEVEL)
    is_seen = high >= math.log1p(-(loss_pct or 0.0) / 100)
    if differs and loss_pct is None:
        is_seen = low > 0
    clock, finding = f"{percent(change.mean):+.1f} %", None
    if differs:
        gain = change.mean - differs.mean
        if differs.upper(_MOVED_LEVEL) < -max(_MOVED_SHARE * gain, _MOVED_LEAST):
            events = f"the device's events measure a change of {percent(gain):+.1f} %"
            finding = _hidden(f"{events}, the clock of the controller one of {clock}")
    return CrossCheck(
        ""
        if is_seen
        else f"by the controller's clock the change is {clock} "
        f"[{percent(low):+.1f}, {percent(high):+.1f}]",
        excess,
        finding,
        change=change,
        document={**change.figures(_SEEN_LEVEL), "more_replicas": more},
    )


def _hidden(message: str, where: str = "") -> Finding:
    advice = "do all the work within the timed call, and leave clocks and hooks alone"
    return Finding("hidden-time", message, where=where, advice=advice)


def _by_wall(new: BlockTime, old: BlockTime) -> tuple[float, float]:
    """Return the ms of both by what passed meanwhile; what passes around any block cancels."""
    return old.counted - (old.passed - new.passed), old.counted


def _counted(new: BlockTime, old: BlockTime) -> tuple[float, float]:
    return new.of("step"), old.of("step")


def _estimates(replicas: Replicates, asked_in: Replicates) -> tuple[Estimate, Estimate] | None:
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
        return None
    difference = Estimate.of(tuple(differs))
    change = statistics.fmean(claimed[case.nodeid] for case in asked for _ in case.outside)
    return replace(difference, mean=change + difference.mean), difference


def look_anew(replicas: Replicates, others: Replicates) -> CrossCheck:
    """Hold the gain against that of calls that meet their content the first time, on a GPU.

    There a block repeats its calls: what finds content that it knows could answer from memory.
    """
    cases: dict[str, list[float]] = {}
    for replica in (*replicas, *others):
        for nodeid, case in replica.items():
            ratios = (
                math.log(old.of("step") / new.of("step")) for new, old in pairs_of(case.looks)
            )
            cases.setdefault(nodeid, []).extend(ratios)
    gains = {
        nodeid: statistics.fmean(replica[nodeid].ratio("step") for replica in replicas)
        for nodeid, ratios in cases.items()
        if len(ratios) > 1 and nodeid in replicas[0]
    }
    if not gains:
        return CrossCheck()
    gain = statistics.fmean(gains.values())
    estimates = [_mean_of([gains[nodeid] - ratio for ratio in cases[nodeid]]) for nodeid in gains]
    less = Estimate(
        statistics.fmean(each.mean for each in estimates),
        math.hypot(*(each.error for each in estimates)) / len(estimates),
        sum(each.freedom for each in estimates),
    )
    document = less.figures(_LOSS_LEVEL)
    if less.lower(_LOSS_LEVEL) <= max(math.log1p(_SUSPECT_PCT / 100), _ANEW_SHARE * gain):
        return CrossCheck(change=less, document=document)
    message = f"for input values that are new the change is {percent(gain - less.mean):+.1f} %"
    return CrossCheck("", less.mean, flag=message, change=less, document=document)


def hidden_time(replicas: Replicates) -> Iterator[Finding]:
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
            return _hidden(
                f"the timed calls of a block take {gained:.3g} ms less than the current best's, "
                f"and {longer.mean:.3g} ms more pass outside of them",
                nodeid,
            )
    return None


def _mean_of(values: Sequence[float]) -> Estimate:
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), error, len(values) - 1)


@dataclass(frozen=True, slots=True)
class Credit:
    """The verdict of the other measurements on a version that would be kept."""

    witness: CrossCheck = CrossCheck()
    alone: CrossCheck = CrossCheck()
    total: CrossCheck = CrossCheck()
    anew: CrossCheck = CrossCheck()

    @property
    def doubt(self) -> str:
        """Why the version is not kept all the same, "" where it is."""
        return self.witness.doubt or self.alone.doubt or self.total.doubt

    @property
    def excess(self) -> float:
        """By how much, as a log-ratio, the gain is more than the other measurements allow."""
        checks = self.witness, self.alone, self.total, self.anew
        return max(check.excess for check in checks)

    @property
    def flags(self) -> list[str]:
        part = f"{percent(self.excess):.1f} % of the gain in pairs are not credited"
        return [
            *filter(None, (self.alone.flag, self.total.flag, self.anew.flag)),
            *[part] * bool(self.excess),
        ]

    def to_document(self) -> dict[str, object]:
        asked = self.alone.document or {"slower_pct": [], "why_not": ""}
        return {
            "incumbent_alone": {**asked, "doubt": self.alone.doubt},
            "outside_clock": self.witness.document,
            "total_time": self.total.document,
            "new_content": self.anew.document,
        }


def examine(
    comparison: Comparison,
    replicas: Replicates,
    results: Sequence[CaseResult],
    gain_pct: float | None,
    loss_pct: float | None,
) -> Credit:
    """Hold what was measured against total time, outside clock, and the current best alone.

    `results` have the candidate's rows. With `loss_pct` no gain is claimed, but that no more than
    so much is lost. Raises Caught.
    """
    beside_alone: list[Mapping[str, CaseQuads]] = []
    rows = {result.nodeid: ms for result in results if (ms := result.evidence.call_ms("step"))}
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
    _refuse([witness.finding] if witness.finding else [])
    if comparison.written:
        what = f"the kernel wrote {comparison.written} in the tree of the current best"
        advice = "write to the kernel's own tree only"
        _refuse([Finding("harness-written", f"{what} during the comparison", advice=advice)])
    _refuse(hidden_time(beside_alone))
    if alone.finding and alone.finding.rejects:
        _refuse([alone.finding])
    return Credit(witness, alone, total, look_anew(replicas, (*beside_alone,)))


def _refuse(findings: Iterable[Finding]) -> None:
    if caught := [*findings]:
        raise Caught(caught)
