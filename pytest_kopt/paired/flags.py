"""The flags of a comparison: how it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT
from pytest_kopt.devices.conditions import by_kind
from pytest_kopt.measure.engine import by_events
from pytest_kopt.paired.arms import TWO_PROCESSES
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.measured_points import evidence_of, warnings_of
from pytest_kopt.paired.replica import CaseQuads

#: What a flag says where no other process judged the timed results of a case.
_INSIDE = "what timed calls gave was judged in their own process"


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
