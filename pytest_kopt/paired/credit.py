"""Whether a gain is credited: what a version that would be kept is asked beyond its ratios.

A gain is no larger than these other measurements of it allow; where one shows less, that counts. No
limit follows from what the candidate's process measures of the current best and its copy, and a
measurement that cannot be had is a doubt.

The first is against the current best in a process without the candidate. A candidate can slow down
the code that runs next to it, by a hook in an allocator, a scheduling class, a cache of the
machine. That slows incumbent and control alike, so that no ratio inside of its process shows it.

One ratio of sums over all blocks of all processes that ran the candidate is the second. Medians
over pairs leave out blocks that take many times as long.

The third has the work around the counted time. On the CPU a comparison counts the processor time of
a block, on a GPU the device's events. The work around that is the same for all versions: a version
for which it takes longer has moved its work there (a hook, a finalizer, a clock that lies).

The fourth is the clock of the deciding process. A gain of processor time that this clock shows to
be a loss, as calls wait, is none. Blocks that a GPU replays are run many times over as well, so
that what passes around them cancels: a gain has to show there by the outside clock too.

The last has calls that meet their input values alone: blocks of one call on the CPU, on a GPU calls
on values that none of them met before.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT, Estimate, percent
from pytest_kopt.devices.states import BOOST
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.judge import Caught, Refused
from pytest_kopt.paired.samples import BlockTime, CaseQuads, Replicates, best_ms, pairs_of
from pytest_kopt.processes.child import MAX_DEATHS

#: While another measurement shows less by more than this, in percent, and by more than this share
#: of the gain, it is taken so many times in all: by some percent processes differ anyway.
_SUSPECT_PCT, _SUSPECT_SHARE, _TIMES = 2.0, 0.1, 4
#: A gain of which so much is not there by another measurement is none; less is taken off.
_LOSS_SHARE = 0.5
#: One-sided level of the bound on how much less another measurement shows, and of one that accuses.
_LOSS_LEVEL, _ACCUSING_LEVEL = 0.05, 0.005
#: A call of a GPU takes some µs more where its content was just written, as the cache gives that
#: back: so much of a gain may not be there then.
_ANEW_SHARE = 1 / 6
#: A row, and a call of a trial, is of another process and of few calls: it counts where the
#: candidate takes so many times as long there. A row is of another hour. A trial calls both
#: versions in turn; on a GPU it has their launches as well, which a block leaves out.
_LOST_ROW, _LOST_TRIAL, _LOST_LAUNCHES = 4.0, 3.0, 8.0
#: So much of the counted time may pass elsewhere.
_MOVED_LEAST = 0.02
#: So many times as long as around the current best's blocks next to it, and as around those of the
#: current best alone, it may take around a version's: on the CPU the contents of its caches differ,
#: and between processes where their memory lies; on a GPU also launches do.
_AROUND, _AROUND_GPU = (1.1, 1.5), (2.0, 2.0)
#: A version's time by the outside clock is at least this share of the current best's: differences
#: of what passes scatter.
_LEAST_SHARE = 1e-4
#: Messages to a GPU's process and the launches of its calls take their time, in ms.
_LAUNCHES_MS = 5.0
#: One-sided level of the bound on the time that passes elsewhere, and the share of a GPU's gain
#: that the outside clock may show less.
_MOVED_LEVEL, _MOVED_SHARE = 0.001, 0.25
#: One-sided level at which the outside clock has to see a gain of a GPU, and how many replicas may
#: be measured for that alone.
_SEEN_LEVEL, _MORE_REPLICAS = 0.05, 2
_BIAS = math.log1p(KNOWN_BIAS_PCT / 100)


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """The result of another measurement of a gain that pairs show."""

    #: Why the gain may not be there, where that was not shown; "" where it is.
    doubt: str = ""
    #: By how much, as a log-ratio, the gain is more than is shown here.
    excess: float = 0.0
    finding: Finding | None = None
    #: The words of the verdict.
    flags: tuple[str, ...] = ()
    #: What the evidence says of it.
    document: Mapping[str, Any] | None = None


class _Less(NamedTuple):
    """By how much, as a log-ratio, another measurement shows less than a `gain`."""

    gain: float
    whole: Estimate
    #: Without what adds most to it: a block may be held up once, and hides nothing then.
    rest: Estimate

    def at(self, level: float) -> Estimate:
        """Return the one whose lower bound says more."""
        return max(self.whole, self.rest, key=lambda estimate: estimate.lower(level))

    @property
    def says_too_little(self) -> bool:
        """Whether it shows less than the gain, but by no more than such measurements scatter."""
        is_shown = self.at(_LOSS_LEVEL).lower(_LOSS_LEVEL) > _BIAS
        return not is_shown and self.whole.mean > suspect_above(self.gain)

    def held(self, how: str, level: float = _LOSS_LEVEL) -> CrossCheck:
        """Return what is taken off the gain, or why it is in doubt, by what `how` was measured.

        One that is not shown at a `level` is taken off as well, but for half of the gain.
        """
        shown = self.at(level)
        is_shown = shown.lower(level) > _BIAS
        less = shown if is_shown else self.rest
        message = f"{how} the change is {percent(self.gain - less.mean):+.1f} %"
        found = CrossCheck(document=less.figures(level))
        if not is_shown and less.mean <= suspect_above(self.gain):
            return found
        if not is_shown and less.mean >= _LOSS_SHARE * self.gain:
            return replace(found, doubt=message)
        return replace(found, excess=less.mean, flags=(message,))


def suspect_above(gain: float, share: float = _SUSPECT_SHARE) -> float:
    """Return by how much less, as a log-ratio, another measurement shows before it is suspect."""
    return max(math.log1p(_SUSPECT_PCT / 100), share * gain)


def look_alone(
    in_company: Callable[[], Mapping[str, CaseQuads]], replicas: Replicates
) -> CrossCheck:
    """Hold the gain in `replicas` against the current best alone, more than once if it is less.

    Each time `in_company` returns both next to each other, by node id. Raises what that raises, but
    for Refused: a gain that could not be measured so is in doubt.

    It is rule 5 of docs/honesty.md.
    """
    gains = _gains(replicas)
    gain = statistics.fmean(gains.values())
    slower, by_pairs, by_sums, refused = list[float](), list[float](), list[float](), list[str]()
    while len(slower) < _TIMES and len(refused) < MAX_DEATHS:
        try:
            cases = [_in_company(case) for case in map(in_company().get, gains)]
        except Refused as reason:
            refused.append(str(reason))
            continue
        slower.append(-statistics.fmean(case.ratio("step", "alone") for case in cases))
        ratios = statistics.fmean(case.ratio("step") for case in cases)
        by_pairs.append(gain - ratios + slower[-1])
        by_sums.append(gain - statistics.fmean(map(_gain_over_alone, cases)))
        if max(map(statistics.fmean, (by_pairs, by_sums))) <= suspect_above(gain):
            break
    why_not = refused[-1] if len(refused) == MAX_DEATHS else ""
    document = {"slower_pct": [*map(percent, slower)], "why_not": why_not}
    if why_not:
        doubt = f"the gain could not be held against the current best alone: {why_not}"
        return CrossCheck(doubt, document=document)
    if len(slower) < _TIMES:
        return CrossCheck(document=document)
    loss = Estimate.of(tuple(slower))
    is_lost = max(map(statistics.fmean, (by_pairs, by_sums))) >= _LOSS_SHARE * gain
    level = _ACCUSING_LEVEL if is_lost else _LOSS_LEVEL
    found = max(
        (
            _Less(gain, Estimate.of(less), Estimate.of(sorted(less)[:-1])).held(
                "against the current best alone", level
            )
            for less in map(tuple, (by_pairs, by_sums))
        ),
        key=lambda check: (bool(check.doubt), check.excess),
    )
    found = replace(found, document=document)
    if loss.lower(level) <= _BIAS:
        return found
    finding = Finding(
        "incumbent-slowed",
        f"the incumbent is {percent(loss.mean):.1f} % slower in one process with the candidate "
        "than without it",
        advice="leave the process, its libraries and the machine as they are",
        rejects=loss.mean >= _LOSS_SHARE * gain and loss.lower(_ACCUSING_LEVEL) > _BIAS,
    )
    return replace(found, finding=finding, flags=(str(finding),))


def _in_company(case: CaseQuads | None) -> CaseQuads:
    if case is None or not (case.at("alone") and case.at(CANDIDATE)):
        raise Refused("a case was not timed there")
    return case


def _gain_over_alone(case: CaseQuads) -> float:
    """Return the candidate's gain over the current best alone by sums over blocks, as a log-ratio.

    The candidate's sum has what it has moved to where nothing is counted.
    """
    pairs, alone = [*pairs_of(case.at(CANDIDATE))], [*pairs_of(case.at("alone"), INCUMBENT, ALONE)]
    gain = -sum(
        math.log(math.fsum(new.of("step") for new, _ in each))
        - math.log(math.fsum(old.of("step") for _, old in each))
        for each in (pairs, alone)
    )
    if case.engine == "graph":
        return gain
    news = [new for new, _ in pairs_of(case.quads[CANDIDATE])]
    most = statistics.fmean(_most_around(old, case.engine, is_apart=True) for _, old in alone)
    moved = max(0.0, statistics.fmean(new.outside - new.counted for new in news) - most)
    return gain - math.log1p(moved / statistics.fmean(new.counted for new in news))


def _most_around(old: BlockTime, engine: str, *, is_apart: bool = False) -> float:
    """Return how many ms may pass around a block by what passes around the current best's."""
    is_host = engine == "wall"
    share = (_AROUND if is_host else _AROUND_GPU)[is_apart]
    least = _MOVED_LEAST * old.counted + (0.0 if is_host else _LAUNCHES_MS)
    return share * (old.outside - old.counted) + least


