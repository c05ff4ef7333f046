"""From cases that passed their checks to a paired verdict: looks, evidence, and pairs.csv."""

from __future__ import annotations

import csv
import io
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_kopt.campaign.ledger import PairedChange
from pytest_kopt.cases.order import CANDIDATE, PLACEBO
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS, percent
from pytest_kopt.decide.paired import PairedCase, PairedEvidence, decide_metrics
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.devices.conditions import Conditions
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.metrics import COMBINED, Metric, aggregate, improvement
from pytest_kopt.schema.table import Table
from pytest_kopt.session.comparison import (
    TWO_PROCESSES,
    CaseQuads,
    Comparison,
    NotComparable,
    Quad,
    Versions,
    time_of,
)
from pytest_kopt.versions import overlay

_PAIR_COLUMNS = (
    *("label", "round_of_inference", "comparison", "pair", "position"),
    *("candidate_ms", "incumbent_ms", "device", "clocks"),
)


@dataclass(frozen=True, slots=True)
class PairedResult:
    """A paired verdict with the evidence behind it."""

    verdict: Verdict
    pairs_csv: str
    change: PairedChange
    session: dict[str, object]


@contextmanager
def overlays(
    root: Path, incumbent: Mapping[str, bytes], candidate: Sequence[str]
) -> Iterator[Versions]:
    """Build the incumbent's two trees beside the project and remove them afterwards.

    `incumbent` are its files by path; `candidate` the paths the working tree has, so that new ones
    are absent from the incumbent's trees.
    """
    absent = [path for path in candidate if path not in incumbent]
    changed = tuple(sorted({*incumbent, *candidate}))
    with tempfile.TemporaryDirectory(prefix="kopt-incumbent-") as directory:
        base = Path(directory).resolve()
        trees = [
            overlay.build(root, base / name / root.name, incumbent, absent)
            for name in ("first", "second")
        ]
        yield Versions(root, (trees[0], trees[1]), changed)


def judge(
    comparison: Comparison,
    table: Table,
    results: Sequence[CaseResult],
    metrics: Sequence[Metric],
    policy: Policy,
    *,
    gate: Literal["improve", "no-regression"] = "improve",
    core: tuple[str, ...] | None = None,
) -> PairedResult:
    """Measure replicas until a look gives a verdict; `core` are the labels that the gate guards.

    Raises BadInput, suggesting a stored comparison, when the versions cannot be measured together.
    """
    replicas: list[dict[str, CaseQuads]] = []
    verdict = None
    for look in LOOKS:
        try:
            replicas += comparison.replicas(look - len(replicas))
        except NotComparable as error:
            raise BadInput(
                f"the incumbent cannot be measured beside the candidate: {error}"
                + (f" (in one process: {comparison.why_two})" if comparison.why_two else ""),
                where="--kopt-compare",
                legal="mend it, or --kopt-compare stored",
            ) from None
        found = [
            _evidence(
                metric,
                table,
                results,
                replicas,
                gate,
                core,
                (*_path_flags(comparison), *_condition_flags(results, replicas)),
            )
            for metric in metrics
        ]
        verdict = decide_metrics(found, policy)
        if verdict is not None:
            break
    assert verdict is not None, f"the look at {FINAL_LOOK} always decides"
    engines = sorted({quads.engine for quads in replicas[0].values()})
    return PairedResult(
        verdict.model_copy(update={"engine": ", ".join(engines)}),
        _pairs_csv(results, replicas),
        _change(results, replicas),
        {
            "compared_in": comparison.how,
            "why_two_processes": comparison.why_two,
            "replicas": len(replicas),
            "conditions": _conditions(results, replicas),
        },
    )


def way_of(metric: Metric) -> str:
    """Return which of a block's times a metric is about: forward, backward or step."""
    if metric.name.startswith(COMBINED):
        return "step"
    return "backward" if metric.name.startswith("Backward") else "forward"


