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
class Overfit:
    """An accepted round whose transfer check says REJECT-as-overfit, and why."""

    round: int
    why: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The overfit round that was taken back, and all that went with it, in order."""

    found: Overfit
    rounds: tuple[int, ...]

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.rounds))
        return f"rounds {numbers}" if len(self.rounds) > 1 else f"round {numbers}"


def overfit(campaign: Campaign) -> Overfit | None:
    """Return the first accepted round that is REJECT-as-overfit by its notes."""
    for item in campaign.state.kept_rounds()[1:]:
        bucket = item.notes.bucket
        if bucket in OVERFIT:
            return Overfit(
                item.number, f"its notes put the gain into {bucket}, which no real step has"
            )
    return None


def withdraw(campaign: Campaign, found: Overfit) -> Withdrawn:
    """Decide this round and every later accepted one anew, the last first.

    A kill in between leaves a chain that is shorter by the rounds done, whose first is found again.
    """
    kept = campaign.state.kept_rounds()
    numbers = tuple(item.number for item in kept if item.number >= found.round)
    for number in reversed(numbers):
        _decide_anew(campaign, campaign.state.rounds[number], found)
    return Withdrawn(found, numbers)


def _decide_anew(campaign: Campaign, item: Round, found: Overfit) -> None:
    own = item.number == found.round
    decided, verdict = item.verdict, campaign.verdict(item)
    assert decided is not None and verdict is not None
    reason = (
        f"withdrawn: {found.why}"
        if own
        else f"withdrawn with round {found.round}, which it was built on: {found.why}"
    )
    step = (
        "only gains that a real step has are kept"
        if own
        else f"its version is in rounds/round-{item.number}/kernel_snapshot: measure its idea "
        "again as a round of its own"
    )
    record_attempt(
        campaign,
        item.number,
        started=now(),
        level=decided.level,
        evidence=campaign.archive.evidence(item.number, item.last),
        verdict=verdict.model_copy(
            update={
                "decision": Decision.REJECTED_OVERFIT if own else Decision.ROLLED_BACK,
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