def _pairs_with_alone(case: CaseQuads) -> Iterator[tuple[BlockTime, BlockTime]]:
    """Yield blocks of the candidate and of the current best alone of the same lap."""
    laps = zip(case.quads.get(CANDIDATE, ()), case.quads.get("alone", ()), strict=False)
    for with_candidate, with_alone in laps:
        news = [time for arm, time in with_candidate if arm == CANDIDATE]
        yield from zip(news, (time for arm, time in with_alone if arm == ALONE), strict=True)


def _gains(replicas: Replicates, point: str | None = None) -> dict[str, float]:
    """Return the gain of each case that was timed, as a log-ratio.

    It is that at an operating point, by default the one that decides.
    """
    return {
        nodeid: statistics.fmean(replica[nodeid].ratio("step", point=point) for replica in replicas)
        for nodeid, first in (replicas[0] if replicas else {}).items()
        if not first.same
    }


def _pairs(nodeid: str, measured: Replicates) -> list[tuple[BlockTime, BlockTime]]:
    """Return the pairs of blocks of a case, the candidate's first."""
    # What was timed next to the incumbent alone may be here twice.
    timed = (replica[nodeid].at(CANDIDATE) for replica in measured if nodeid in replica)
    quads = {id(of_process): of_process for of_process in timed}
    return [pair for each in quads.values() for pair in pairs_of(each)]


