"""From cases that passed their checks to a paired verdict: looks and evidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_kopt.campaign.ledger import PairedChange
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, PLACEBO
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.case_verdict import FirstCall, Memory, Same
from pytest_kopt.decide.conclusion import NO_FACTS, VersionFacts
from pytest_kopt.decide.inference import LOOKS, percent
from pytest_kopt.decide.known_noise import Noise
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.series import Series, SeriesTable, prior_of
from pytest_kopt.decide.verdict import Decision, KernelChange, Replicas, Verdict
from pytest_kopt.devices.machine import busy_pct, cpu_ticks
from pytest_kopt.devices.states import BOOST
from pytest_kopt.honesty.finding import Finding, names_of
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.options.settings import Gate
from pytest_kopt.paired.blocks import AT_LENGTH
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.credit import UNEXAMINED, examine
from pytest_kopt.paired.noise import NoiseHistory, Scatter
from pytest_kopt.paired.samples import (
    CaseQuads,
    Kind,
    Replicates,
    at_other_point,
    best_ms,
    evidence_of,
    flags_of,
    measured_under,
    pairs_csv,
)
from pytest_kopt.schema.metrics import Metric, value
from pytest_kopt.schema.table import NO_CLASSES, Classes, Key, Row


@dataclass(frozen=True, slots=True)
class PairedResult:
    """A paired verdict with the evidence behind it.

    `results` are the cases, `replicas` what was measured of each; `tried` and `nearby` what the
    versions did at shapes near the declared ones, and what that says.
    """

    verdict: Verdict
    pairs_csv: str
    session: dict[str, object]
    results: tuple[CaseResult, ...]
    replicas: tuple[dict[str, CaseQuads], ...]
    tried: tuple[Tried, ...]
    nearby: tuple[Finding, ...]

    @property
    def same(self) -> Mapping[str, Same]:
        """How it is known of a case that both versions are the same, by node id."""
        return {n: case.same for n, case in self.replicas[0].items() if case.same}

    @property
    def has_same_machine_code(self) -> bool:
        """Whether the device does the same for both versions in every case."""
        return len(self.same) == len(self.results) and "machine" in self.same.values()

    @property
    def refusing(self) -> list[Finding]:
        """The findings at shapes nearby that refuse the version; nobody repairs a slower one."""
        is_slower = self.verdict.decision is Decision.ROLLED_BACK
        return [] if is_slower else [finding for finding in self.nearby if finding.rejects]

    def change(self) -> PairedChange:
        """Return the gain over all cases."""
        names = [result.nodeid for result in self.results]

        def mean(way: str) -> float:
            ratios = [replica[name].ratio(way) for replica in self.replicas for name in names]
            return percent(statistics.fmean(ratios))

        timed = (case for name in names if not (case := self.replicas[0][name]).same)
        first = next(timed, None)
        return PairedChange(
            step_pct=mean("step"),
            forward_pct=mean("forward"),
            backward_pct=mean("backward") if first and first.has_backward else None,
        )


@dataclass(frozen=True, slots=True)
class Criteria:
    """By what a comparison is decided.

    The `metrics` decide by the rules of the `policy`; `history` is what was measured before of the
    noise. `rows` are the candidate's, for display. `core` are the cases that the gate guards (None:
    all), `classes` those of the campaign, `facts` what is known of the version before it is timed.
    With `reached_only` cases that the change does not reach are not in the verdict. The final
    comparison measures the other operating point whatever it decides, and at length. Without
    `examines` the rule alone decides, as another comparison follows if it keeps the version.
    `doubt_of_best` says what the candidate lacks next to the baseline. It takes the current best's
    milliseconds a call by node id, and the gain over it in all cases, a log-ratio. The final
    comparison, which is with the baseline, does not ask it.
    """

    metrics: Sequence[Metric]
    policy: Policy
    history: NoiseHistory
    rows: Mapping[Key, Row] = field(default_factory=dict)
    gate: Gate = "improve"
    core: tuple[str, ...] | None = None
    classes: Classes = NO_CLASSES
    facts: VersionFacts = NO_FACTS
    reached_only: bool = False
    is_final: bool = False
    examines: bool = True
    doubt_of_best: Callable[[Mapping[str, float], float], str] | None = None


def compare(
    comparison: Comparison, results: Sequence[CaseResult], criteria: Criteria
) -> PairedResult:
    """Measure replicas of the cases until a look gives a verdict.

    A version that would be kept is examined first: inputs near the cases, whether its gain is
    credited, and the other operating point. Raises NotComparable when the versions cannot be
    measured together, Caught for a candidate that was.
    """
    replicas: list[dict[str, CaseQuads]] = []

    def decided(facts: VersionFacts, *, is_last: bool = False) -> Verdict | None:
        flags = (*comparison.flags, *flags_of(results, replicas))
        series = tuple(_all_series(results, replicas, criteria))
        table = SeriesTable(series, criteria.gate, flags, criteria.classes, is_last)
        return decide(table, criteria.policy, facts)

    verdict, facts, credit, begin = None, criteria.facts, UNEXAMINED, cpu_ticks()
    for look in LOOKS:
        replicas += comparison.replicas(look - len(replicas))
        if verdict := decided(facts):
            break
    # The last look always decides.
    assert verdict is not None
    is_compared = not all(case.same for case in replicas[0].values())
    is_kept = verdict.decision.keeps and criteria.examines
    if is_kept and not criteria.is_final:
        comparison.try_nearby()
    if is_kept and is_compared:
        total = verdict.aggregate
        assert total is not None
        is_gain = (total.low_pct or 0) > 0 and criteria.gate == "improve"
        loss_pct = None if is_gain else criteria.policy.shape_gate_pct
        credit = examine(comparison, replicas, results, total.change_pct, loss_pct)
        comparison.judge_postponed()
        for case in (case for replica in replicas for case in replica.values()):
            case.excess = credit.excess
    gains = {
        name: math.exp(statistics.fmean(replica[name].ratio("forward") for replica in replicas))
        for name in replicas[0]
    }
    nearby = tuple(comparison.findings_nearby(gains))
    if is_kept:
        narrower = names_of(finding for finding in nearby if finding.repairs)
        gain = statistics.fmean(q.ratio("step") for each in replicas for q in each.values())
        doubt = credit.doubt or comparison.untried
        if criteria.doubt_of_best and not (doubt or criteria.is_final):
            doubt = criteria.doubt_of_best(best_ms(replicas, "step"), gain)
        facts = replace(facts, doubt=doubt, narrower=narrower)
        verdict = decided(facts, is_last=True) or verdict
        is_kept = verdict.decision.keeps
    if is_compared and comparison.asks_more and (is_kept or criteria.is_final):
        _load(comparison, replicas, AT_LENGTH if criteria.is_final else 1)
        verdict = decided(facts, is_last=True) or verdict
    engines = sorted({case.engine for case in replicas[0].values() if not case.same})
    busy = busy_pct(begin, cpu_ticks())
    return PairedResult(
        verdict=verdict.saying(
            engine=", ".join(engines) or None,
            flags=[*verdict.flags, *credit.flags],
            kernels=_kernels(results, replicas),
            replicas=Replicas(processes=len(replicas), host_busy_pct=busy),
        ),
        pairs_csv=pairs_csv(results, replicas),
        session={
            **comparison.to_document(),
            "replicas": len(replicas),
            **(credit.document or {}),
            "measured": measured_under(results, replicas),
            "priors": _priors(_all_series(results, replicas, criteria)),
            **Scatter.of(replicas).model_dump(),
        },
        results=tuple(results),
        replicas=tuple(replicas),
        tried=tuple(comparison.tried),
        nearby=nearby,
    )


def _load(comparison: Comparison, replicas: Replicates, turns: int) -> None:
    """Measure at the sustained operating point each case whose clock may fall under load.

    The replicates have measured both points of a case for which that point decides.
    """
    for replica in replicas[:turns]:
        due = [
            name
            for name, case in replicas[0].items()
            # Where no clock is known, none is known to fall.
            if case.operating_point == BOOST and case.top_mhz and not case.is_steady
        ]
        for name, case in comparison.under_load(due, turns).items():
            replica[name].sustained, replica[name].is_steady = case.sustained, case.is_steady


def _priors(series: Iterable[Series]) -> dict[str, dict[str, object]]:
    """Return what earlier sessions say of each declared series, by metric and case."""
    found: dict[str, dict[str, object]] = {}
    for case in series:
        of_metric = found.setdefault(case.metric.name, {})
        if case.kind == "declared" and (prior := prior_of([case])):
            of_metric[case.name] = {
                "sd_pct": percent(math.sqrt(prior.variance)),
                "freedom": prior.freedom,
                "source": prior.source,
            }
    return found


def _kernels(results: Sequence[CaseResult], replicas: Replicates) -> list[KernelChange]:
    """Return what changed in the machine code, each once and with the first case it is seen in."""
    found: dict[str, KernelChange] = {}
    for result in results:
        for replica in replicas:
            later = replica[result.nodeid].kernels
            for kernel in later.result() if later else ():
                named = kernel.model_copy(update={"case": result.label})
                found.setdefault(kernel.model_dump_json(), named)
    return list(found.values())


def _all_series(
    results: Sequence[CaseResult], replicas: Replicates, criteria: Criteria
) -> Iterator[Series]:
    """Yield the series of all metrics, of the cases that are in the verdict."""
    reached = [result for result in results if not replicas[0][result.nodeid].same]
    judged = reached if criteria.reached_only and reached else results
    for metric in criteria.metrics:
        yield from series_of(metric, judged, replicas, criteria)


def series_of(
    metric: Metric,
    results: Sequence[CaseResult],
    replicas: Replicates,
    criteria: Criteria,
    kind: Kind = CANDIDATE,
) -> Iterator[Series]:
    """Yield the series of a comparison by a metric, or of one candidate in a race."""
    core, noise = criteria.core, criteria.history.noise(metric.way, replicas[0])
    beside = best_ms(replicas, metric.way)
    for result in results:
        measured = [replica[result.nodeid] for replica in replicas]
        new, copy = (
            tuple(case.ratio(metric.way, of) for case in measured) for of in (kind, PLACEBO)
        )
        # One of the replicas measures what calls take.
        took = (case for case in measured if {CANDIDATE, INCUMBENT} <= case.memory.keys())
        both = next(took, None)
        declared = Series(
            name=result.nodeid,
            label=result.label,
            dims=result.dims,
            new=new,
            copy=copy,
            metric=metric,
            noise=noise,
            device=measured[0].device or None,
            core=core is None or result.nodeid in core,
            same=measured[0].same,
            values=_values(criteria.rows.get(result.key), metric, statistics.fmean(new)),
            incumbent_ms=beside.get(result.nodeid, result.evidence.call_ms(metric.way)),
            limit_pct=result.evidence.limit_pct,
            limit_us=result.evidence.limit_us,
            weight=result.weight,
            points=evidence_of(measured) if kind == CANDIDATE else None,
            cache=result.evidence.cache,
            memory=Memory(**{f"{arm}_bytes": both.memory[arm] for arm in (CANDIDATE, INCUMBENT)})
            if both
            else None,
            first_call_ms=FirstCall(**both.first_call_ms) if both else None,
        )
        yield declared
        if kind == CANDIDATE and "uneven" in measured[0].quads:
            uneven = tuple(case.ratio(metric.way, "uneven") for case in measured)
            yield replace(declared, new=uneven, values=None, kind="under skew")
        if declared.points and (other := at_other_point(measured, metric.way)):
            new, copy, prior = other
            yield replace(declared, new=new, copy=copy, noise=Noise((), prior), kind="other point")


def _values(row: Row | None, metric: Metric, gain: float) -> tuple[float, float] | None:
    """Return candidate and incumbent of a case with this log-ratio, None without a value."""
    found = value(row, metric) if row else None
    if found is None:
        return None
    return found, found * math.exp(-gain if metric.better == "higher" else gain)
