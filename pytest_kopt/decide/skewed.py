"""The rule on grouped GEMMs: a gain has to hold with uneven groups too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_kopt.decide.inference import is_mostly_lost
from pytest_kopt.decide.paired import decide_metrics
from pytest_kopt.decide.paired_evidence import PairedEvidence
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, Verdict

#: How a metric's name ends where the group sizes were drawn anew.
UNDER_SKEW = "under skew"


def decide_under_skew(
    declared: Sequence[PairedEvidence],
    uneven: Sequence[PairedEvidence],
    policy: Policy,
    extra_benefit: str | None = None,
) -> Verdict | None:
    """Judge the cases as declared; what would be kept has to be kept with `uneven` groups, too.

    `uneven` is the same evidence from group sizes that were drawn anew, for the cases that have
    group sizes; without any the declared cases decide. `extra_benefit` is what the change is good
    for besides speed, as stated. The same rules hold for both: a gain that is not shown under skew
    when it is shown as declared takes more replicas, and at the last look it is inconclusive. One
    that is mostly lost there is noted.
    """
    verdict = decide_metrics(declared, policy, extra_benefit)
    if verdict is None or not uneven:
        return verdict
    named = [replace(item, metric=f"{item.metric} {UNDER_SKEW}") for item in uneven]
    other = decide_metrics(named, policy, extra_benefit)
    if other is None:
        return None if verdict.decision.keeps else verdict
    totals = [total for total in (other.aggregate, *other.secondary) if total]
    verdict = verdict.model_copy(update={"secondary": [*verdict.secondary, *totals]})
    if not verdict.decision.keeps:
        return verdict
    # A split by classes is told of the declared cases only.
    decision = Decision.ROLLED_BACK if other.decision is Decision.SPLIT else other.decision
    if decision is Decision.ACCEPTED:
        gain, left = (v.aggregate.change_pct if v.aggregate else None for v in (verdict, other))
        if gain is None or left is None or gain <= 0 or not is_mostly_lost(gain, left):
            return verdict
        decision = Decision.ACCEPTED_WITH_NOTE
    return verdict.model_copy(
        update={
            "decision": decision,
            "reason": f"{verdict.reason}; with group sizes drawn anew: {other.reason}",
            "next_step": verdict.next_step
            if decision.keeps
            else "a gain has to be there whatever the groups' sizes are",
        }
    )
