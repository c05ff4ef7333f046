"""Which processes to measure next, until a paired comparison has its verdict.

A gain of a grouped GEMM has to hold with uneven groups too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS, is_mostly_lost
from pytest_kopt.decide.paired import decide_metrics, open_alone
from pytest_kopt.decide.paired_evidence import PairedEvidence
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, Verdict

#: After how many processes a case is looked at that alone is open, once all were; then it is over.
ALONE_LOOKS = (12, 16)
#: After how many processes of all cases at least: what two or three say together is often refuted
#: by the next ones, which there would be none of.
ALONE_FROM = 4
#: How a metric's name ends where the group sizes were drawn anew.
UNDER_SKEW = "under skew"


class InterimLooks:
    """The interim looks of a comparison: how many processes each needs, and what it decides.

    If only some cases are open after `ALONE_FROM` processes or more, further ones measure these
    alone, up to the last of `alone_looks`. With no `alone_looks` all cases are always measured.
    """

    def __init__(
        self,
        policy: Policy,
        extra_benefit: str | None = None,
        alone_looks: Sequence[int] = ALONE_LOOKS,
    ) -> None:
        self._policy, self._extra_benefit = policy, extra_benefit
        self._measures_alone = bool(alone_looks)
        #: The processes that are measured at each look, those of earlier looks included.
        self.counts = (*LOOKS, *alone_looks)
        #: The cases that the further processes measure; empty: they measure all.
        self.alone: frozenset[str] = frozenset()

    def decide(
        self, look: int, declared: Sequence[PairedEvidence], uneven: Sequence[PairedEvidence]
    ) -> Verdict | None:
        """Return the verdict of a look, None if the next one has to follow.

        `declared` is the evidence as declared, `uneven` the same with other draws of group sizes.
        """
        is_last = look == max((FINAL_LOOK, *self.counts))
        declared = [replace(evidence, is_last=is_last) for evidence in declared]
        verdict = decide_under_skew(declared, uneven, self._policy, self._extra_benefit)
        if verdict is not None and (is_last or verdict.decision is not Decision.INCONCLUSIVE):
            return verdict
        # Chosen once: were others measured later, no process might have measured every case.
        if self._measures_alone and look >= ALONE_FROM and not uneven and not self.alone:
            self.alone = open_alone(declared, self._policy)
        return None if self.alone else verdict


def decide_under_skew(
    declared: Sequence[PairedEvidence],
    uneven: Sequence[PairedEvidence],
    policy: Policy,
    extra_benefit: str | None = None,
) -> Verdict | None:
    """Judge the cases as declared; what would be kept has to be kept with `uneven` groups, too.

    `uneven` is the same evidence from other draws of the group sizes, for cases that have any. A
    gain that is not shown there takes more replicas; one that is mostly lost there is noted.
    """
    verdict = decide_metrics(declared, policy, extra_benefit)
    if verdict is None or not uneven:
        return verdict
    skewed = decide_metrics(uneven, policy, extra_benefit)
    if skewed is None:
        return None if verdict.decision.keeps else verdict
    totals = [
        total.model_copy(update={"metric": f"{total.metric} {UNDER_SKEW}"})
        for total in (skewed.aggregate, *skewed.secondary)
        if total
    ]
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
    return verdict.model_copy(
        update={
            "decision": decision,
            "reason": f"{verdict.reason}; with group sizes drawn anew: {skewed.reason}",
            "next_step": verdict.next_step
            if decision.keeps
            else "a gain has to be there whatever the groups' sizes are",
        }
    )
