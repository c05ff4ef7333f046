from __future__ import annotations

import pytest

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.ledger import AnyEvent
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import CampaignState, chain_breaks, fold
from pytest_kopt.decide.verdict import Aggregate, Decision
from pytest_kopt.errors import BadInput
from tests.builders import NOW, attempt_events, decided

BASELINE = attempt_events(1, Decision.BASELINE)
OPEN = [Decision.REPAIR, Decision.INCOMPLETE]
KEEPING = [Decision.BASELINE, Decision.ACCEPTED, Decision.ACCEPTED_WITH_NOTE]
REJECTING = [
    Decision.ROLLED_BACK,
    Decision.INCONCLUSIVE,
    Decision.SPLIT,
    Decision.REJECTED_OVERFIT,
]


def after(*decisions: Decision) -> CampaignState:
    """Return the state after a baseline and one closed round for each decision."""
    events = list(BASELINE)
    for i, decision in enumerate(decisions):
        events += attempt_events(i + 2, decision)
    return fold(events)


def attempts(round: int, *decisions: Decision) -> list[AnyEvent]:
    """Return the events of several attempts at one round."""
    found: list[AnyEvent] = []
    for i, decision in enumerate(decisions):
        found += attempt_events(round, decision, attempt=i + 1)
    return found


def refusal_of(state: CampaignState, asked: int | str) -> str:
    with pytest.raises(BadInput) as refusal:
        state.check_round(asked)
    return str(refusal.value)


def test_a_new_campaign_begins_with_round_1_the_baseline() -> None:
    state = fold([])
    assert (state.next_round, state.baseline, state.incumbent) == (1, None, None)
    assert state.check_round("next") == state.check_round(1) == 1


def test_without_a_baseline_there_is_no_second_round() -> None:
    assert "round 2 has no baseline yet" in refusal_of(fold([]), 2)
    assert "no baseline yet" in refusal_of(fold(attempts(1, Decision.INCOMPLETE)), 2)


def test_the_baseline_is_the_first_incumbent() -> None:
    state = fold(BASELINE)
    assert state.incumbent_round == 1
    assert state.baseline is state.rounds[1]
    assert state.check_round("next") == state.check_round(2) == 2


def test_a_first_round_that_was_rejected_is_no_baseline() -> None:
    state = fold(attempts(1, Decision.REJECTED_OVERFIT))
    assert state.baseline is None
    assert state.incumbent is None


@pytest.mark.parametrize("decision", KEEPING[1:])
def test_a_round_that_keeps_its_candidate_makes_it_the_incumbent(decision: Decision) -> None:
    state = after(decision)
    assert state.incumbent_round == 2
    assert state.incumbent is state.rounds[2].last


@pytest.mark.parametrize("decision", REJECTING)
def test_a_round_that_rejects_its_candidate_keeps_its_number_and_the_incumbent(
    decision: Decision,
) -> None:
    state = after(decision)
    assert state.incumbent_round == 1
    assert state.next_round == 3


def test_after_several_roll_backs_the_incumbent_is_the_last_accepted_round() -> None:
    state = after(Decision.ACCEPTED, Decision.ROLLED_BACK, Decision.INCONCLUSIVE)
    assert state.incumbent_round == 2
    assert state.next_round == 5
    later = after(Decision.ACCEPTED, Decision.ROLLED_BACK, Decision.ACCEPTED_WITH_NOTE)
    assert later.incumbent_round == 4


@pytest.mark.parametrize("decision", OPEN)
def test_next_is_the_open_round_where_there_is_one(decision: Decision) -> None:
    state = fold([*BASELINE, *attempts(2, decision)])
    assert state.rounds[2].is_open
    assert state.check_round("next") == state.check_round(2) == 2
    assert "round 3 would skip round 2" in refusal_of(state, 3)


def test_a_round_that_was_cut_off_before_its_verdict_is_open() -> None:
    state = fold([*BASELINE, ledger.Opened(time=NOW, round=2, attempt=1)])
    assert state.rounds[2].is_open
    assert state.next_round == 2
    assert state.incumbent_round == 1


def test_every_run_of_an_open_round_is_an_attempt() -> None:
    runs = attempts(2, Decision.INCOMPLETE, Decision.REPAIR, Decision.ACCEPTED)
    item = fold([*BASELINE, *runs]).rounds[2]
    assert list(item.attempts) == [1, 2, 3]
    assert item.last.number == 3
    assert item.verdict is not None and item.verdict.decision is Decision.ACCEPTED
    assert not item.is_open