def _less_by_sums(
    gains: Mapping[str, float], times: Mapping[str, Sequence[tuple[float, float]]]
) -> _Less | None:
    """Hold gains against one ratio of sums a case, over pairs of ms: the candidate's come first.

    None where no case has three pairs.
    """
    timed = {nodeid: pairs for nodeid, pairs in times.items() if len(pairs) > 2}
    if not timed:
        return None
    of_case = {nodeid: _without_each(gains[nodeid], pairs) for nodeid, pairs in timed.items()}
    drops = {nodeid: whole - min(without) for nodeid, (whole, without) in of_case.items()}
    worst = max(drops, key=drops.__getitem__)
    without = of_case[worst][1]
    at = without.index(min(without))
    rest = [*timed[worst][:at], *timed[worst][at + 1 :]]
    others = {**of_case, worst: _without_each(gains[worst], rest)}
    gain = statistics.fmean(gains[nodeid] for nodeid in timed)
    return _Less(gain, _jackknife([*of_case.values()]), _jackknife([*others.values()]))


def _without_each(gain: float, pairs: Sequence[tuple[float, float]]) -> tuple[float, list[float]]:
    """Return by how much less than the gain a ratio of sums is, and without each pair in turn."""
    new, old = (math.fsum(times) for times in zip(*pairs, strict=True))
    least = _LEAST_SHARE * old
    without = [gain - math.log((old - b) / max(new - a, least)) for a, b in pairs]
    return gain - math.log(old / max(new, least)), without


