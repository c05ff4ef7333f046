"""From cases that passed their checks to a paired verdict: looks, evidence, and pairs.csv."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_kopt.campaign.attempt import PAIR_COLUMNS
from pytest_kopt.campaign.ledger import PairedChange
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, UNEVEN
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT, percent
from pytest_kopt.decide.interim_looks import decide_by_looks
from pytest_kopt.decide.paired_evidence import PairedCase, PairedEvidence
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import (
    Decision,
    KernelChange,
    Memory,
    Replicas,
    Same,
    Shape,
    Verdict,
)
from pytest_kopt.devices.conditions import by_kind
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.measure.engine import by_events
from pytest_kopt.options.settings import Gate
from pytest_kopt.paired.arms import TWO_PROCESSES
from pytest_kopt.paired.blocks import Kind, Quad
from pytest_kopt.paired.company import Company, look_alone
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.nearby import findings_nearby
from pytest_kopt.paired.noise import Known, Scatter, Way, measured_under
from pytest_kopt.paired.replica import CaseQuads, Caught
from pytest_kopt.paired.witness import Witness, hidden_time, look_outside
from pytest_kopt.schema.metrics import COMBINED, Metric, value
from pytest_kopt.schema.table import NO_CLASSES, Classes, Key, Table

#: What a flag says where no other process judged the timed results of a case.
_INSIDE = "what timed calls gave was judged in their own process"


@dataclass(frozen=True, slots=True)
class PairedResult:
    """A paired verdict with the evidence behind it; `same` says how it is known of a case that is.

    `results` are the cases, `replicas` what was measured of each; `tried` and `nearby` what the
    versions did at shapes near the declared ones, and what that says.
    """

    verdict: Verdict
    pairs_csv: str
    session: dict[str, object]
    same: Mapping[str, Same]
    results: tuple[CaseResult, ...]
    replicas: tuple[dict[str, CaseQuads], ...]
    tried: tuple[Tried, ...]
    nearby: tuple[Finding, ...]

    @property
    def has_same_machine_code(self) -> bool:
        """Whether the device does the same for both versions in every case."""
        return len(self.same) == len(self.results) and "machine" in self.same.values()

    def change(self, ids: Collection[str] | None = None) -> PairedChange:
        """Return the gain over the cases with these node ids, over all when None."""
        names = [r.nodeid for r in self.results if ids is None or r.nodeid in ids]

        def mean(way: str) -> float:
            ratios = [replica[name].ratio(way) for replica in self.replicas for name in names]
            return percent(statistics.fmean(ratios))

        timed = (quads for name in names if not (quads := self.replicas[0][name]).is_same)
        first = next((quads.quads["candidate"][0][0][1] for quads in timed), None)
        return PairedChange(
            step_pct=mean("step"),
            forward_pct=mean("forward"),
            backward_pct=mean("backward") if first and first.backward is not None else None,
        )


@dataclass(frozen=True, slots=True)
class PairedMetric:
    """A metric as a paired comparison sees it: which of a block's times it is about.

    `values` are the candidate's by case, for display; `higher` says which way it improves.
    """

    name: str
    way: Way
    values: Mapping[Key, float | None] = field(default_factory=dict)
    higher: bool = True

    @classmethod
    def of(cls, metric: Metric, table: Table) -> PairedMetric:
        """Return a metric of a CSV with its values in the candidate's rows."""
        values = {row.key: value(row, metric) for row in table.rows}
        way: Way = "backward" if metric.name.startswith("Backward") else "forward"
        if metric.name.startswith(COMBINED):
            way = "step"
        return cls(metric.name, way, values, metric.better == "higher")

    def on_both_sides(self, key: Key, log_gain: float) -> tuple[float, float] | None:
        """Return candidate and incumbent of a case that gained so much, None without a value."""
        found = self.values.get(key)
        if found is None:
            return None
        gain = math.exp(log_gain)
        return found, found / gain if self.higher else found * gain


