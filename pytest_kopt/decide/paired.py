"""The paired rule: statements about intervals over fresh processes, look by look.

A gain of a grouped GEMM has to hold with uneven groups too.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kopt.decide.case_verdict import evidence_for, refuted
from pytest_kopt.decide.conclusion import NO_FACTS, VersionFacts, settled
from pytest_kopt.decide.hard_gates import after_regression
from pytest_kopt.decide.inference import (
    FINAL_LOOK,
    GATE_LEVEL,
    LOOKS,
    Estimate,
    is_mostly_lost,
    log_ratio,
    percent,
)
from pytest_kopt.decide.paired_evidence import PairedEvidence
from pytest_kopt.decide.paired_look import JudgedLook, judge_look, slower_by
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import changed

#: No more processes are started for a change of less: rounds of the same code differ by up to a
#: third of it (docs/paired.md).
WORTH_PCT = 0.1


def decide(
    wholes: Sequence[PairedEvidence], policy: Policy, facts: VersionFacts = NO_FACTS
) -> Verdict | None:
    """Return the verdict at this interim look, None where more replicates are due.

    `wholes` are all cases by each primary metric; those `under_skew` have other group sizes.
    The order of the rules stands in the room's docstring. No metric may regress, at least one has
    to improve, and what would be kept has to be kept under skew too. The facts come last.
    """
    declared = [whole for whole in wholes if not whole.under_skew]
    uneven = [whole for whole in wholes if whole.under_skew]
    verdict = _by_metrics(declared, policy, facts)
    if verdict and uneven:
        verdict = _under_skew(verdict, _by_metrics(uneven, policy, facts))
    return verdict and settled(verdict, facts)


def _under_skew(verdict: Verdict, skewed: Verdict | None) -> Verdict | None:
    """Return the verdict on the declared cases by what other draws of the group sizes show.

    A gain that is not shown there takes more replicates; one that is mostly lost there is noted.
    """
    if skewed is None:
        return None if verdict.decision.keeps else verdict
    totals = [total for total in (skewed.aggregate, *skewed.secondary) if total]
    verdict = verdict.model_copy(update={"secondary": [*verdict.secondary, *totals]})
    if not verdict.decision.keeps:
        return verdict
    # A split by classes is told of the declared cases only.
    decision = Decision.ROLLED_BACK if skewed.decision is Decision.SPLIT else skewed.decision
    if decision is Decision.ACCEPTED:
        gain, left = (v.aggregate.change_pct if v.aggregate else None for v in (verdict, skewed))
        if gain is None or left is None or gain <= 0 or not is_mostly_lost(gain, left):
            return verdict
        decision = Decision.ACCEPTED_WITH_NOTE
    step = "a gain has to be there whatever the groups' sizes are"
    if decision is Decision.INCOMPLETE:
        step = skewed.next_step
    return verdict.model_copy(
        update={
            "decision": decision,
            "reason": f"{verdict.reason}; with other group sizes: {skewed.reason}",
            "next_step": verdict.next_step if decision.keeps else step,
        }
    )


def _by_metrics(
    wholes: Sequence[PairedEvidence], policy: Policy, facts: VersionFacts
) -> Verdict | None:
    """Judge several primary metrics: the worst decides.

    If no metric is shown to improve, a stated benefit is enough if all are equal within the noise.
    One of memory has to be there where memory is measured.
    """
    looks = [judge_look(whole, policy, LOOKS[whole.replicas]) for whole in wholes]
    verdict = _worst([_at_look(look) for look in looks])
    benefit = facts.extra_benefit.strip()
    if not benefit or (verdict and verdict.decision is not Decision.INCONCLUSIVE):
        return verdict
    taken = [case.memory for case in wholes[0].cases]
    known = evidence_for(benefit, taken)
    if not known:
        why = verdict and f"{verdict.reason}; {refuted(taken)}"
        return verdict and verdict.model_copy(update={"reason": why})
    equal = [_if_equal(look, f"({known}): {benefit}") for look in looks]
    equivalent = [verdict for verdict in equal if verdict is not None]
    if len(equivalent) == len(wholes):
        return _leading(equivalent[0], equivalent)
    # No gain is in sight, but further processes may still show that the two are equal.
    return verdict if wholes[0].at_end else None


def _worst(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    decided = [verdict for verdict in verdicts if verdict is not None]
    for kind in (Decision.SPLIT, Decision.ROLLED_BACK, Decision.INCOMPLETE):
        of_kind = [verdict for verdict in decided if verdict.decision is kind]
        if of_kind:
            return of_kind[0]
    if len(decided) < len(verdicts):
        return None
    keeping = [verdict for verdict in decided if verdict.decision.keeps]
    return _leading(keeping[0] if keeping else decided[0], decided)


def _leading(lead: Verdict, verdicts: Sequence[Verdict]) -> Verdict:
    others = [verdict.aggregate for verdict in verdicts if verdict is not lead]
    secondary = [*lead.secondary, *(total for total in others if total)]
    return lead.model_copy(update={"secondary": secondary})


def _at_look(judged: JudgedLook) -> Verdict | None:
    """Return the verdict of one metric, None where more replicates are worth having.

    The last look always has a verdict. It is INCOMPLETE where a conclusion shows against the
    current best, but not against its copy.
    """
    evidence = judged.evidence
    decided = _decide(judged)
    if decided is not None:
        return decided
    if not _is_futile(judged):
        if not evidence.at_end:
            return None
        against_one = judge_look(evidence.against_one_copy(), judged.policy, judged.level)
        if (shown := _decide(against_one)) is not None:
            return judged.verdict(
                Decision.INCOMPLETE,
                f"{shown.reason}; but not against the copy of the current best (A/A control), "
                f"which changed {judged.goal_name} by {changed(percent(judged.goal.copy))}",
                "the machine treats two copies of one version differently: end other processes "
                "(nvidia-smi, top), then run the round again",
            )
    return judged.verdict(
        Decision.INCONCLUSIVE,
        f"after {evidence.replicas} replicates {judged.goal_name} changed by "
        f"{judged.shown_at(judged.goal)}: {judged.why_open}",
        judged.step_when_open(),
    )


def _decide(judged: JudgedLook) -> Verdict | None:
    """Return the first answer of the rules, in their order, None where none of them has one.

    If a gate only asks for no regression, bounds of every case below its limit are enough, also
    for a change that is slower.
    """
    evidence, total, goal, level = judged.evidence, judged.total, judged.goal, judged.level
    interval = judged.shown(total)
    if judged.standing.is_split:
        return judged.verdict(*judged.standing.split())
    if judged.regressed:
        return judged.verdict(
            Decision.ROLLED_BACK,
            f"{judged.worst(judged.regressed)}, beyond {judged.limit_of_worst}; "
            f"{judged.speed} {interval}",
            after_regression(some_gained=judged.some_gained),
        )
    asks_less = evidence.gate == "no-regression"
    is_harmless = asks_less and not judged.open_shapes
    may_be_harmless = is_harmless or (asks_less and not evidence.at_end)
    # Also a round about one class may not lower the whole, as the chain of rounds never falls.
    for name, estimate in {judged.speed: total, judged.goal_name: goal}.items():
        if estimate.upper(level) < 0 and not may_be_harmless:
            return judged.verdict(
                Decision.ROLLED_BACK,
                f"{name} fell: {judged.shown(estimate)}",
                "kopt restored the current best; try another hypothesis",
            )
    if judged.standing.has_loss:
        return judged.verdict(*judged.standing.loss())
    if judged.open_shapes or judged.open_classes:
        return None
    if is_harmless:
        safe = (
            f"no case is slower by {judged.limits} or more, at "
            f"{100 * (1 - GATE_LEVEL):g} %; {judged.speed} {interval}"
        )
        return _kept(judged, safe, judged.worst(judged.slower), "")
    if goal.lower(level) <= log_ratio(judged.policy.minimum_gain_pct):
        return None
    gain = f"{judged.goal_name} improved: {judged.shown(goal)}"
    slower = (
        f"{judged.worst(judged.slower)}, less than the regression limit" if judged.slower else ""
    )
    return _kept(judged, gain, slower, "go on with the next round")


def _kept(judged: JudgedLook, why: str, slower: str, step: str) -> Verdict:
    """Return the verdict on a version that is kept; slower cases and totals are noted."""
    if not (slower or judged.fallen):
        return judged.verdict(Decision.ACCEPTED, why, step)
    return judged.verdict(
        Decision.ACCEPTED_WITH_NOTE,
        "; ".join(filter(None, (why, judged.fallen and f"but {judged.fallen}", slower))),
        "; ".join(filter(None, (step, "look at the slower case"))),
    )


def _is_futile(judged: JudgedLook) -> bool:
    """Say whether even a mean one standard error away is next to nothing, or decides nothing."""
    evidence = judged.evidence
    if evidence.gate == "no-regression" or judged.open_shapes or judged.open_classes:
        return False
    goal = judged.goal
    shrink = (evidence.replicas / FINAL_LOOK) ** 0.5
    level = LOOKS[FINAL_LOOK]
    arms = 2 if evidence.cases[0].placebo else 1
    freedom = goal.freedom + arms * (FINAL_LOOK - evidence.replicas)
    better, worse = (
        Estimate(goal.mean + sign * goal.error, goal.error * shrink, freedom) for sign in (1, -1)
    )
    accepts = better.lower(level) > log_ratio(judged.policy.minimum_gain_pct)
    is_gain = accepts and better.mean > log_ratio(WORTH_PCT)
    is_loss = worse.upper(level) < 0 and worse.mean < slower_by(WORTH_PCT)
    return not is_gain and not is_loss


def _if_equal(judged: JudgedLook, benefit: str) -> Verdict | None:
    """Return the verdict on a version that is equal in speed and has a benefit, None where not.

    `benefit` says how far it is known, too.
    Two one-sided tests at the look's level: both intervals lie inside the policy's noise, and no
    case and no class may have lost. Asked only where nothing is shown slower.
    """
    noise_pct = judged.policy.noise_pct
    low, high = slower_by(noise_pct), log_ratio(noise_pct)
    estimates = (judged.total, judged.goal)
    inside = all(
        low < estimate.lower(judged.level) and estimate.upper(judged.level) < high
        for estimate in estimates
    )
    if not inside or judged.open_shapes or judged.open_classes:
        return None
    slower = f"; {judged.worst(judged.slower)}" if judged.slower else ""
    return judged.verdict(
        Decision.ACCEPTED_WITH_NOTE,
        f"{judged.goal_name} is equal within {noise_pct:g} %: {judged.shown(judged.goal)}"
        f"{slower}; kept for its extra benefit {benefit}",
        "go on with the next round",
    )
