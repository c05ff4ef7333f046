"""The stored rule: two tables of two sessions, a regression limit, re-measured small gains."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.classes import ClassStanding, measured_classes
from pytest_kopt.decide.conclusion import NO_FACTS, Answer, VersionFacts, settled
from pytest_kopt.decide.grounds import (
    ANOTHER,
    GO_ON,
    RESTORED,
    after_regression,
    by_ground,
    check_same_schema,
    checked_shape,
    incomplete,
    missing_rows,
    no_figure,
    wrong_rows,
)
from pytest_kopt.decide.policy import TOLERANCE_PCT, Limit, Policy
from pytest_kopt.decide.verdict import Aggregate, Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed, thousandths
from pytest_kopt.schema.metrics import (
    WEIGHTED_TIME,
    Metric,
    geomean,
    improvement,
    parse_primary,
    time_ms,
    value,
)
from pytest_kopt.schema.table import NO_CLASSES, Classes, Key, Row, Table

#: What a class has of the aggregate of its cases.
_FIGURES = {"candidate", "incumbent", "change_pct"}


@dataclass(frozen=True, slots=True)
class StoredEvidence:
    """Everything a stored verdict is made from.

    `remeasurements` are further tables of the candidate; `facts` are what else is known of it.
    `core` are the cases that the shape gate guards (None: all).
    With a target among the `classes` that class has to improve, not the aggregate. `limits` are the
    regression limits, in percent and in us, of cases that have their own and are guarded so;
    `weights` are those that are not 1.
    """

    candidate: Table
    incumbent: Table
    remeasurements: tuple[Table, ...] = ()
    primary: str | None = None
    failed_repairs: int = -1
    facts: VersionFacts = NO_FACTS
    devices: Mapping[Key, str] | None = None
    core: frozenset[Key] | None = None
    classes: Classes = NO_CLASSES
    limits: Mapping[Key, tuple[float | None, float | None]] = field(default_factory=dict)
    weights: Mapping[Key, float] = field(default_factory=dict)
    #: Whether a case has group sizes, with other draws of which a gain has to hold too.
    has_groups: bool = False

    def limit(self, row: Row, metric: Metric, policy: Policy) -> Limit | None:
        """Return the regression limit of the incumbent's row, None where nothing guards it."""
        is_core = self.core is None or row.key in self.core
        if not is_core and row.key not in self.limits:
            return None
        return policy.limit(*self.limits.get(row.key, (None, None)), time_ms(row, metric))


def decide_stored(evidence: StoredEvidence, policy: Policy) -> Verdict:
    """Compare two tables by the seeds' rule; BadInput where schema or case set drifted."""
    candidate, incumbent = evidence.candidate, evidence.incumbent
    tables = (candidate, *evidence.remeasurements)
    for row in incumbent.rows:
        if row.check != "PASS":
            raise BadInput(
                f"row {row.label!r} is {row.check}",
                where=incumbent.source or "incumbent",
                fix="name an incumbent whose rows all PASS",
            )
    for table in tables:
        check_same_schema(table, incumbent, where=table.source or "candidate")
    observed = [missing_rows(table, incumbent) for table in tables]
    observed += (wrong_rows(table, policy, evidence.failed_repairs) for table in tables)
    if gated := by_ground(observed, policy):
        return gated
    metrics = parse_primary(evidence.primary, incumbent, policy.directions)
    figures = (no_figure(table, metrics, policy, incumbent) for table in (*tables, incumbent))
    if gated := by_ground(figures, policy):
        return gated
    compared, *again = (
        [compare(table, evidence, metric, policy) for metric in metrics] for table in tables
    )
    verdict = _judge(evidence, policy, compared, again)
    if not (verdict.decision.keeps and evidence.has_groups):
        return verdict
    return incomplete(
        policy,
        "stored times do not show whether a grouped GEMM's gain holds under skew",
        "run it again with --kopt-compare paired, which times that too",
    )


