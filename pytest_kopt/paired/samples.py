"""The samples of a comparison, times of blocks, and what is recorded of them."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from pytest_kopt.campaign.attempt import PAIR_COLUMNS
from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO, UNEVEN
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.case_verdict import Same
from pytest_kopt.decide.inference import replica_ratio
from pytest_kopt.decide.known_noise import DEVICE_TIMED, TURN_S, UNDER_LOAD, Prior
from pytest_kopt.decide.operating_points import Load, PointEvidence
from pytest_kopt.decide.verdict import KernelChange
from pytest_kopt.devices.conditions import Conditions, by_kind
from pytest_kopt.devices.states import BOOST, SUSTAINED
from pytest_kopt.devices.vendor import CPU
from pytest_kopt.measure.engine import by_events

#: A version's blocks are at boost where their median clock is so near the highest of the case, and
#: two versions' are at the same one where they are so near each other, in percent.
_BELOW_TOP_PCT, _APART_PCT = 3.0, 1.0
#: The comparison, the A/A control, the comparison with the group sizes of a grouped GEMM drawn
#: anew, by their names in pairs.csv, and the incumbent beside the candidate against itself alone.
#: In a race each candidate's comparison has its name.
Kind = str
PAIRS: dict[Kind, tuple[str, str]] = {
    "candidate": (CANDIDATE, INCUMBENT),
    "placebo": (PLACEBO, INCUMBENT),
    "uneven": (UNEVEN[CANDIDATE], UNEVEN[INCUMBENT]),
    "alone": (INCUMBENT, ALONE),
}


@dataclass(frozen=True, slots=True)
class BlockTime:
    """The time of one block of an arm, in ms."""

    #: Of a call, forward and backward (None: the case has none).
    forward: float
    backward: float | None
    #: Of the whole block: what counts as its time, and that with what is around it: on the CPU all
    #: that its process computed since the block before, on a GPU what passed around the events by
    #: the clock of the process that orders it.
    counted: float
    outside: float
    #: What passed by that clock while its calls ran.
    passed: float
    #: The clock, in MHz, and the power, in W, that a GPU tells at its end; None where it does not.
    mhz: float | None = None
    watts: float | None = None

    def of(self, way: str) -> float:
        """Return the ms of a call: `forward`, `backward`, or `step`, which is both."""
        if way == "forward" or self.backward is None:
            return self.forward
        return self.backward if way == "backward" else self.forward + self.backward


Quad = list[tuple[str, BlockTime]]


def gain_in_turns(quads: Sequence[Quad], way: str) -> float:
    """Return the mean log-ratio of pairs; in pairs of both orders an even drift cancels."""
    pairs = pairs_of(quads)
    return statistics.fmean(math.log(old.of(way) / new.of(way)) for new, old in pairs)


def pairs_of(
    quads: Sequence[Quad], new: str = CANDIDATE, old: str = INCUMBENT
) -> Iterator[tuple[BlockTime, BlockTime]]:
    """Yield adjacent blocks of two arms."""
    for pair in map(dict, _adjacent(quads)):
        yield pair[new], pair[old]


def _adjacent(quads: Sequence[Quad]) -> Iterator[Quad]:
    for quad in quads:
        yield from (quad[at : at + 2] for at in range(0, len(quad), 2))


@dataclass(slots=True)
class CaseQuads:
    """One case in one replica: its quads, by what they compare.

    `engine` is that of both directions, or `graph+events`. `device` is the UUID of what measured
    it, `conditions` its state around that, `timed` from when to when it was measured alone (seconds
    since the epoch). `not_captured` says why something is not timed by replays of a graph.
    """

    nodeid: str
    engine: str
    quads: dict[Kind, list[Quad]] = field(default_factory=dict)
    device: str = ""
    conditions: Conditions | None = None
    timed: tuple[float, float] = (0.0, 0.0)
    not_captured: Mapping[str, str] = field(default_factory=dict)
    #: How it is known that both versions are the same, where nothing was timed.
    same: Same | None = None
    #: The bytes that a call of a version takes, by arm, where they were measured.
    memory: Mapping[str, int] = field(default_factory=dict)
    #: What the first call of a version in this process took, by arm, where it was measured.
    first_call_ms: Mapping[str, float] = field(default_factory=dict)
    #: The candidate's gain by the clock of the deciding process, as log-ratios.
    outside: tuple[float, ...] = ()
    #: The operating point of a GPU that decides; `quads` are at boost.
    operating_point: str = BOOST
    #: The highest clock that was seen, 0 where the device tells none.
    top_mhz: float = 0.0
    #: Whether the owner's setting held the clock.
    is_locked: bool = False
    #: What some of them compare at the sustained operating point, where that was measured.
    sustained: Mapping[Kind, list[Quad]] = field(default_factory=dict)
    #: Rounds of calls on content that none of them met before, on a GPU.
    looks: list[Quad] = field(default_factory=list)
    #: Blocks of one call on the CPU, and those of the incumbent in a process without the candidate.
    singles: list[Quad] = field(default_factory=list)
    #: Blocks of all calls, whose input values were brought from that process.
    brought: list[Quad] = field(default_factory=list)
    #: Whether the clock does not fall under load, so that one figure holds at both points.
    is_steady: bool = False
    #: By how much, as a log-ratio, the gain in pairs is more than is credited.
    excess: float = 0.0
    #: What differs in their machine code, as far as it is told.
    kernels: Future[list[KernelChange]] | None = None

    @property
    def has_backward(self) -> bool:
        """Whether its blocks, of which there are some, timed a backward."""
        return self.quads[CANDIDATE][0][0][1].backward is not None

    def at(self, kind: Kind, point: str | None = None) -> list[Quad]:
        """Return what compares a pair at an operating point, by default the one that decides.

        A kind that was not measured at the sustained one is at boost.
        """
        if (point or self.operating_point) == SUSTAINED and kind in self.sustained:
            return self.sustained[kind]
        return self.quads.get(kind, [])

    def incumbent_ms(self, way: str) -> float | None:
        """Return the time of a call next to the candidate, None where nothing was timed."""
        blocks = (block for quad in self.at(CANDIDATE) for block in quad)
        return _median([time.of(way) for arm, time in blocks if arm == INCUMBENT])

    def ratio(self, way: str, kind: Kind = "candidate", point: str | None = None) -> float:
        """Return the replica's log-ratio of a direction: forward, backward or step (both)."""
        if self.same:
            return 0.0
        quads = [[(arm, time.of(way)) for arm, time in quad] for quad in self.at(kind, point)]
        ratio = replica_ratio(quads, *PAIRS.get(kind, (kind, INCUMBENT)))
        return ratio - self.excess if kind == CANDIDATE else ratio