def test_versions_that_failed_are_counted_and_incomplete_runs_are_not() -> None:
    """Run again unchanged, a version is still one."""
    runs = attempts(2, Decision.REPAIR, Decision.INCOMPLETE, Decision.REPAIR)
    assert fold([*BASELINE, *runs]).rounds[2].failed_checks() == 1
    other = decided(2, Decision.REPAIR, attempt=4).model_copy(update={"kernel": {"a.py": "1"}})
    state = fold([*BASELINE, *runs, other, *attempts(3, Decision.INCOMPLETE)])
    assert state.rounds[2].failed_checks() == 2
    assert state.rounds[2].failed_checks({"a.py": "1"}) == 1
    assert state.rounds[3].failed_checks() == 0


def test_a_decided_round_is_not_run_again_and_its_decision_is_told() -> None:
    state = after(Decision.ACCEPTED)
    message = refusal_of(state, 2)
    assert "round 2 is already decided (ACCEPTED)" in message
    assert "allowed: 3 (or next)" in message
    assert "round 1 is already decided (BASELINE)" in refusal_of(state, 1)


def test_a_skipped_number_is_refused_with_the_one_that_is_due() -> None:
    message = refusal_of(after(Decision.ACCEPTED), 5)
    assert "round 5 would skip round 3" in message
    assert "allowed: 3 (or next)" in message


def test_a_decision_is_pending_until_it_was_carried_out() -> None:
    *before, _, _ = attempt_events(2, Decision.ROLLED_BACK)
    place = {"time": NOW, "round": 2, "attempt": 1}
    cut_off = [*BASELINE, *before]
    pending = fold(cut_off).pending
    assert pending is not None
    assert (pending.round, pending.number) == (2, 1)
    applying = ledger.Applying.model_validate({**place, "action": "restore"})
    assert fold([*cut_off, applying]).pending is not None
    applied = ledger.Applied.model_validate(place)
    assert fold([*cut_off, applying, applied]).pending is None
    waived = ledger.ApplyWaived.model_validate(place)
    assert fold([*cut_off, waived]).pending is None


@pytest.mark.parametrize("decision", OPEN)
def test_an_open_round_has_nothing_to_carry_out(decision: Decision) -> None:
    assert fold([*BASELINE, *attempts(2, decision)]).pending is None


def test_what_carrying_out_did_is_kept_with_the_attempt() -> None:
    done = fold(BASELINE).rounds[1].last
    assert done.applied is not None
    assert done.applied.git_commit == "3" * 40
    assert done.hashes == {"rounds/round-1/evidence.json": "2" * 64}
    assert done.started == NOW


def test_notes_of_a_round_add_up_in_the_order_they_came() -> None:
    state = fold(
        [
            *BASELINE,
            decided(2, Decision.REPAIR, notes=Notes(hypothesis="h", summary="first")),
            decided(2, Decision.ACCEPTED, attempt=2, notes=Notes(summary="second")),
            ledger.Note(time=NOW, round=2, notes=Notes(lesson="late")),
        ]
    )
    assert state.rounds[2].notes == Notes(hypothesis="h", summary="second", lesson="late")


def test_decided_rounds_come_in_their_order_without_the_open_one() -> None:
    state = fold([*BASELINE, *attempts(2, Decision.ROLLED_BACK), *attempts(3, Decision.REPAIR)])
    assert [item.number for item in state.decided_rounds()] == [1, 2]


def test_folding_counts_every_event() -> None:
    assert fold(BASELINE).events == len(BASELINE)


@pytest.mark.parametrize(("change_pct", "broken"), [(-1.0, False), (-1.01, True), (3.0, False)])
def test_an_accepted_round_that_fell_beyond_the_noise_breaks_the_chain(
    change_pct: float, broken: bool
) -> None:
    state = after(Decision.ACCEPTED)
    verdict = state.rounds[2].verdict
    assert verdict is not None
    total = Aggregate(metric="Forward TFLOPS", change_pct=change_pct)
    state.rounds[2].last.decided = verdict.model_copy(update={"aggregate": total})
    found = chain_breaks(state, noise_pct=1.0)
    assert [text[:7] for text in found] == (["round 2"] if broken else [])


def final(decision: Decision) -> ledger.Final:
    return ledger.Final(time=NOW, best=2, decision=decision, reason="r", evidence={})
