"""From cases that passed their checks to a paired verdict: looks and evidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from pytest_kopt.campaign.ledger import PairedChange
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.case_verdict import FirstCall, Memory, Same
from pytest_kopt.decide.conclusion import NO_FACTS, VersionFacts
from pytest_kopt.decide.inference import LOOKS, percent
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.paired_evidence import PairedCase, PairedEvidence
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, KernelChange, Replicas, Verdict
from pytest_kopt.devices.states import BOOST
from pytest_kopt.honesty.finding import Finding, names_of
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.options.settings import Gate
from pytest_kopt.paired.blocks import AT_LENGTH
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.credit import Credit, examine
from pytest_kopt.paired.nearby import findings_nearby
from pytest_kopt.paired.noise import NoiseHistory, Scatter
from pytest_kopt.paired.samples import (
    CaseQuads,
    Kind,
    evidence_of,
    flags_of,
    measured_under,
    pairs_csv,
)
from pytest_kopt.schema.metrics import Metric, Way, value
from pytest_kopt.schema.table import NO_CLASSES, Classes, Key, Table


class _Costs(TypedDict, total=False):
    memory: Memory
    first_call_ms: FirstCall


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

    @property
    def refusing(self) -> list[Finding]:
        """The findings at shapes nearby that refuse the version; nobody repairs a slower one."""
        is_slower = self.verdict.decision is Decision.ROLLED_BACK
        return [] if is_slower else [finding for finding in self.nearby if finding.rejects]

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
        return cls(metric.name, metric.way, values, metric.better == "higher")

    def on_both_sides(self, key: Key, log_gain: float) -> tuple[float, float] | None:
        """Return candidate and incumbent of a case that gained so much, None without a value."""
        found = self.values.get(key)
        if found is None:
            return None
        gain = math.exp(log_gain)
        return found, found / gain if self.higher else found * gain


@dataclass(frozen=True, slots=True)
class Criteria:
    """By what a comparison is decided.

    The `metrics` decide by the rules of the `policy`; `history` is what was measured before of the
    noise. `core` are the cases that the gate guards (None: all), `classes` those of the campaign,
    `facts` what is known of the version before it is timed. With `reached_only`
    cases that the change does not reach are not in the verdict. The final comparison measures the
    other operating point whatever it decides, and at length.
    """

    metrics: Sequence[PairedMetric]
    policy: Policy
    history: NoiseHistory
    gate: Gate = "improve"
    core: tuple[str, ...] | None = None
    classes: Classes = NO_CLASSES
    facts: VersionFacts = NO_FACTS
    reached_only: bool = False
    is_final: bool = False


def judge(
    comparison: Comparison, results: Sequence[CaseResult], criteria: Criteria
) -> PairedResult:
    """Measure replicas of the cases until a look gives a verdict.

    A version that would be kept is examined first: inputs near the cases, whether its gain is
    credited, and the other operating point. Raises NotComparable when the versions cannot be
    measured together, Caught for a candidate that was.
    """
    measured = _Measured(comparison, results, criteria)
    verdict = None
    for look in LOOKS:
        verdict = measured.verdict(look)
        if verdict is not None:
            break
    # The last look always decides.
    assert verdict is not None
    credit, is_compared = Credit(), len(measured.same) < len(results)
    if verdict.decision.keeps and not criteria.is_final:
        comparison.finish_nearby()
    if verdict.decision.keeps and is_compared:
        credit = _credit(comparison, measured.replicas, verdict, criteria)
        measured.take_off(credit.excess)
    nearby, facts = measured.nearby(), criteria.facts
    if verdict.decision.keeps:
        narrower = names_of(finding for finding in nearby if finding.repairs)
        facts = replace(facts, doubt=credit.doubt, narrower=narrower)
        verdict = measured.last_verdict(look, facts)
    if is_compared and comparison.asks_more and (verdict.decision.keeps or criteria.is_final):
        measured.load()
        verdict = measured.last_verdict(look, facts)
    return measured.result(verdict, credit, nearby)


def _credit(
    comparison: Comparison,
    replicas: Sequence[Mapping[str, CaseQuads]],
    verdict: Verdict,
    criteria: Criteria,
) -> Credit:
    """Examine a version that would be kept: for a gain, or for having lost no more than a limit."""
    total = verdict.aggregate
    is_gain = bool(total and (total.low_pct or 0) > 0) and criteria.gate == "improve"
    loss_pct = None if is_gain else criteria.policy.shape_gate_pct
    return examine(comparison, replicas, total.change_pct if total else None, loss_pct)


class _Measured:
    """The evidence that a comparison has measured so far, and what the rule sees of it."""

    def __init__(
        self, comparison: Comparison, results: Sequence[CaseResult], criteria: Criteria
    ) -> None:
        self._comparison = comparison
        self._results = results
        self._criteria = criteria
        self.replicas: list[dict[str, CaseQuads]] = []
        self._evidence: list[PairedEvidence] = []
        self.same: dict[str, Same] = {}

    def take_off(self, excess: float) -> None:
        """Credit so much less of the gain in each case, as a log-ratio."""
        for replica in self.replicas:
            for case in replica.values():
                case.excess = excess

    def load(self) -> None:
        """Measure at the sustained operating point each case whose clock may fall under load.

        The replicates have measured both points of a case for which that point decides.
        """
        turns = AT_LENGTH if self._criteria.is_final else 1
        for replica in self.replicas[:turns]:
            due = [
                name
                for name, case in self.replicas[0].items()
                # Where no clock is known, none is known to fall.
                if case.operating_point == BOOST and case.top_mhz and not case.is_steady
            ]
            for name, case in self._comparison.under_load(due, turns).items():
                replica[name].sustained, replica[name].is_steady = case.sustained, case.is_steady

    def verdict(self, look: int) -> Verdict | None:
        """Return the verdict on up to `look` replicates, None where more are needed."""
        criteria = self._criteria
        return decide(self._look(look), criteria.policy, criteria.facts)

    def last_verdict(self, look: int, facts: VersionFacts) -> Verdict:
        """Return the verdict by all that is known: no more replicates are measured."""
        wholes = [replace(whole, is_last=True) for whole in self._look(look)]
        verdict = decide(wholes, self._criteria.policy, facts)
        assert verdict is not None
        return verdict

    def nearby(self) -> tuple[Finding, ...]:
        """Return what trials near the declared shapes say of the candidate."""
        comparison, replicas = self._comparison, self.replicas
        gains = {
            name: math.exp(statistics.fmean(replica[name].ratio("forward") for replica in replicas))
            for name in replicas[0]
        }
        found = findings_nearby(comparison.tried, comparison.death_nearby, gains)
        return (*found, *comparison.caught)

    def _look(self, look: int) -> list[PairedEvidence]:
        """Measure up to `look` replicates, and return the cases by each metric, also under skew."""
        self.replicas += self._comparison.replicas(look - len(self.replicas))
        first, criteria = self.replicas[0], self._criteria
        self.same |= {name: q.same or "source" for name, q in first.items() if q.is_same}
        reached = [result for result in self._results if result.nodeid not in self.same]
        judged = reached if criteria.reached_only and reached else self._results
        flags = [*self._comparison.flags, *flags_of(self._results, self.replicas)]
        self._evidence = [
            PairedEvidence(
                metric.name,
                cases_of(metric, judged, self.replicas, criteria.core),
                criteria.gate,
                tuple(flags),
                criteria.classes,
                criteria.history.noise(metric.way, first),
                "higher" if metric.higher else "lower",
            )
            for metric in criteria.metrics
        ]
        return [*self._evidence, *_uneven(self._evidence, criteria.metrics, self.replicas)]

    def result(self, verdict: Verdict, credit: Credit, nearby: tuple[Finding, ...]) -> PairedResult:
        comparison, results, replicas = self._comparison, self._results, self.replicas
        engines = sorted({quads.engine for quads in replicas[0].values() if not quads.is_same})
        update = {
            "engine": ", ".join(engines) or None,
            "flags": [*verdict.flags, *credit.flags],
            "kernels": _kernels(results, replicas),
            "replicas": Replicas(processes=len(replicas)),
        }
        return PairedResult(
            verdict=verdict.model_copy(update=update),
            pairs_csv=pairs_csv(results, replicas),
            session=self._session(credit),
            same=self.same,
            results=tuple(results),
            replicas=tuple(replicas),
            tried=tuple(comparison.tried),
            nearby=nearby,
        )

    def _session(self, credit: Credit) -> dict[str, object]:
        """Return what the session's record says of the comparison."""
        comparison = self._comparison
        return {
            "compared_in": comparison.how,
            "why_two_processes": comparison.why_two,
            "why_not_forked": comparison.why_fresh,
            "replicas": len(self.replicas),
            "autotuned": comparison.choices,
            **credit.to_document(),
            "measured": measured_under(self._results, self.replicas),
            "device_seconds": round(comparison.device_seconds, 3),
            "priors": {
                evidence.metric: {
                    case.name: {
                        "sd_pct": percent(math.sqrt(prior.variance)),
                        "freedom": prior.freedom,
                        "source": prior.source,
                    }
                    for case in evidence.cases
                    if (prior := evidence.prior([case]))
                }
                for evidence in self._evidence
            },
            **Scatter.of(self.replicas).model_dump(),
        }


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
    measured = {result.nodeid: [r[result.nodeid] for r in replicas] for result in results}

    def ratios(nodeid: str, kind: Kind = kind) -> tuple[float, ...]:
        return tuple(case.ratio(metric.way, kind) for case in measured[nodeid])

    return tuple(
        PairedCase(
            name=result.nodeid,
            label=result.label,
            dims=result.dims,
            ratios=ratios(result.nodeid),
            placebo=ratios(result.nodeid, "placebo"),
            device=replicas[0][result.nodeid].device or None,
            core=core is None or result.nodeid in core,
            same=replicas[0][result.nodeid].same,
            values=metric.on_both_sides(result.key, statistics.fmean(ratios(result.nodeid))),
            incumbent_ms=_incumbent_ms(result, metric.way, replicas),
            limit_pct=result.evidence.limit_pct,
            limit_us=result.evidence.limit_us,
            weight=result.weight,
            points=evidence_of(measured[result.nodeid], metric.way) if kind == CANDIDATE else None,
            cache=result.evidence.cache,
            **_costs(measured[result.nodeid]),
        )
        for result in results
    )