#: Replicates of a comparison: each the cases by node id.
Replicates = Sequence[Mapping[str, CaseQuads]]


def best_ms(replicas: Replicates, way: str) -> dict[str, float]:
    """Return the current best's milliseconds a call, of the cases that were timed next to it."""
    times = {
        name: [ms for replica in replicas if (ms := replica[name].incumbent_ms(way))]
        for name in (replicas[0] if replicas else ())
    }
    return {name: statistics.fmean(each) for name, each in times.items() if each}


def evidence_of(measured: Sequence[CaseQuads]) -> PointEvidence | None:
    """Return how replicas of a case loaded the device at operating points; None on the CPU."""
    first = measured[0]
    if CANDIDATE not in first.quads or first.device == CPU.uuid:
        return None
    under_load = [case for case in measured if CANDIDATE in case.sustained]
    return PointEvidence(
        "sustained" if under_load and first.operating_point == SUSTAINED else "boost",
        max((case.top_mhz for case in measured), default=0.0) or None,
        True if any(case.is_steady for case in measured) else False if under_load else None,
        {
            point: (_load(cases, CANDIDATE, point), _load(cases, INCUMBENT, point))
            for point, cases in ((BOOST, measured), (SUSTAINED, under_load))
            if cases
        },
        is_locked=any(case.is_locked for case in measured),
    )


def at_other_point(
    measured: Sequence[CaseQuads], way: str
) -> tuple[tuple[float, ...], tuple[float, ...], Prior] | None:
    """Return log-ratios at the operating point that does not decide, None where it was not timed.

    These are the candidate's, the A/A control's, if it was timed there, and the prior of both.
    """
    under_load = [case for case in measured if CANDIDATE in case.sustained]
    if not under_load:
        return None
    if measured[0].operating_point == SUSTAINED:
        new, copy = (
            tuple(case.ratio(way, kind, BOOST) for case in measured)
            for kind in (CANDIDATE, PLACEBO)
        )
        return new, copy, DEVICE_TIMED
    turns = [case.sustained[CANDIDATE] for case in under_load]
    passed = [block.passed for quads in turns for quad in quads for _, block in quad]
    prior = UNDER_LOAD.times(TURN_S / (statistics.median(passed) / 1e3))
    return tuple(gain_in_turns(quads, way) for quads in turns), (), prior