def _judge(
    evidence: StoredEvidence,
    policy: Policy,
    compared: Sequence[Changes],
    again: Sequence[Sequence[Changes]],
) -> Verdict:
    labels = {row.key: row.label for row in evidence.incumbent.rows}
    lead = max(compared, key=lambda changes: changes.goal_pct)
    best, target = lead.goal_pct, lead.target
    goal = f"{lead.metric.speed} of {target!r}" if target else _speed(lead.total)
    is_by_weight = policy.decided_by == "weighted-time"
    repeats = [comparisons[compared.index(lead)].goal_pct for comparisons in again]
    guarded = {
        row.key: limit
        for row in evidence.incumbent.rows
        if (limit := evidence.limit(row, lead.metric, policy)) is not None
    }
    regressed = _regressed(compared, again, policy, guarded)
    worst_of = {row: min(c.by_case[row] for c in compared) for row in lead.by_case}
    slower = {row: change for row, change in worst_of.items() if change < -TOLERANCE_PCT}
    views = [
        (changes, ClassStanding.by_noise(view, policy))
        for i, changes in enumerate(compared)
        for view in _class_views(changes, [comparisons[i] for comparisons in again])
    ]
    lead_view = next(pair for pair in views if pair[0] is lead)
    lead, standing = next((pair for pair in views if pair[1].divergence), lead_view)

    of_classes = {
        name: total.model_dump(include=_FIGURES) | {"status": standing.status(name)}
        for name, total in lead.by_class.items()
    }

    def verdict(decision: Decision, reason: str, step: str) -> Verdict:
        return Verdict(
            **settled(Answer(decision, reason, step), evidence.facts)._asdict(),
            compare="stored",
            policy=policy.name,
            aggregate=lead.total,
            weighted_time=(lead.total if is_by_weight else lead.other) if len(labels) > 1 else None,
            secondary=[
                *([lead.other] if is_by_weight and lead.other else []),
                *(changes.total for changes in compared if changes is not lead),
            ],
            shapes=_shapes(evidence, policy, lead, regressed),
            classes=measured_classes(evidence.classes, evidence.incumbent, lead.metric, of_classes),
            target_class=target,
            remeasured_pct=repeats,
        )

    if standing.divergence:
        return verdict(Decision.SPLIT, standing.divergence, standing.dispatch)
    if regressed:
        key, change = min(regressed.items(), key=lambda loss: loss[1])
        return verdict(
            Decision.ROLLED_BACK,
            f"case {labels[key]!r} regressed: {changed(change)} "
            f"(regression limit {guarded[key]}) while the aggregate changed by "
            f"{changed(lead.total.change_pct)}",
            after_regression(
                some_gained=any(policy.exceeds(change, 0) for change in lead.by_case.values())
            ),
        )
    worst = min(compared, key=lambda changes: changes.goal_pct)
    if len(compared) > 1 and policy.below(worst.goal_pct, 0):
        return verdict(
            Decision.ROLLED_BACK,
            f"{_speed(worst.total)} fell: {changed(worst.goal_pct)}; of several primary metrics "
            "none may regress",
            "try another hypothesis, or judge by a combined metric",
        )
    if policy.below(best, 0):
        return verdict(
            Decision.ROLLED_BACK,
            f"{goal} fell: {changed(best)}",
            f"{RESTORED}; {ANOTHER}",
        )
    whole = min((changes.total for changes in compared), key=_pct)
    if target and policy.below(_pct(whole), -policy.chain_noise_pct):
        return verdict(
            Decision.ROLLED_BACK,
            f"{_speed(whole)} fell: {changed(whole.change_pct)} over all cases, more "
            f"than the {policy.chain_noise_pct:g} % that a chain of rounds allows",
            f"{RESTORED}; keep the change away from the other classes",
        )
    loss = next(filter(None, (standing.loss for _, standing in views)), "")
    if loss:
        return verdict(
            Decision.ROLLED_BACK, loss, f"leave that class on the old path, or {ANOTHER}"
        )
    if not policy.exceeds(best, 0):
        if evidence.facts.extra_benefit.strip():
            return verdict(
                Decision.ACCEPTED_WITH_NOTE,
                "equal in speed, kept for its extra benefit (stated, not measured): "
                f"{evidence.facts.extra_benefit}",
                GO_ON,
            )
        return verdict(
            Decision.ROLLED_BACK,
            f"{goal} is unchanged and no extra benefit is stated",
            "state the benefit in the notes (extra_benefit) or try another hypothesis",
        )
    if not policy.exceeds(best, policy.minimum_gain_pct):
        return verdict(
            Decision.ROLLED_BACK,
            f"a gain of {changed(best)} does not exceed the policy's minimum of "
            f"{policy.minimum_gain_pct:g} %",
            ANOTHER,
        )
    if policy.below(best, policy.remeasure.below_pct):
        rule = policy.remeasure
        if len(repeats) < rule.times:
            return verdict(
                Decision.INCOMPLETE,
                f"a gain of {changed(best)} lies inside the noise band ({rule.below_pct:g} %): "
                f"{len(repeats)} of {rule.times} re-measurements are there",
                f"measure the candidate {rule.times} times more",
            )
        confirmed, why = _confirmed(repeats, policy)
        if not confirmed:
            return verdict(
                Decision.INCONCLUSIVE,
                f"a gain of {changed(best)} was not confirmed: {why}",
                "the change is too small to measure: try one with a larger effect",
            )
        confirmation = f", confirmed ({why})"
    else:
        confirmation = ""
    gain = f"{goal} improved: {changed(best)}{confirmation}"
    fallen = next((changes.fallen for changes in compared if changes.fallen), "")
    gain += f"; but {fallen}" if fallen else ""
    if slower:
        key, change = min(slower.items(), key=lambda loss: loss[1])
        return verdict(
            Decision.ACCEPTED_WITH_NOTE,
            f"{gain}; {len(slower)} case(s) slower by less than the regression limit, the worst "
            f"{labels[key]!r}: {changed(change)}",
            f"{GO_ON}; look at the slower case",
        )
    decision = Decision.ACCEPTED_WITH_NOTE if fallen else Decision.ACCEPTED
    return verdict(decision, gain, GO_ON)


