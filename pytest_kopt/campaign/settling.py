"""The step that a decided attempt asks of git and the tree, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.state import CampaignState
from pytest_kopt.decide.verdict import Decision

Action = Literal["commit", "restore", "none"]


@dataclass(frozen=True, slots=True)
class CommitRound:
    """Commit the attempt's kernel files; those that only `before` had, the current best, go."""

    action: ClassVar[Action] = "commit"
    before: Attempt | None


@dataclass(frozen=True, slots=True)
class Restore:
    """Put the kernel of the current best, `best`, back into the tree."""

    action: ClassVar[Action] = "restore"
    best: Attempt


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Restore, and commit that too: a commit holds the version, whose round had been kept."""

    action: ClassVar[Action] = "restore"
    best: Attempt


@dataclass(frozen=True, slots=True)
class Nothing:
    """Leave tree and history as they are."""

    action: ClassVar[Action] = "none"


Step = CommitRound | Restore | Withdraw | Nothing


def plan(state: CampaignState, attempt: Attempt, *, commits: bool) -> Step:
    """Return the step for a decided attempt of a campaign that makes `commits` or none."""
    decision = attempt.outcome().decision
    if not decision.keeps:
        best = state.incumbent
        assert best is not None
        decided = (earlier.decided for earlier in state.rounds[attempt.round].attempts.values())
        was_kept = any(earlier and earlier.decision.keeps for earlier in decided)
        return Withdraw(best) if commits and was_kept else Restore(best)
    if not commits or decision is Decision.BASELINE:
        return Nothing()
    before = state.incumbent_as_of(attempt.round - 1)
    return CommitRound(state.rounds[before].last if before else None)