def _load(cases: Sequence[CaseQuads], arm: str, point: str) -> Load:
    """Return the load of an arm at a point: medians over its blocks in the comparison."""
    blocks = [
        block
        for case in cases
        for quad in case.at(CANDIDATE, point)
        for name, block in quad
        if name == arm
    ]
    watts = [block.watts for block in blocks if block.watts is not None]
    energy = [
        block.watts * block.of("step") / 1e3
        for block in blocks
        if block.watts is not None and point == SUSTAINED
    ]
    mhz = [block.mhz for block in blocks if block.mhz is not None]
    return Load(mhz=_median(mhz), watts=_median(watts), joules=_median(energy))


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def warnings_of(evidence: PointEvidence) -> list[str]:
    """Return where blocks at boost were not at boost, or the versions' not at the same clock."""
    candidate, incumbent = evidence.loads[BOOST]
    top, clocks = evidence.top_mhz, [candidate.mhz, incumbent.mhz]
    if top is None or None in clocks:
        return []
    low, high = sorted(mhz for mhz in clocks if mhz is not None)
    if low < (1 - _BELOW_TOP_PCT / 100) * top:
        return [f"not at boost: pauses left the clock at {low:.0f} of {top:.0f} MHz"]
    if low < (1 - _APART_PCT / 100) * high:
        return [f"the versions' blocks at boost had {low:.0f} and {high:.0f} MHz"]
    return []


def flags_of(results: Sequence[CaseResult], replicas: Replicates) -> list[str]:
    """Return the flags of the cases of a comparison."""
    found = []
    flags: dict[str, tuple[str, ...]] = {}
    for result in results:
        measured = [replica[result.nodeid] for replica in replicas]
        around = [case.conditions for case in measured]
        flagged = [conditions for conditions in around if conditions and conditions.flags]
        points = evidence_of(measured)
        flags[result.label] = (
            *(flagged[-1].flags if flagged else ()),
            *(warnings_of(points) if points else ()),
        )
        why = {k: v for case in measured for k, v in case.not_captured.items()}
        found += [f"{result.label}: {by_events(why)}"] if why else []
    return [*found, *by_kind(flags)]


def pairs_csv(results: Sequence[CaseResult], replicas: Replicates) -> str:
    """Return the table; the times are those of a call, forward and backward together, in ms."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PAIR_COLUMNS)
    for number, replica in enumerate(replicas, start=1):
        for result in results:
            quads = replica[result.nodeid]
            for kind in quads.quads:
                for number_of_pair, blocks in enumerate(_adjacent(quads.at(kind)), start=1):
                    (first, _), (_, last) = blocks
                    ms = {arm: time.of("step") for arm, time in blocks}
                    old = next(arm for arm in ms if arm in (INCUMBENT, UNEVEN[INCUMBENT]))
                    new = next(arm for arm in ms if arm != old)
                    order = "BA" if first == old else "AB"
                    row = [result.label, number, kind, number_of_pair, order]
                    row += [repr(ms[new]), repr(ms[old]), quads.device]
                    writer.writerow([*row, "" if last.mhz is None else f"{last.mhz:.0f}"])
    return text.getvalue()


def measured_under(results: Sequence[CaseResult], replicas: Replicates) -> list[dict[str, object]]:
    """Return which device measured which case in which replica, when, and in what state.

    Each block has its arm, the ms of a call, and the clock (MHz) and power (W) at its end.
    """
    return [
        {
            "label": result.label,
            "round_of_inference": number,
            "device": quads.device,
            "timed": list(quads.timed),
            "blocks": {BOOST: _blocks(quads.quads), SUSTAINED: _blocks(quads.sustained)},
            **(quads.conditions.to_document() if quads.conditions else {}),
        }
        for number, replica in enumerate(replicas, start=1)
        for result in results
        if not (quads := replica[result.nodeid]).same
    ]


def _blocks(quads: Mapping[Kind, list[Quad]]) -> dict[str, list[list[object]]]:
    return {
        kind: [
            [arm, time.of("step"), time.mhz, time.watts] for quad in of_kind for arm, time in quad
        ]
        for kind, of_kind in quads.items()
    }