def _regressed(
    compared: Sequence[Changes],
    again: Sequence[Sequence[Changes]],
    policy: Policy,
    limits: Mapping[Key, Limit],
) -> dict[Key, float]:
    """Cases at or beyond their limit in the run itself, or on average in its repetitions."""
    runs = [changes.by_case for changes in compared]
    for i, changes in enumerate(compared if again else ()):
        averages = {key: [run[i].by_case[key] for run in again] for key in changes.by_case}
        runs.append({key: statistics.fmean(found) for key, found in averages.items()})
    losses: dict[Key, float] = {}
    for key, limit in limits.items():
        worst = min(run[key] for run in runs)
        if policy.reaches(-worst, limit.speed_pct):
            losses[key] = worst
    return losses


def _confirmed(repeats: Sequence[float], policy: Policy) -> tuple[bool, str]:
    rule = policy.remeasure
    mean = statistics.fmean(repeats)
    if rule.rule == "same-direction":
        holds = all(policy.exceeds(change, 0) for change in repeats)
        return holds, f"{sum(change > 0 for change in repeats)} of {len(repeats)} repeats improve"
    spread = statistics.stdev(repeats) if len(repeats) > 1 else 0.0
    limit = rule.spread_ratio * mean
    holds = policy.exceeds(mean, rule.mean_pct) and spread < limit - 1e-9
    return holds, (
        f"mean {changed(mean)} (asked > {rule.mean_pct:g} %), standard deviation "
        f"{thousandths(spread)} (asked < {thousandths(limit)}) over {len(repeats)} re-measurements"
    )


def _shapes(
    evidence: StoredEvidence, policy: Policy, lead: Changes, regressed: Mapping[Key, float]
) -> list[Shape]:
    def shape(row: Row) -> Shape:
        change = lead.by_case[row.key]
        gained = "improved" if policy.reaches(change, policy.noise_pct) else "unchanged"
        status = "regressed" if row.key in regressed else gained
        device = (evidence.devices or {}).get(row.key)
        return checked_shape(row, status=status, change_pct=change, device=device)

    return [*map(shape, evidence.candidate.rows)]


