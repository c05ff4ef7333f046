"""The document that `kopt status --json` prints, by its published schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pytest_kopt.campaign.history.stops import Regression, Review, Stop
from pytest_kopt.campaign.ledger import Final
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import Decision, Level, NextAction, RaceCandidate, Shape
from pytest_kopt.models import Document


class RoundStatus(Document):
    """One round that was run."""

    round: int
    attempts: int
    open: bool = Field(description="whether another attempt may follow")
    level: Level
    decision: Decision
    reason: str
    next_step: str
    change_pct: float | None = Field(description="over the current best of then, in percent")
    flags: list[str]
    notes: dict[str, Any] = Field(description="the keys of its notes that are given")

    @classmethod
    def of(cls, round: Round) -> RoundStatus:
        decided = round.verdict
        total = decided.aggregate if decided else None
        return cls(
            round=round.number,
            attempts=len(round.attempts),
            open=round.is_open,
            level=decided.level if decided else round.last.level,
            decision=decided.decision if decided else Decision.INCOMPLETE,
            reason=decided.reason if decided else "the session was cut off",
            next_step=decided.next_step if decided else "run the round again",
            change_pct=total.change_pct if total else None,
            flags=decided.flags if decided else [],
            notes=round.notes.given(),
        )


class RoundCounters(Document):
    """How many rounds after the baseline ended how."""

    accepted: int
    rolled_back: int
    by_decision: dict[Decision, int] = Field(description="the baseline among them")
    rollbacks_in_a_row: int
    regressions_in_a_row: int = Field(description="measured ones; max_regressions end a campaign")
    max_regressions: int


class QuickLevel(Document):
    """The cases of quick rounds."""

    shapes: list[str]
    frozen_since_round: int | None


class Status(Document):
    """`kopt status --json`; `schema_version` grows when a field changes its meaning or goes."""

    schema_version: Literal[1] = 1
    campaign: str
    op: str
    backend: str
    gpu: str
    kernel: list[str]
    branch: str
    root: str = Field(description="the project root in which rounds run")
    directory: str = Field(description="the campaign's own")
    allowed: list[str] = Field(description="the commands that would not be refused")
    running: dict[str, Any] | None = Field(
        description="running.json of the session that works on the campaign, or of one that a "
        "kernel ended which did not import"
    )
    next_action: NextAction
    next: str = Field(description="the same in words")
    obstacle: str | None = Field(description="what a person has to fix before a round can run")
    nothing_to_measure: str | None = Field(description="why: the kernel is the current best's code")
    edited: list[str] = Field(description="kernel files that are not the current best's")
    measured_elsewhere: str = Field(description="the other machine that measured the current best")
    ended: Literal["stopped", "abandoned"] | None
    incumbent_round: int | None = Field(description="the round of the current best")
    next_round: int | None = Field(description="null where a condition ends the campaign")
    open: bool = Field(description="whether the last round goes on")
    unapplied: int | None = Field(description="a round that is decided but not carried out")
    final: Final | None = Field(description="the last comparison of the best with the baseline")
    chain_breaks: list[str]
    counters: RoundCounters
    recent_regressions: list[Regression]
    stagnation: Review | None
    termination_check: list[Stop]
    integration: str | None = Field(description="how a workspace stands with its upstream")
    quick: QuickLevel
    candidates: list[RaceCandidate] = Field(description="of the last round, if it was a race")
    cases: list[Shape] = Field(description="of the last round")
    masked: list[str] = Field(description="versions of the iteration memory that are not shown")
    rounds: list[RoundStatus]
    same_code: str = Field(description="of the last round: how many cases have nothing to compare")