def _jackknife(cases: Sequence[tuple[float, Sequence[float]]]) -> Estimate:
    """Estimate a mean over cases: a sum of few large terms scatters by as much as one of them."""
    variances = [(len(each) - 1) * statistics.pvariance(each) for _, each in cases]
    error = math.sqrt(math.fsum(variances)) / len(cases)
    freedom = sum(len(each) - 1 for _, each in cases)
    return Estimate(statistics.fmean(whole for whole, _ in cases), error, freedom)


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

    It is rule 1 of docs/honesty.md.
    """
    gains, measured, taken = _gains(replicas), [*replicas, *others], len(others)
    while True:
        times = {
            nodeid: [(new.of("step"), old.of("step")) for new, old in _pairs(nodeid, measured)]
            for nodeid in gains
        }
        times = {name: [*pairs, *elsewhere.get(name, ())] for name, pairs in times.items() if pairs}
        less = _less_by_sums(gains, times)
        if not less:
            return CrossCheck()
        if not less.says_too_little or taken >= _TIMES:
            return less.held("by the total time of all blocks")
        measured += another()
        taken += 1


def look_around(replicas: Replicates, others: Replicates = ()) -> CrossCheck:
    """Hold the gain against blocks with what passes around them, where no graph is replayed.

    The current best's blocks next to them have the same work around them. `others` were not claimed
    for the gain.
    """
    gains, measured = _gains(replicas), [*replicas, *others]
    times = dict[str, list[tuple[float, float]]]()
    for nodeid, gain in gains.items():
        if (engine := replicas[0][nodeid].engine) == "graph":
            continue
        pairs = _pairs(nodeid, measured)
        times[nodeid] = [
            (new.outside - _most_around(old, engine), old.counted) for new, old in pairs
        ]
        less = _less_by_sums(gains, {nodeid: times[nodeid]})
        limit = max(_LOSS_SHARE * gain, suspect_above(gain))
        if less and gain > 0 and less.at(_MOVED_LEVEL).lower(_MOVED_LEVEL) > limit:
            gained = statistics.fmean(old.counted - new.counted for new, old in pairs)
            longer = gained + statistics.fmean(new.outside - old.outside for new, old in pairs)
            message = (
                f"the timed calls of a block take {gained:.3g} ms less than the current best's, "
                f"and {longer:.3g} ms more pass outside of them"
            )
            return CrossCheck(finding=_hidden(message, nodeid))
    found = _less_by_sums(gains, times)
    return found.held("with what passes around the blocks") if found else CrossCheck()


def lost_elsewhere(
    tried: Iterable[Tried], rows: Mapping[str, float], replicas: Replicates
) -> dict[str, list[tuple[float, float]]]:
    """Return ms of candidate and current best in processes without blocks, where it lost there.

    These are the trials near the declared shapes, and the candidate's `rows`.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    beside = best_ms(replicas, "step")
    factors = [
        (nodeid, rows[nodeid] / ms, _LOST_ROW) for nodeid, ms in beside.items() if rows.get(nodeid)
    ]
    for trial in tried:
        if trial.nodeid in beside and {CANDIDATE, INCUMBENT} <= trial.declared_seconds.keys():
            seconds = trial.declared_seconds
            is_host = replicas[0][trial.nodeid].engine == "wall"
            least = _LOST_TRIAL if is_host else _LOST_LAUNCHES
            factors.append((trial.nodeid, seconds[CANDIDATE] / seconds[INCUMBENT], least))
    for nodeid, factor, least in factors:
        if factor > least:
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

    It is rule 2 of docs/honesty.md.
    """
    asked = [*replicas, *beside_alone]
    engines = {case.engine for replica in replicas for case in replica.values()}
    if "wall" in engines:
        return _look_by_wall(replicas, beside_alone, loss_pct)
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


def _look_by_wall(
    replicas: Replicates, beside_alone: Replicates, loss_pct: float | None
) -> CrossCheck:
    """Hold a gain of processor time against what passed meanwhile.

    Next to the current best alone only half of a gain counts: processes differ.
    """
    gains = _gains(replicas)
    beside, apart = dict[str, list[tuple[float, float]]](), dict[str, list[tuple[float, float]]]()
    for nodeid in gains:
        beside[nodeid] = [*map(_by_wall, _pairs(nodeid, [*replicas, *beside_alone]))]
        cases = (replica[nodeid] for replica in beside_alone if nodeid in replica)
        apart[nodeid] = [_by_wall(pair) for case in cases for pair in _pairs_with_alone(case)]
    less = _less_by_sums(gains, beside)
    if not less:
        return CrossCheck()
    shown = less.at(_ACCUSING_LEVEL)
    is_less = shown.lower(_ACCUSING_LEVEL) > _MOVED_LEAST
    if alone := _less_by_sums(gains, apart):
        than_alone = alone.at(_ACCUSING_LEVEL)
        if than_alone.lower(_ACCUSING_LEVEL) > max(_MOVED_LEAST, _LOSS_SHARE * less.gain):
            shown, is_less = max(shown, than_alone, key=lambda found: found.mean), True
    left = replace(shown, mean=less.gain - shown.mean)
    return _witnessed(left, loss_pct, shown.mean if is_less and loss_pct is None else 0.0)


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
        document={**change.figures(_SEEN_LEVEL), "more_replicas": more},
    )


def _hidden(message: str, where: str = "") -> Finding:
    advice = "do all the work within the timed call, and leave clocks and hooks alone"
    return Finding("hidden-time", message, where=where, advice=advice)


def _by_wall(pair: tuple[BlockTime, BlockTime]) -> tuple[float, float]:
    """Return the ms of both by what passed meanwhile; what passes around any block cancels."""
    new, old = pair
    return old.counted - (old.passed - new.passed), old.counted


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
            if nodeid in replica and not replica[nodeid].same
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

    There a block repeats its calls: what finds content that it knows could answer from memory. Both
    are at boost.
    """
    cases: dict[str, list[float]] = {}
    for replica in (*replicas, *others):
        for nodeid, case in replica.items():
            pairs = pairs_of(case.looks)
            ratios = [math.log(old.of("step") / new.of("step")) for new, old in pairs]
            cases.setdefault(nodeid, []).extend(ratios)
    timed = _gains(replicas, BOOST)
    gains = {name: gain for name, gain in timed.items() if len(cases[name]) > 2}
    if not gains:
        return CrossCheck()
    less_in = {nodeid: [gains[nodeid] - ratio for ratio in cases[nodeid]] for nodeid in gains}
    worst = max(less_in, key=lambda nodeid: max(less_in[nodeid]))
    rest = {**less_in, worst: sorted(less_in[worst])[:-1]}
    gain = statistics.fmean(gains.values())
    less = _Less(gain, *(_mean_over(each.values()) for each in (less_in, rest)))
    if less.at(_LOSS_LEVEL).mean <= suspect_above(gain, _ANEW_SHARE):
        return CrossCheck(document=less.whole.figures(_LOSS_LEVEL))
    return less.held("for input values that are new")