def judge(
    comparison: Comparison,
    results: Sequence[CaseResult],
    metrics: Sequence[PairedMetric],
    policy: Policy,
    known: Known,
    *,
    gate: Gate = "improve",
    core: tuple[str, ...] | None = None,
    classes: Classes = NO_CLASSES,
    extra_benefit: str | None = None,
    reached_only: bool = False,
) -> PairedResult:
    """Measure replicas until a look gives a verdict; `core` are the cases that the gate guards.

    `known` is what was measured before of the scatter, `extra_benefit` what the author claims for a
    version that is equal in speed. With `reached_only` cases that the change does not reach are not
    in it. A version that would be kept is held against the incumbent alone first. Raises
    NotComparable when the versions cannot be measured together, Caught for a candidate that was.
    """
    replicas: list[dict[str, CaseQuads]] = []
    more: list[dict[str, CaseQuads]] = []
    same: dict[str, Same] = {}
    found: list[PairedEvidence] = []

    def look_at(
        look: int, unsettled: frozenset[str]
    ) -> tuple[list[PairedEvidence], list[PairedEvidence]]:
        missing = look - len(replicas) - len(more)
        if unsettled:
            found_there = comparison.replicas(missing, unsettled)
            more.extend({nodeid: there[nodeid] for nodeid in unsettled} for there in found_there)
        else:
            replicas.extend(comparison.replicas(missing))
        flags = _flags(comparison, results, replicas)
        same.update({name: q.same or "source" for name, q in replicas[0].items() if q.is_same})
        reached = [result for result in results if result.nodeid not in same]
        judged = reached if reached_only and reached else results
        found[:] = [
            PairedEvidence(
                metric.name,
                cases_of(metric, judged, [*replicas, *more], core),
                gate,
                flags,
                classes,
                known.noise(metric.way, replicas[0]),
                "higher" if metric.higher else "lower",
            )
            for metric in metrics
        ]
        return found, _uneven(found, metrics, replicas)

    verdict = decide_by_looks(look_at, policy, extra_benefit)
    alone, witness = Company(), Witness()
    if verdict.decision.keeps and len(same) < len(results):
        if hidden := [*hidden_time([*replicas, *more])]:
            raise Caught(hidden)
        claims_gain = bool(verdict.aggregate and (verdict.aggregate.low_pct or 0) > 0)
        loss_pct = None if claims_gain and gate == "improve" else policy.shape_gate_pct
        witness = look_outside([*replicas, *more], lambda: comparison.replicas(1), loss_pct)
        if witness.contradiction:
            raise Caught([witness.contradiction])
        if comparison.written:
            raise Caught([_written(comparison.written)])
        gain = verdict.aggregate.change_pct if verdict.aggregate else None
        beside_alone: list[Mapping[str, CaseQuads]] = []

        def in_company() -> Mapping[str, CaseQuads]:
            beside_alone.append(comparison.in_company())
            return beside_alone[-1]

        alone = look_alone(in_company, gain)
        if hidden := [*hidden_time(beside_alone)]:
            raise Caught(hidden)
        if alone.finding and alone.finding.rejects:
            raise Caught([alone.finding])
        told = [str(alone.finding)] if alone.finding else []
        update: dict[str, object] = {"flags": [*verdict.flags, *told]}
        if doubt := witness.doubt or alone.doubt:
            update |= {
                "decision": Decision.INCONCLUSIVE,
                "reason": f"{verdict.reason}; but {doubt}",
                "next_step": "measure it again on a quieter machine",
            }
        verdict = verdict.model_copy(update=update)
    gains = {
        name: math.exp(statistics.fmean(replica[name].ratio("forward") for replica in replicas))
        for name in replicas[0]
    }
    engines = sorted({quads.engine for quads in replicas[0].values() if not quads.is_same})
    every = [*replicas, *more]
    return PairedResult(
        verdict.model_copy(
            update={
                "engine": ", ".join(engines) or None,
                "shapes": _with_memory(verdict.shapes, found[0].cases, every),
                "kernels": _kernels(results, replicas),
                "replicas": Replicas(processes=len(every)),
            }
        ),
        _pairs_csv(results, every),
        {
            "compared_in": comparison.how,
            "why_two_processes": comparison.why_two,
            "why_not_forked": comparison.why_fresh,
            "replicas": len(replicas),
            "incumbent_alone": alone.to_document(),
            "outside_clock": witness.to_document(),
            "open_alone": {nodeid: len(more) for nodeid in (more[0] if more else ())},
            "measured": measured_under(results, replicas),
            "device_seconds": round(comparison.device_seconds, 3),
            "priors": {evidence.metric: _priors(evidence) for evidence in found},
            **Scatter.of(replicas).model_dump(),
        },
        same,
        tuple(results),
        tuple(replicas),
        tuple(comparison.tried),
        tuple(findings_nearby(comparison.tried, comparison.died_nearby, gains)),
    )


def _with_memory(
    shapes: Sequence[Shape],
    cases: Sequence[PairedCase],
    replicas: Sequence[Mapping[str, CaseQuads]],
) -> list[Shape]:
    """Return the cases with what a call takes, of those where it was measured of both versions."""
    labels = {case.name: case.label for case in cases}
    known = {
        labels[nodeid]: Memory(
            candidate_bytes=case.memory[CANDIDATE], incumbent_bytes=case.memory[INCUMBENT]
        )
        for replica in replicas
        for nodeid, case in replica.items()
        if nodeid in labels and {CANDIDATE, INCUMBENT} <= case.memory.keys()
    }
    return [shape.model_copy(update={"memory": known.get(shape.label)}) for shape in shapes]


