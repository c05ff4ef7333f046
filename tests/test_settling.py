"""The step that a decided attempt asks of git and the tree."""

from __future__ import annotations

import pytest

from pytest_kopt.campaign.campaign import Step, plan
from pytest_kopt.campaign.state import fold
from pytest_kopt.decide.verdict import Decision
from tests.builders import attempt_events, decided

BASELINE = attempt_events(1, Decision.BASELINE)
KEPT = attempt_events(2, Decision.ACCEPTED)
FIRST, SECOND = fold([*BASELINE, *KEPT]).rounds.values()


@pytest.mark.parametrize(
    ("decision", "commits", "step"),
    [
        (Decision.ACCEPTED, True, ("commit", SECOND.last)),
        (Decision.ACCEPTED_WITH_NOTE, True, ("commit", SECOND.last)),
        (Decision.ACCEPTED, False, ("none", None)),
        (Decision.ROLLED_BACK, True, ("restore", SECOND.last)),
        (Decision.ROLLED_BACK, False, ("restore", SECOND.last)),
        (Decision.INCONCLUSIVE, True, ("restore", SECOND.last)),
        (Decision.SPLIT, True, ("restore", SECOND.last)),
        (Decision.REJECTED_OVERFIT, True, ("restore", SECOND.last)),
    ],
)
def test_the_step_follows_from_the_decision(decision: Decision, commits: bool, step: Step) -> None:
    state = fold([*BASELINE, *KEPT, decided(3, decision)])
    assert state.pending is not None
    assert plan(state, state.pending, commits=commits) == step


def test_a_baseline_is_in_history_already() -> None:
    state = fold([decided(1, Decision.BASELINE)])
    assert state.pending is not None
    assert plan(state, state.pending, commits=True) == ("none", None)
