"""The paired rule: statements about intervals over fresh processes, look by look."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_kopt.decide.case_verdict import evidence_for, refuted
from pytest_kopt.decide.claims import Statement
from pytest_kopt.decide.conclusion import NO_FACTS, Answer, VersionFacts, settled
from pytest_kopt.decide.inference import (
    FINAL_LOOK,
    GATE_LEVEL,
    LOOKS,
    Estimate,
    log_ratio,
    percent,
)
from pytest_kopt.decide.look import Look, slower_by
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.series import SeriesTable
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import changed

#: No more processes are started for a change of less: rounds of the same code differ by up to a
#: third of it (docs/paired.md).
WORTH_PCT = 0.1
#: What the rules say, and the look at which they do.
_Judged: TypeAlias = "tuple[Look, Answer]"


def decide(table: SeriesTable, policy: Policy, facts: VersionFacts = NO_FACTS) -> Verdict | None:
    """Return the verdict at this interim look, None where more replicates are due.

    The order of the rules stands in the room's docstring. No metric may regress, at least one has
    to improve, and what would be kept has to be kept under skew too. The facts come last.
    """
    level = LOOKS[table.replicates]
    declared, uneven = (
        [Look(table, cases, policy, level) for cases in table.by_metric(kind)]
        for kind in ("declared", "under skew")
    )
    judged = _by_metrics(declared, facts)
    if judged and uneven:
        judged = _under_skew(*judged, _by_metrics(uneven, facts))
    if judged is None:
        return None
    look, answer = judged
    others = [other for other in (*declared, *uneven) if other is not look]
    return look.verdict(settled(answer, facts), others)


def _under_skew(look: Look, answer: Answer, skewed: _Judged | None) -> _Judged | None:
    """Return the answer on the declared cases by what other draws of the group sizes show.

    A gain that is not shown there takes more replicates; one that is mostly lost there is noted.
    """
    if not answer.decision.keeps:
        return look, answer
    if skewed is None:
        return None
    uneven, there = skewed
    # A split by classes is told of the declared cases only.
    decision = Decision.ROLLED_BACK if there.decision is Decision.SPLIT else there.decision
    if decision is Decision.ACCEPTED:
        if uneven.total.mean >= 0.5 * look.total.mean or look.total.mean <= 0:
            return look, answer
        decision = Decision.ACCEPTED_WITH_NOTE
    step = "a gain has to be there whatever the groups' sizes are"
    if decision is Decision.INCOMPLETE:
        step = there.next_step
    reason = f"{answer.reason}; with other group sizes: {there.reason}"
    return look, Answer(decision, reason, answer.next_step if decision.keeps else step)


def _by_metrics(looks: Sequence[Look], facts: VersionFacts) -> _Judged | None:
    """Judge several primary metrics: the worst decides.

    If no metric is shown to improve, a stated benefit is enough if all are equal within the noise.
    One of memory has to be there where memory is measured.
    """
    judged = _worst([(look, _at_look(look)) for look in looks])
    benefit = facts.extra_benefit.strip()
    if not benefit or (judged and judged[1].decision is not Decision.INCONCLUSIVE):
        return judged
    first = looks[0]
    taken = [case.memory for case in first.cases]
    known = evidence_for(benefit, taken)
    if not known and judged:
        look, answer = judged
        return look, answer._replace(reason=f"{answer.reason}; {refuted(taken)}")
    if not known:
        return None
    if all(_is_equal(look) for look in looks):
        slower = f"; {first.slower}" if first.slower else ""
        return first, Answer(
            Decision.ACCEPTED_WITH_NOTE,
            f"{first.goal_name} is equal within {first.policy.noise_pct:g} %: "
            f"{first.within(first.goal)}{slower}; kept for its extra benefit ({known}): {benefit}",
            "go on with the next round",
        )
    # No gain is in sight, but further processes may still show that the two are equal.
    return judged if first.table.is_at_end else None


def _worst(judged: Sequence[tuple[Look, Answer | None]]) -> _Judged | None:
    decided = [(look, answer) for look, answer in judged if answer is not None]
    for kind in (Decision.SPLIT, Decision.ROLLED_BACK, Decision.INCOMPLETE):
        for look, answer in decided:
            if answer.decision is kind:
                return look, answer
    if len(decided) < len(judged):
        return None
    return next((one for one in decided if one[1].decision.keeps), decided[0])


def _at_look(look: Look) -> Answer | None:
    """Return the answer of one metric, None where more replicates are worth having.

    The last look always has one. It is INCOMPLETE where a conclusion shows against the current
    best, but not against its copy.
    """
    answer = _shown(look)
    if answer is not None:
        return answer
    if not _is_futile(look):
        if not look.table.is_at_end:
            return None
        against_one = [replace(case, copy=_unbiased(case.copy)) for case in look.cases]
        if answer := _shown(replace(look, cases=against_one)):
            return Answer(
                Decision.INCOMPLETE,
                f"{answer.reason}; but not against the copy of the current best (A/A "
                f"control), which changed {look.goal_name} by {changed(percent(look.goal.copy))}",
                "the machine treats two copies of one version differently: end other processes "
                "(nvidia-smi, top), then run the round again",
            )
    return Answer(
        Decision.INCONCLUSIVE,
        f"after {look.table.replicates} replicates {look.goal_name} changed by "
        f"{look.within_at(look.goal)}: {look.why_open}",
        look.step_when_open(),
    )


def _unbiased(copy: Sequence[float]) -> tuple[float, ...]:
    """Return log-ratios of the A/A control as if the copy never differed."""
    return tuple(ratio - statistics.fmean(copy) for ratio in copy)


def _shown(look: Look) -> Answer | None:
    """Return the first answer of the rules, in their order, None where none of them has one.

    If a gate only asks for no regression, bounds of every case below its limit are enough, also
    for a change that is slower.
    """
    interval = look.within(look.total)
    if look.standing.is_split:
        return Answer(*look.standing.split())
    if look.regressed:
        return Answer(
            Decision.ROLLED_BACK,
            f"{look.worst(look.regressed)}, beyond {look.limit_of_worst}; {look.speed} {interval}",
            look.step_after_regression,
        )
    asks_less = look.table.gate == "no-regression"
    is_harmless = asks_less and not look.open_cases
    # Also a round about one class may not lower the whole, as the chain of rounds never falls.
    if not is_harmless and not (asks_less and not look.table.is_at_end):
        for name, estimate in {look.speed: look.total, look.goal_name: look.goal}.items():
            if name in look.shown[Statement.SLOWER]:
                return Answer(
                    Decision.ROLLED_BACK,
                    f"{name} fell: {look.within(estimate)}",
                    "kopt restored the current best; try another hypothesis",
                )
    if look.standing.has_loss:
        return Answer(*look.standing.loss())
    if look.open_cases or look.open_classes:
        return None
    if is_harmless:
        safe = (
            f"no case is slower by {look.limits} or more, at "
            f"{100 * (1 - GATE_LEVEL):g} %; {look.speed} {interval}"
        )
        return _kept(look, safe, look.slower, "")
    if look.goal_name not in look.shown[Statement.FASTER]:
        return None
    gain = f"{look.goal_name} improved: {look.within(look.goal)}"
    slower = look.slower and f"{look.slower}, less than the regression limit"
    return _kept(look, gain, slower, "go on with the next round")


def _kept(look: Look, why: str, slower: str, step: str) -> Answer:
    """Return the answer on a version that is kept; slower cases and totals are noted."""
    if not (slower or look.fallen):
        return Answer(Decision.ACCEPTED, why, step)
    return Answer(
        Decision.ACCEPTED_WITH_NOTE,
        "; ".join(filter(None, (why, look.fallen and f"but {look.fallen}", slower))),
        "; ".join(filter(None, (step, "look at the slower case"))),
    )


def _is_futile(look: Look) -> bool:
    """Say whether even a mean one standard error away is next to nothing, or decides nothing."""
    table, goal, level = look.table, look.goal, LOOKS[FINAL_LOOK]
    if table.gate == "no-regression" or look.open_cases or look.open_classes:
        return False
    shrink = (table.replicates / FINAL_LOOK) ** 0.5
    arms = 2 if look.cases[0].copy else 1
    freedom = goal.freedom + arms * (FINAL_LOOK - table.replicates)
    better, worse = (
        Estimate(goal.mean + sign * goal.error, goal.error * shrink, freedom) for sign in (1, -1)
    )
    accepts = better.lower(level) > log_ratio(look.policy.minimum_gain_pct)
    is_gain = accepts and better.mean > log_ratio(WORTH_PCT)
    is_loss = worse.upper(level) < 0 and worse.mean < slower_by(WORTH_PCT)
    return not is_gain and not is_loss


def _is_equal(look: Look) -> bool:
    """Say whether it is equal in speed, and no case and no class may have lost.

    Two one-sided tests at the look's level: all cases, and the target, lie inside the policy's
    noise. Asked only where nothing is shown slower.
    """
    inside = (
        look.shown[Statement.NOT_SLOWER_THAN_NOISE] & look.shown[Statement.NOT_FASTER_THAN_NOISE]
    )
    is_open = look.open_cases or look.open_classes
    return inside >= {look.speed, look.goal_name} and not is_open
