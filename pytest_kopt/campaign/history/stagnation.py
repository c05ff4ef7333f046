"""What roll-backs in a row ask for: a change of direction, never a stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_kopt.campaign.state import Round

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


@dataclass(frozen=True, slots=True)
class Review:
    """The stagnation review that is due: after how many roll-backs, and what it starts with."""

    rollbacks_in_a_row: int
    action: str


def rollbacks_in_a_row(rounds: Sequence[Round]) -> int:
    """Return how many of the last of these decided rounds kept nothing."""
    count = 0
    for item in reversed(rounds):
        if item.verdict is None or item.verdict.decision.keeps:
            break
        count += 1
    return count


def review(rounds: Sequence[Round]) -> Review | None:
    """Return the review that these decided rounds ask for, None before the second roll-back."""
    count = rollbacks_in_a_row(rounds)
    if count < _REVIEW_AFTER:
        return None
    return Review(count, _LADDER[min(count - _REVIEW_AFTER, len(_LADDER) - 1)])