def remeasurements_needed(verdict: Verdict, policy: Policy) -> int:
    """Return how often the candidate has to be measured again before this verdict can be final."""
    waiting = verdict.decision is Decision.INCOMPLETE and verdict.aggregate is not None
    return policy.remeasure.times - len(verdict.remeasured_pct) if waiting else 0


@dataclass(frozen=True, slots=True)
class Changes:
    """One table against the incumbent on one metric; changes in percent, positive is better."""

    metric: Metric
    by_case: dict[Key, float]
    #: The figure of all cases that decides, and the other one, None where a row has no time.
    total: Aggregate
    other: Aggregate | None
    by_class: dict[str, Aggregate]
    target: str | None

    @property
    def fallen(self) -> str:
        """The note that the figure of all cases fell that does not decide, or ""."""
        if len(self.by_case) < 2 or not self.other or _pct(self.other) > -TOLERANCE_PCT:
            return ""
        return f"{_speed(self.other)} fell: {changed(self.other.change_pct)}"

    @property
    def goal_pct(self) -> float:
        return _pct(self.by_class[self.target] if self.target else self.total)


def compare(candidate: Table, evidence: StoredEvidence, metric: Metric, policy: Policy) -> Changes:
    """Return how a table's rows changed; BadInput where times are to decide and are not there."""
    incumbent = evidence.incumbent
    groups = evidence.classes.group({row.key: row.dims for row in incumbent.rows})
    rows = candidate.by_key()
    pairs = {
        row.key: (value(rows[row.key], metric) or 0.0, value(row, metric) or 0.0)
        for row in incumbent.rows
    }
    by_case = {key: (improvement(new, old, metric) - 1) * 100 for key, (new, old) in pairs.items()}
    by_class = {name: _mean([pairs[key] for key in keys], metric) for name, keys in groups.items()}
    total, other = _mean([*pairs.values()], metric), _weighted(candidate, evidence, metric)
    if policy.decided_by == "weighted-time":
        if other is None:
            raise BadInput(
                "decided_by: weighted-time needs a time in every row",
                where=incumbent.source or "incumbent",
                fix="add a column of times in ms, or use a policy with decided_by: geomean",
            )
        total, other = other, total
    target = evidence.classes.target_among(groups)
    return Changes(metric, by_case, total, other, by_class, target)


def _mean(pairs: Sequence[tuple[float, float]], metric: Metric) -> Aggregate:
    """Return the geometric means of pairs (candidate, incumbent), and how these changed."""
    return Aggregate(
        metric=metric.name,
        better=metric.better,
        candidate=geomean(new for new, _ in pairs),
        incumbent=geomean(old for _, old in pairs),
        change_pct=(geomean(improvement(new, old, metric) for new, old in pairs) - 1) * 100,
    )


def _weighted(candidate: Table, evidence: StoredEvidence, metric: Metric) -> Aggregate | None:
    """Return the weighted time of all cases, None where a row has none."""
    sums = []
    for table in (candidate, evidence.incumbent):
        rows = table.by_key()
        times = {row.key: time_ms(rows[row.key], metric) for row in evidence.incumbent.rows}
        if not all(time and math.isfinite(time) and time > 0 for time in times.values()):
            return None
        weights = evidence.weights
        sums.append(math.fsum(weights.get(key, 1.0) * (ms or 0.0) for key, ms in times.items()))
    now, before = sums
    return Aggregate(
        metric=WEIGHTED_TIME.name,
        better=WEIGHTED_TIME.better,
        candidate=now,
        incumbent=before,
        change_pct=(before / now - 1) * 100,
    )


def _pct(total: Aggregate) -> float:
    assert total.change_pct is not None
    return total.change_pct


def _speed(total: Aggregate) -> str:
    return Metric(total.metric, total.better).speed


def _class_views(changes: Changes, again: Sequence[Changes]) -> Iterator[dict[str, float]]:
    """Yield the classes' changes in the run itself and, if there are, in its repetitions."""
    for runs in filter(None, ([changes], again)):
        yield {
            name: statistics.fmean(_pct(run.by_class[name]) for run in runs)
            for name in changes.by_class
        }
