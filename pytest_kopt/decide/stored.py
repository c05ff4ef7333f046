"""The stored rule: two stored tables, a shape gate, re-measurement of small gains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.classes import ClassStanding, measured_classes
from pytest_kopt.decide.conclusion import settled
from pytest_kopt.decide.hard_gates import (
    after_regression,
    check_same_schema,
    checked_shape,
    correctness_verdict,
    metrics_verdict,
    missing_cases,
    rows_missing,
)
from pytest_kopt.decide.policy import Limit, Policy
from pytest_kopt.decide.stored_evidence import Changes, StoredEvidence, Total, class_views, compare
from pytest_kopt.decide.verdict import Aggregate, Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed
from pytest_kopt.schema.metrics import WEIGHTED_TIME, Metric, parse_primary
from pytest_kopt.schema.table import Key, Row


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
        absent = missing_cases(table, incumbent)
        if absent:
            return rows_missing(absent, policy)
    for table in tables:
        gated = correctness_verdict(table, policy, evidence.failed_repairs)
        if gated:
            return gated
    metrics = parse_primary(evidence.primary, incumbent, policy.directions)
    for table in (*tables, incumbent):
        gated = metrics_verdict(table, metrics, policy, incumbent)
        if gated:
            return gated
    compared, *again = (
        [compare(table, evidence, metric, policy) for metric in metrics] for table in tables
    )
    return settled(_judge(evidence, policy, compared, again), evidence.facts)


def _judge(
    evidence: StoredEvidence,
    policy: Policy,
    compared: Sequence[Changes],
    again: Sequence[Sequence[Changes]],
) -> Verdict:
    labels = {row.key: row.label for row in evidence.incumbent.rows}
    lead = max(compared, key=lambda changes: changes.goal_pct)
    best, target = lead.goal_pct, lead.target
    goal = f"{lead.metric.speed} of {target!r}" if target else lead.speed
    repeats = [comparisons[compared.index(lead)].goal_pct for comparisons in again]
    guarded = {
        row.key: limit
        for row in evidence.incumbent.rows
        if (limit := evidence.limit(row, lead.metric, policy)) is not None
    }
    regressed = _regressed(compared, again, policy, guarded)
    slower = _slower(compared)
    views = [
        (changes, ClassStanding.by_noise(view, policy))
        for i, changes in enumerate(compared)
        for view in class_views(changes, [comparisons[i] for comparisons in again])
    ]
    lead_view = next(pair for pair in views if pair[0] is lead)
    lead, standing = next((pair for pair in views if pair[1].is_split), lead_view)

    def verdict(decision: Decision, reason: str, step: str) -> Verdict:
        return Verdict(
            decision=decision,
            reason=reason,
            next_step=step,
            compare="stored",
            policy=policy.name,
            aggregate=_aggregate(lead.total, lead.total_metric),
            weighted_time=_aggregate(lead.weighted, WEIGHTED_TIME)
            if lead.weighted and len(labels) > 1
            else None,
            secondary=[
                *([_aggregate(lead.geomean, lead.metric)] if lead.is_by_weight else []),
                *(
                    _aggregate(changes.total, changes.total_metric)
                    for changes in compared
                    if changes is not lead
                ),
            ],
            shapes=_shapes(evidence, policy, lead, regressed),
            classes=[
                measured.model_copy(
                    update={
                        **asdict(lead.by_class[measured.name]),
                        "status": standing.status(measured.name),
                    }
                )
                for measured in measured_classes(evidence.classes, evidence.incumbent, lead.metric)
            ],
            target_class=target,
            remeasured_pct=repeats,
        )

    if standing.is_split:
        return verdict(*standing.split())
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
            f"{worst.speed} fell: {changed(worst.goal_pct)}; of several primary metrics "
            "none may regress",
            "try another hypothesis, or judge by a combined metric",
        )
    if policy.below(best, 0):
        return verdict(
            Decision.ROLLED_BACK,
            f"{goal} fell: {changed(best)}",
            "kopt restored the current best; try another hypothesis",
        )
    worst = min(compared, key=lambda changes: changes.total.change_pct)
    if target and policy.below(worst.total.change_pct, -policy.chain_noise_pct):
        return verdict(
            Decision.ROLLED_BACK,
            f"{worst.speed} fell: {changed(worst.total.change_pct)} over all cases, more "
            f"than the {policy.chain_noise_pct:g} % that a chain of rounds allows",
            "kopt restored the current best; keep the change away from the other classes",
        )
    losing = next((standing for _, standing in views if standing.has_loss), None)
    if losing:
        return verdict(*losing.loss())
    if not policy.exceeds(best, 0):
        if evidence.facts.extra_benefit.strip():
            return verdict(
                Decision.ACCEPTED_WITH_NOTE,
                "equal in speed, kept for its extra benefit (stated, not measured): "
                f"{evidence.facts.extra_benefit}",
                "go on with the next round",
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
            "try another hypothesis",
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
            "go on with the next round; look at the slower case",
        )
    decision = Decision.ACCEPTED_WITH_NOTE if fallen else Decision.ACCEPTED
    return verdict(decision, gain, "go on with the next round")


def _regressed(
    compared: Sequence[Changes],
    again: Sequence[Sequence[Changes]],
    policy: Policy,
    limits: Mapping[Key, Limit],
) -> dict[Key, float]:
    """Cases at or beyond their limit in the run itself, or on average in its repetitions."""
    losses: dict[Key, float] = {}
    averages = [
        {key: statistics.fmean(run[i].by_case[key] for run in again) for key in comparison.by_case}
        for i, comparison in enumerate(compared)
        if again
    ]
    for changes in [*(comparison.by_case for comparison in compared), *averages]:
        for key, change in changes.items():
            if key in limits and policy.reaches(-change, limits[key].speed_pct):
                losses[key] = min(change, losses.get(key, change))
    return losses


def _slower(compared: Sequence[Changes]) -> dict[Key, float]:
    losses: dict[Key, float] = {}
    for changes in compared:
        for key, change in changes.by_case.items():
            if change < -1e-9:
                losses[key] = min(change, losses.get(key, change))
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
        f"mean {changed(mean)} (asked > {rule.mean_pct:g} %), standard deviation {spread:.3f} "
        f"(asked < {limit:.3f}) over {len(repeats)} re-measurements"
    )


def _aggregate(total: Total, metric: Metric) -> Aggregate:
    return Aggregate(metric=metric.name, better=metric.better, **asdict(total))


def _shapes(
    evidence: StoredEvidence, policy: Policy, lead: Changes, regressed: Mapping[Key, float]
) -> list[Shape]:
    def shape(row: Row) -> Shape:
        change = lead.by_case[row.key]
        gained = "improved" if policy.reaches(change, policy.noise_pct) else "unchanged"
        checked = checked_shape(row, status="regressed" if row.key in regressed else gained)
        device = (evidence.devices or {}).get(row.key)
        return checked.model_copy(update={"change_pct": change, "device": device})

    return [*map(shape, evidence.candidate.rows)]


def remeasurements_needed(verdict: Verdict, policy: Policy) -> int:
    """Return how often the candidate has to be measured again before this verdict can be final."""
    waiting = verdict.decision is Decision.INCOMPLETE and verdict.aggregate is not None
    return policy.remeasure.times - len(verdict.remeasured_pct) if waiting else 0