def _written(path: str) -> Finding:
    return Finding(
        "harness-written",
        f"{path} was written in the tree of the current best while it was compared",
        advice="a kernel and its build write to their own tree",
    )


def _kernels(
    results: Sequence[CaseResult], replicas: Sequence[Mapping[str, CaseQuads]]
) -> list[KernelChange]:
    """Return what changed in the machine code, each once and with the first case it is seen in."""
    found: dict[str, KernelChange] = {}
    for result in results:
        for replica in replicas:
            later = replica[result.nodeid].kernels
            for kernel in later.result() if later else ():
                named = kernel.model_copy(update={"case": result.label})
                found.setdefault(kernel.model_dump_json(), named)
    return list(found.values())


def cases_of(
    metric: PairedMetric,
    results: Sequence[CaseResult],
    replicas: Sequence[Mapping[str, CaseQuads]],
    core: tuple[str, ...] | None,
    kind: Kind = CANDIDATE,
) -> tuple[PairedCase, ...]:
    """Return the cases as the rule sees them, of a comparison or of one candidate in a race."""
    labels = Counter(result.label for result in results)

    def ratios(nodeid: str, kind: Kind = kind) -> tuple[float, ...]:
        return tuple(r[nodeid].ratio(metric.way, kind) for r in replicas if nodeid in r)

    return tuple(
        PairedCase(
            name=result.nodeid,
            label=result.label if labels[result.label] == 1 else result.nodeid,
            dims=result.dims,
            ratios=ratios(result.nodeid),
            placebo=ratios(result.nodeid, "placebo"),
            device=replicas[0][result.nodeid].device or None,
            core=core is None or result.nodeid in core,
            same=replicas[0][result.nodeid].same,
            values=metric.on_both_sides(result.key, statistics.fmean(ratios(result.nodeid))),
        )
        for result in results
    )


def _uneven(
    found: Sequence[PairedEvidence],
    metrics: Sequence[PairedMetric],
    replicas: Sequence[Mapping[str, CaseQuads]],
) -> list[PairedEvidence]:
    """Return the same evidence of the cases that have group sizes, with these drawn anew."""
    ids = {nodeid for nodeid, quads in replicas[0].items() if "uneven" in quads.quads}

    def case(known: PairedCase, way: str) -> PairedCase:
        ratios = tuple(replica[known.name].ratio(way, "uneven") for replica in replicas)
        return replace(known, ratios=ratios, placebo=(), values=None)

    return [
        replace(item, cases=tuple(case(c, metric.way) for c in item.cases if c.name in ids))
        for item, metric in zip(found, metrics, strict=True)
        if ids
    ]


def _flags(
    comparison: Comparison,
    results: Sequence[CaseResult],
    replicas: Sequence[Mapping[str, CaseQuads]],
) -> tuple[str, ...]:
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
        around = [replica[result.nodeid].conditions for replica in replicas]
        flagged = [conditions for conditions in around if conditions and conditions.flags]
        flags[result.label] = flagged[-1].flags if flagged else ()
        why = {k: v for replica in replicas for k, v in replica[result.nodeid].not_captured.items()}
        found += [f"{result.label}: {by_events(why)}"] if why else []
        inside = {replica[result.nodeid].judged_inside for replica in replicas} - {""}
        found += [f"{result.label}: {_INSIDE}: {why}" for why in sorted(inside)]
    return (*found, *by_kind(flags))


def _priors(evidence: PairedEvidence) -> dict[str, object]:
    return {
        case.name: {
            "sd_pct": percent(math.sqrt(prior.variance)),
            "freedom": prior.freedom,
            "source": prior.source,
        }
        for case in evidence.cases
        if (prior := evidence.prior([case]))
    }


def _pairs_csv(results: Sequence[CaseResult], replicas: Sequence[Mapping[str, CaseQuads]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PAIR_COLUMNS)
    for number, replica in enumerate(replicas, start=1):
        for result in (result for result in results if result.nodeid in replica):
            quads = replica[result.nodeid]
            clock = quads.conditions and quads.conditions.after.sm_mhz
            clocks = "" if clock is None else f"{clock:.0f}"
            for kind, found in quads.quads.items():
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
            times = {arm: time.of("step") for arm, time in (left, right)}
            old = next(arm for arm in times if arm in (INCUMBENT, UNEVEN[INCUMBENT]))
            new = next(arm for arm in times if arm != old)
            yield number, "BA" if left[0] == old else "AB", times[new], times[old]