def _evidence(
    metric: Metric,
    table: Table,
    results: Sequence[CaseResult],
    replicas: Sequence[Mapping[str, CaseQuads]],
    gate: Literal["improve", "no-regression"],
    core: tuple[str, ...] | None,
    flags: tuple[str, ...],
) -> PairedEvidence:
    way = way_of(metric)
    cases = tuple(
        PairedCase(
            label=result.label,
            dims=result.dims,
            ratios=tuple(replica[result.nodeid].ratio(way) for replica in replicas),
            placebo=tuple(replica[result.nodeid].ratio(way, control=True) for replica in replicas),
            device=replicas[0][result.nodeid].device,
            core=core is None or result.label in core,
        )
        for result in results
    )
    candidate = aggregate(table.rows, metric)
    gain = 1 + percent(statistics.fmean(r for case in cases for r in case.ratios)) / 100
    incumbent = candidate / gain if improvement(2, 1, metric) > 1 else candidate * gain
    return PairedEvidence(metric.name, cases, candidate, incumbent, gate, flags)


def _path_flags(comparison: Comparison) -> tuple[str, ...]:
    if comparison.how != TWO_PROCESSES:
        return ()
    return (f"compared in two processes (a bias of up to 0.3 % is known): {comparison.why_two}",)


def _condition_flags(
    results: Sequence[CaseResult], replicas: Sequence[Mapping[str, CaseQuads]]
) -> tuple[str, ...]:
    """Return what was wrong with the devices, once a case: in how many of its processes."""
    found = []
    for result in results:
        around = [replica[result.nodeid].conditions for replica in replicas]
        flagged = [conditions for conditions in around if conditions and conditions.flags]
        if flagged:
            found.append(
                f"{result.label}: {'; '.join(flagged[-1].flags)} "
                f"({len(flagged)} of {len(replicas)} processes)"
            )
    return tuple(found)


def _conditions(
    results: Sequence[CaseResult], replicas: Sequence[Mapping[str, CaseQuads]]
) -> list[dict[str, object]]:
    """Return which device measured which case in which process, when, and in what state."""
    return [
        {
            "label": result.label,
            "round_of_inference": number,
            "device": quads.device,
            "timed": list(quads.timed),
            **(quads.conditions.to_document() if quads.conditions else {}),
        }
        for number, replica in enumerate(replicas, start=1)
        for result in results
        for quads in [replica[result.nodeid]]
    ]


def _clocks(conditions: Conditions) -> str:
    """Return the SM clock in MHz after the measurement; empty where it is not known."""
    return "" if conditions.after.sm_mhz is None else f"{conditions.after.sm_mhz:.0f}"


def _change(
    results: Sequence[CaseResult], replicas: Sequence[Mapping[str, CaseQuads]]
) -> PairedChange:
    def mean(way: str) -> float:
        ratios = [replica[r.nodeid].ratio(way) for replica in replicas for r in results]
        return percent(statistics.fmean(ratios))

    first = replicas[0][results[0].nodeid].quads[0][0][1]
    return PairedChange(
        step_pct=mean("step"),
        forward_pct=mean("forward"),
        backward_pct=mean("backward") if first[1] is not None else None,
    )


def _pairs_csv(results: Sequence[CaseResult], replicas: Sequence[Mapping[str, CaseQuads]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_PAIR_COLUMNS)
    for number, replica in enumerate(replicas, start=1):
        for result in results:
            quads = replica[result.nodeid]
            clocks = "" if quads.conditions is None else _clocks(quads.conditions)
            for kind, found in (("candidate", quads.quads), ("placebo", quads.control)):
                for pair, position, new, old in _pairs(found):
                    row = [result.label, number, kind, pair, position, repr(new), repr(old)]
                    writer.writerow([*row, quads.device, clocks])
    return text.getvalue()


def _pairs(quads: Sequence[Quad]) -> Iterator[tuple[int, str, float, float]]:
    """Yield number, order, new and incumbent ms of adjacent blocks (both directions together)."""
    number = 0
    for quad in quads:
        for left, right in ((quad[0], quad[1]), (quad[2], quad[3])):
            number += 1
            times = {arm: time_of(found, "step") for arm, found in (left, right)}
            new = next(times[arm] for arm in (CANDIDATE, PLACEBO) if arm in times)
            order = "AB" if left[0] in (CANDIDATE, PLACEBO) else "BA"
            yield number, order, new, times["incumbent"]
