"""When a verdict on the representative cases is not enough and all cases have to decide."""

from __future__ import annotations

from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.stored import remeasurements_needed
from pytest_kopt.decide.verdict import Level, Verdict


def asks_for_full(level: Level, verdict: Verdict, policy: Policy) -> bool:
    """Say whether a verdict is a gain, seen at the quick level, that is too small to stand alone.

    A stored gain that waits for its re-measurements is one too: they are made at the full level.
    """
    change = verdict.aggregate.change_pct if verdict.aggregate else None
    if level == "full" or change is None:
        return False
    is_gain = verdict.decision.keeps or remeasurements_needed(verdict, policy) > 0
    return is_gain and policy.below(change, policy.full_below_pct)
