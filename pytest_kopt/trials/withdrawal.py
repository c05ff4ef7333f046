"""Before the final comparison: takes back accepted rounds that only help the benchmark.

The chain is linear: what was accepted on top of such a round was measured with it in place, so it
goes as well. Nothing is lost, every version stays in its round's snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.recording import record_attempt
from pytest_kopt.campaign.state import Round
from pytest_kopt.clock import now
from pytest_kopt.decide.verdict import Applied, Decision
from pytest_kopt.honesty.transfer import OVERFIT


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Accepted rounds to take back: the first for what `why` says, the rest as built on it."""

    why: str
    rounds: tuple[int, ...]

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.rounds))
        return f"rounds {numbers}" if len(self.rounds) > 1 else f"round {numbers}"


def overfit(campaign: Campaign) -> Withdrawn | None:
    """Return the rounds from the first accepted one on that its notes call overfit, if any do."""
    kept = campaign.state.kept_rounds()[1:]
    for place, item in enumerate(kept):
        if (bucket := item.notes.bucket) in OVERFIT:
            why = f"its notes put the gain into {bucket}, which no real step has"
            return Withdrawn(why, tuple(later.number for later in kept[place:]))
    return None


def withdraw(campaign: Campaign, withdrawn: Withdrawn) -> None:
    """Decide these rounds again, the last first: after a kill the first is found again."""
    for number in reversed(withdrawn.rounds):
        _decide_anew(campaign, campaign.state.rounds[number], withdrawn)


def _decide_anew(campaign: Campaign, of_round: Round, withdrawn: Withdrawn) -> None:
    decided, verdict = of_round.verdict, of_round.last.verdict()
    assert decided is not None
    decision, reason = Decision.REJECTED_OVERFIT, f"withdrawn: {withdrawn.why}"
    step = "only gains that a real step has are kept"
    if of_round.number != withdrawn.rounds[0]:
        decision = Decision.ROLLED_BACK
        reason = (
            f"withdrawn with round {withdrawn.rounds[0]}, which it was built on: {withdrawn.why}"
        )
        step = (
            f"its version is in rounds/round-{of_round.number}/kernel_snapshot: measure its idea "
            "again as a round of its own"
        )
    record_attempt(
        campaign,
        of_round.number,
        started=now(),
        level=decided.level,
        evidence=of_round.last.evidence(),
        verdict=verdict.model_copy(
            update={
                "decision": decision,
                "reason": reason,
                "next_step": step,
                "applied": Applied(),
            }
        ),
        trend=decided.trend,
        paired=decided.paired,
        paired_quick=decided.paired_quick,
        baseline=decided.baseline,
    )
