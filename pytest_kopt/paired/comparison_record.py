"""The record of a comparison: the operating points it measured at, its flags, and its pairs."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterator, Mapping, Sequence

from pytest_kopt.campaign.attempt import PAIR_COLUMNS
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, UNEVEN
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT
from pytest_kopt.decide.operating_points import TURN_S, Load, PointEvidence, PointName
from pytest_kopt.devices.conditions import by_kind
from pytest_kopt.devices.states import BOOST, SUSTAINED
from pytest_kopt.devices.vendor import CPU
from pytest_kopt.measure.engine import by_events
from pytest_kopt.paired.arms import TWO_PROCESSES
from pytest_kopt.paired.blocks import Quad, gain_in_turns
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.replica import CaseQuads

#: A version's blocks are at boost where their median clock is so near the highest of the case, and
#: two versions' are at the same one where they are so near each other, in percent.
_BELOW_TOP_PCT, _APART_PCT = 3.0, 1.0
#: What a flag says where no other process judged the timed results of a case.
_INSIDE = "what timed calls gave was judged in their own process"


def evidence_of(measured: Sequence[CaseQuads], way: str) -> PointEvidence | None:
    """Return what replicas of a case measured at operating points; None on the CPU."""
    first = measured[0]
    if CANDIDATE not in first.quads or first.device == CPU.uuid:
        return None
    under_load = [case for case in measured if CANDIDATE in case.sustained]
    is_under_load = under_load and first.operating_point == SUSTAINED
    decides: PointName = "sustained" if is_under_load else "boost"
    second: Sequence[float] = ()
    turns = [
        block.passed
        for case in under_load
        for quad in case.sustained[CANDIDATE]
        for _, block in quad
    ]
    if decides == SUSTAINED:
        second = [case.ratio(way, point=BOOST) for case in measured]
    elif under_load:
        second = [gain_in_turns(case.sustained[CANDIDATE], way) for case in under_load]
    return PointEvidence(
        decides,
        max((case.top_mhz for case in measured), default=0.0) or None,
        True if any(case.is_steady for case in measured) else False if under_load else None,
        tuple(second),
        {
            point: (_load(cases, CANDIDATE, point), _load(cases, INCUMBENT, point))
            for point, cases in ((BOOST, measured), (SUSTAINED, under_load))
            if cases
        },
        turn_s=statistics.median(turns) / 1e3 if turns else TURN_S,
    )


def _load(cases: Sequence[CaseQuads], arm: str, point: str) -> Load:
    """Return the load of an arm at a point: medians over its blocks in the comparison."""
    blocks = [
        block
        for case in cases
        for quad in case.at(CANDIDATE, point)
        for name, block in quad
        if name == arm
    ]
    clocks = [block.mhz for block in blocks if block.mhz is not None]
    powers = [block.watts for block in blocks if block.watts is not None]
    joules = [
        block.watts * block.of("step") / 1e3
        for block in blocks
        if block.watts is not None and point == SUSTAINED
    ]
    mhz, watts, energy = (
        statistics.median(values) if values else None for values in (clocks, powers, joules)
    )
    return Load(mhz=mhz, watts=watts, joules=energy)


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


def flags_of(
    comparison: Comparison,
    results: Sequence[CaseResult],
    replicas: Sequence[Mapping[str, CaseQuads]],
) -> tuple[str, ...]:
    """Return the flags of a comparison, then those of its cases."""
    found = []
    if comparison.how == TWO_PROCESSES:
        found.append(
            f"compared in two processes (a bias of up to {KNOWN_BIAS_PCT:g} % is known): "
            f"{comparison.why_two}"
        )
    if comparison.why_open:
        found.append(comparison.why_open)
    if comparison.why_fresh:
        found.append(f"each process was an interpreter of its own: {comparison.why_fresh}")
    flags: dict[str, tuple[str, ...]] = {}
    for result in results:
        measured = [replica[result.nodeid] for replica in replicas]
        around = [case.conditions for case in measured]
        flagged = [conditions for conditions in around if conditions and conditions.flags]
        points = evidence_of(measured, "step")
        flags[result.label] = (
            *(flagged[-1].flags if flagged else ()),
            *(warnings_of(points) if points else ()),
        )
        why = {k: v for case in measured for k, v in case.not_captured.items()}
        found += [f"{result.label}: {by_events(why)}"] if why else []
        inside = {case.judged_inside for case in measured} - {""}
        found += [f"{result.label}: {_INSIDE}: {why}" for why in sorted(inside)]
    return (*found, *by_kind(flags))


def pairs_csv(results: Sequence[CaseResult], replicas: Sequence[Mapping[str, CaseQuads]]) -> str:
    """Return the table; the times are those of a call, forward and backward together, in ms."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PAIR_COLUMNS)
    for number, replica in enumerate(replicas, start=1):
        for result in (result for result in results if result.nodeid in replica):
            quads = replica[result.nodeid]
            for kind in quads.quads:
                for pair, position, new, old, mhz in _pairs(quads.at(kind)):
                    row = [result.label, number, kind, pair, position, repr(new), repr(old)]
                    writer.writerow([*row, quads.device, "" if mhz is None else f"{mhz:.0f}"])
    return text.getvalue()


def _pairs(quads: Sequence[Quad]) -> Iterator[tuple[int, str, float, float, float | None]]:
    """Yield number, order, new and incumbent ms of adjacent blocks, and the clock after them.

    The times are of both directions together.
    """
    number = 0
    for quad in quads:
        for left, right in ((quad[0], quad[1]), (quad[2], quad[3])):
            number += 1
            times = {arm: time.of("step") for arm, time in (left, right)}
            old = next(arm for arm in times if arm in (INCUMBENT, UNEVEN[INCUMBENT]))
            new = next(arm for arm in times if arm != old)
            order = "BA" if left[0] == old else "AB"
            yield number, order, times[new], times[old], right[1].mhz