def look_singles(
    replicas: Replicates,
    beside_alone: Replicates,
    another: Callable[[], Iterable[Mapping[str, CaseQuads]]],
    *,
    is_brought: bool = False,
) -> CrossCheck:
    """Hold the gain against that of blocks of one call, or of brought ones, on the CPU.

    A longer block has calls that can leave their work to another one, or find its input values. The
    gain there is what a single call of the candidate takes less than one of the current best, in a
    process without the candidate. Costs of any block cancel, but for what two processes differ by:
    less counts if `another` replica, in processes of its own, shows it each time.

    The costs of a block may be more than a call takes. Then only longer blocks, whose input values
    are brought, show work that was done while their process wrote others.
    """
    gains, measured, less = _gains(replicas), [*replicas, *beside_alone], None
    for times in range(_TIMES):
        # A candidate that ends in these blocks, and is measured without them, takes nothing back.
        less = _less_by_sums(gains, _singles(measured, is_brought=is_brought)) or less
        if not less or less.at(_LOSS_LEVEL).lower(_LOSS_LEVEL) <= suspect_above(less.gain):
            return CrossCheck(document=less and less.whole.figures(_LOSS_LEVEL))
        if times < _TIMES - 1:
            measured = [*another()]
    assert less is not None
    return less.held("for input values that are brought" if is_brought else "in blocks of one call")