def _costs(measured: Sequence[CaseQuads]) -> _Costs:
    """Return what a call of both versions takes, which one of the replicas measures."""
    both = (case for case in measured if {CANDIDATE, INCUMBENT} <= case.memory.keys())
    if (case := next(both, None)) is None:
        return {}
    candidate, incumbent = (case.memory[arm] for arm in (CANDIDATE, INCUMBENT))
    return {
        "memory": Memory(candidate_bytes=candidate, incumbent_bytes=incumbent),
        "first_call_ms": FirstCall(**case.first_call_ms),
    }


def _incumbent_ms(
    result: CaseResult, way: Way, replicas: Sequence[Mapping[str, CaseQuads]]
) -> float | None:
    """Return the time of the incumbent's call, of one that is the same as in its row."""
    times = [ms for r in replicas if (ms := r[result.nodeid].incumbent_ms(way))]
    if times:
        return statistics.fmean(times)
    ways = ("forward", "backward") if way == "step" else (way,)
    medians = [
        statistics.median(samples) for w in ways if (samples := result.evidence.samples_ms(w))
    ]
    return math.fsum(medians) or None


def _uneven(
    declared: Sequence[PairedEvidence],
    metrics: Sequence[PairedMetric],
    replicas: Sequence[Mapping[str, CaseQuads]],
) -> list[PairedEvidence]:
    """Return the same evidence of the cases that have group sizes, with other draws of these."""
    ids = {nodeid for nodeid, quads in replicas[0].items() if "uneven" in quads.quads}
    uneven = []
    for evidence, metric in zip(declared, metrics, strict=True) if ids else ():
        cases = []
        for case in evidence.cases:
            if case.name in ids:
                ratios = tuple(r[case.name].ratio(metric.way, "uneven") for r in replicas)
                cases.append(replace(case, ratios=ratios, values=None))
        uneven.append(replace(evidence, cases=tuple(cases), under_skew=True))
    return uneven
