"""How many measured regressions came in a row, and what the last were; what roll-backs ask for.

A candidate counts that is right and measurably slower than the current best. Everything else
that ends an attempt starts over: a kept round, a tie (INCONCLUSIVE, or slower by no more than the
noise), a roll-back without usable metrics, failed repairs, and an attempt that measured nothing
(INCOMPLETE), since none of them is a comparable regression. So do a SPLIT and a case beyond the
shape gate while the aggregate holds, which found a class to specialise for, and REJECTED_OVERFIT,
whose figures are not believed. A REPAIR only goes on: the attempt that ends the round counts.
Masked rounds count as well: a mask is about what planning looks at, not about what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.ledger import Decided
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.models import Document

#: How many regressions are kept with their fields.
KEPT = 5
#: How many new directions a review has to come up with.
NEW_DIRECTIONS = 3
_REVIEW_AFTER = 2
#: What the n-th roll-back in a row asks for, from the second on; the last one stays.
_LADDER = (
    "diagnose: list what the last rounds disproved and classify the bottleneck anew",
    "re-profile: a new profile of the incumbent (--kopt-profile), one level deeper",
    "ISA: read the hot loop's instructions and waits, against the hardware notes",
    "compare with the state of the art: the best public kernel for this op, line by line",
)


class Regression(Document):
    """One measured regression; figures are in the metric's unit, GPU kernel times in microseconds.

    `snapshot` is the candidate's directory below the campaign's, `points` what the round's author
    or else the verdict says of it. None where something was not measured.
    """

    round: int
    attempt: int
    time: str
    incumbent_round: int
    incumbent_commit: str | None
    snapshot: str
    hypothesis: str | None
    files: list[str]
    metric: str | None
    incumbent: float | None
    candidate: float | None
    incumbent_kernel_us: float | None
    candidate_kernel_us: float | None
    change_pct: float
    points: str


@dataclass(frozen=True, slots=True)
class Counters:
    """Regressions in a row, and the last of them, oldest first."""

    regressions: int
    recent: tuple[Regression, ...]


def count(state: CampaignState, policy: Policy, until: tuple[int, int] | None = None) -> Counters:
    """Return the counters after the last decided attempt, or as of `until`: (round, attempt)."""
    row: list[Regression] = []
    best: tuple[Attempt, Decided] | None = None
    for round, attempt, decided in state.decided():
        if until and (round.number, attempt.number) > until:
            break
        change = regression_pct(decided, policy)
        if change is not None and best is not None:
            row.append(_regression(round, decided, *best, change))
        elif decided.decision is not Decision.REPAIR:
            row.clear()
        if decided.decision.keeps:
            best = attempt, decided
    return Counters(len(row), tuple(row[-KEPT:]))


def regression_pct(decided: Decided, policy: Policy) -> float | None:
    """Return by how many percent an attempt is shown to be slower (negative), None if it is not.

    GPU kernel time decides where both versions were profiled; else the aggregate. A
    paired interval measures its own noise; without one the policy's noise counts.
    """
    if decided.decision is not Decision.ROLLED_BACK:
        return None
    profiled = decided.kernel_time.change_pct if decided.kernel_time else None
    if profiled is not None:
        return profiled if policy.below(profiled, -policy.noise_pct) else None
    total = decided.aggregate
    if total is None or total.change_pct is None:
        return None
    if total.high_pct is not None:
        return total.change_pct if total.high_pct < 0 else None
    return total.change_pct if policy.below(total.change_pct, -policy.noise_pct) else None


def _regression(
    round: Round, decided: Decided, best: Attempt, before: Decided, change: float
) -> Regression:
    notes, total, profiled = round.notes, decided.aggregate, decided.kernel_time
    incumbent_us = before.kernel_time.candidate_us if before.kernel_time else None
    files = {*decided.kernel, *before.kernel}
    return Regression(
        round=decided.round,
        attempt=decided.attempt,
        time=decided.time,
        incumbent_round=before.round,
        incumbent_commit=best.applied.git_commit if best.applied else None,
        snapshot=f"rounds/round-{round.number}/artifacts/attempt-{decided.attempt}/kernel_snapshot",
        hypothesis=notes.hypothesis or notes.change or notes.summary,
        files=sorted(f for f in files if decided.kernel.get(f) != before.kernel.get(f)),
        **{name: getattr(total, name, None) for name in ("metric", "incumbent", "candidate")},
        incumbent_kernel_us=(profiled.incumbent_us if profiled else None) or incumbent_us,
        candidate_kernel_us=profiled.candidate_us if profiled else None,
        change_pct=change,
        points=notes.root_cause or decided.reason,
    )


class Review(Document):
    """The stagnation review that is due: after how many roll-backs, and what it starts with."""

    rollbacks_in_a_row: int
    action: str


def rollbacks_in_a_row(rounds: Sequence[Round]) -> int:
    """Return how many of the last of these decided rounds kept nothing."""
    return len(list(takewhile(lambda candidate: not candidate.is_kept, reversed(rounds))))


def review(rounds: Sequence[Round]) -> Review | None:
    """Return the review that these decided rounds ask for, None before the second roll-back."""
    count = rollbacks_in_a_row(rounds)
    if count < _REVIEW_AFTER:
        return None
    action = _LADDER[min(count - _REVIEW_AFTER, len(_LADDER) - 1)]
    return Review(rollbacks_in_a_row=count, action=action)