def _singles(measured: Replicates, *, is_brought: bool) -> dict[str, list[tuple[float, float]]]:
    """Return what a call takes of both versions by these blocks, the candidate's first."""
    times = dict[str, list[tuple[float, float]]]()
    for case in (case for replica in measured for case in replica.values()):
        quads = case.brought if is_brought else case.singles
        arms = {arm for quad in quads for arm, _ in quad} - {CANDIDATE}
        for old_arm in arms & {ALONE, INCUMBENT}:
            kind = "alone" if old_arm == ALONE else CANDIDATE
            blocks = (block for quad in case.quads[kind] for block in quad)
            took = statistics.fmean(time.of("step") for arm, time in blocks if arm == old_arm)
            for new, old in pairs_of(quads, CANDIDATE, old_arm):
                single = took + new.of("step") - old.of("step")
                times.setdefault(case.nodeid, []).append((single, took))
    return times


def _mean_over(cases: Collection[Sequence[float]]) -> Estimate:
    estimates = [Estimate.of(tuple(values)) for values in cases]
    return Estimate(
        statistics.fmean(each.mean for each in estimates),
        math.hypot(*(each.error for each in estimates)) / len(estimates),
        sum(each.freedom for each in estimates),
    )


def _together(*checks: CrossCheck) -> CrossCheck:
    """Return what other measurements leave of a gain, in the order of `_MEASUREMENTS`."""
    alone, excess = checks[0], max(check.excess for check in checks)
    part = f"{percent(excess):.1f} % of the gain in pairs are not credited"
    flags = [flag for check in checks for flag in check.flags]
    asked = alone.document or {"slower_pct": [], "why_not": ""}
    documents = zip(_MEASUREMENTS, (check.document for check in checks), strict=True)
    return CrossCheck(
        doubt=next((check.doubt for check in checks if check.doubt), ""),
        excess=excess,
        flags=(*flags, *[part] * bool(excess)),
        document={**dict(documents), "incumbent_alone": {**asked, "doubt": alone.doubt}},
    )


#: The names of other measurements in the evidence.
_MEASUREMENTS = (
    *("incumbent_alone", "total_time", "around_blocks", "new_content"),
    *("single_calls", "brought_values", "outside_clock"),
)
#: Of a version that would not be kept, or is the same.
UNEXAMINED = _together(*[CrossCheck()] * len(_MEASUREMENTS))


def examine(
    comparison: Comparison,
    replicas: Replicates,
    results: Sequence[CaseResult],
    gain_pct: float | None,
    loss_pct: float | None,
) -> CrossCheck:
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

    alone = CrossCheck(document={"slower_pct": [], "why_not": comparison.why_apart})
    if not comparison.why_apart:
        alone = look_alone(in_company, replicas)
    elsewhere = lost_elsewhere(comparison.tried, rows, replicas)
    # A copy: what `another` adds there it returns as well.
    total = look_total(replicas, (*beside_alone,), elsewhere, another)
    around = look_around(replicas, beside_alone)
    witness = look_outside(replicas, another, loss_pct, (*beside_alone,))
    _refuse([check.finding for check in (around, witness) if check.finding])
    if comparison.written:
        what = f"the kernel wrote {comparison.written} in the tree of the current best"
        advice = "write to the kernel's own tree only"
        _refuse([Finding("harness-written", f"{what} during the comparison", advice=advice)])
    if alone.finding and alone.finding.rejects:
        _refuse([alone.finding])
    anew = look_anew(replicas, (*beside_alone,))
    singles = look_singles(replicas, (*beside_alone,), another)
    brought = look_singles(replicas, (*beside_alone,), another, is_brought=True)
    return _together(alone, total, around, anew, singles, brought, witness)


def _refuse(findings: Iterable[Finding]) -> None:
    if caught := [*findings]:
        raise Caught(caught)
