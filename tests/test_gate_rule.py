"""What the gate of a pull request asks: a change may be slower, by less than the shape gate."""

from __future__ import annotations

from typing import Literal

import pytest

from pytest_kopt import policies
from pytest_kopt.decide.conclusion import Answer, VersionFacts, settled, with_untimed, without
from pytest_kopt.decide.grounds import Ground, Observation, checked_shape
from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS
from pytest_kopt.decide.known_noise import DEVICE_TIMED, Noise
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.verdict import Decision, Verdict
from tests.builders import gemm_row, paired_evidence

PRIMUS = policies.load("primus")


def judged(
    gate: Literal["improve", "no-regression"], look: int, *changes: float, spread: float = 0.05
) -> Verdict | None:
    """Judge cases that changed by so many percent, give or take `spread`, on a GPU."""
    noise = Noise((), DEVICE_TIMED)
    evidence = paired_evidence(*changes, look=look, spread=spread, gate=gate, noise=noise)
    return decide(evidence, PRIMUS)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(
    ("changes", "code", "improve"),
    [
        ((0.0, 0.0), 0, 9),
        ((2.0, 3.0), 0, 0),
        ((-3.0, -2.0), 0, 8),
        ((-3.0, 9.0), 0, 0),
        ((-9.0, 9.0), 8, 8),
        ((-9.0, -9.0), 8, 8),
    ],
)
def test_a_change_may_be_slower_by_less_than_the_gate(
    look: int, changes: tuple[float, ...], code: int, improve: int
) -> None:
    for gate, expected in (("no-regression", code), ("improve", improve)):
        verdict = judged(gate, look, *changes)  # type: ignore[arg-type]
        assert verdict is not None and verdict.exit_code == expected, (gate, verdict)
        if expected == 0:
            noted = verdict.decision == "ACCEPTED_WITH_NOTE"
            assert noted == any(change < 0 for change in changes)
            said = "less than the regression limit" in verdict.reason
            assert said == (noted and gate == "improve")


def test_the_slowest_case_is_named() -> None:
    verdict = judged("no-regression", FINAL_LOOK, -9.0, -12.0, 5.0)
    assert verdict is not None and verdict.decision is Decision.ROLLED_BACK
    assert "case 'case1' is slower: -12.0 %, beyond" in verdict.reason, verdict.reason


def test_what_could_be_slower_by_more_is_not_let_through() -> None:
    """Undecided at first; in the end slower where that is shown, else not decided."""
    assert judged("no-regression", 4, 0.0, spread=4.0) is None
    for change, code in ((0.0, 9), (-4.9, 8)):
        verdict = judged("no-regression", FINAL_LOOK, change, spread=2.5 if change else 8.0)
        assert verdict is not None and verdict.exit_code == code
        said = "5 % more time (-4.76 %) in case 'case0' cannot be excluded: "
        assert (said in verdict.reason) == (code == 9)


def test_a_case_is_called_regressed_where_its_interval_lies_beyond_the_gate() -> None:
    """Also at a look whose level does not roll back for that case alone."""
    for change, status in ((-9.0, "regressed"), (-6.0, "unchanged")):
        verdict = judged("improve", FINAL_LOOK, change, *[0.0] * 30, spread=3.0)
        assert verdict is not None
        assert verdict.decision == "INCONCLUSIVE"
        assert verdict.shapes[0].status == status, verdict.shapes[0]
        assert verdict.next_step == "case0 got slower: try another hypothesis"


def test_an_undecided_gain_names_the_case_that_stands_in_its_way() -> None:
    """It said "not shown to be slower", below an interval of -6.05 % [-7.01, -5.08]."""
    verdict = judged("improve", FINAL_LOOK, -6.0, 9.0, 9.0, spread=2.5)
    assert verdict is not None and verdict.decision == "INCONCLUSIVE"
    assert "5 % more time (-4.76 %) in case 'case0' cannot be excluded: -6" in verdict.reason
    kept = "keep the gain for the cases that have it, or try another hypothesis"
    assert verdict.next_step == f"case0 got slower: {kept}"
    noise = judged("improve", FINAL_LOOK, 0.0, 0.0, spread=8.0)
    assert noise is not None and noise.next_step == (
        "the change is too small to measure: try one with a larger effect"
    )


def test_the_gate_says_what_it_excludes() -> None:
    verdict = judged("no-regression", FINAL_LOOK, 1.0, 0.0)
    assert verdict is not None
    assert verdict.reason.startswith("no case is slower by 5 % or more, at 99.7 %; step speed ")


def test_a_renamed_case_is_named_by_both_names() -> None:
    kept = judged("no-regression", FINAL_LOOK, 2.0)
    assert kept is not None and kept.decision.keeps
    refused = without(["t.py::test_old"], ["t.py::test_new"], kept)
    assert (refused.decision, refused.removed) == (Decision.ROLLED_BACK, ["t.py::test_old"])
    assert "new name (t.py::test_new)" in refused.next_step
    assert "new name" not in without(["t.py::test_old"], [], kept).next_step
    assert without([], ["t.py::test_new"], kept) == kept


@pytest.mark.parametrize("decision", Decision)
def test_a_change_that_lacks_cases_is_refused_unless_it_is_worse_as_it_is(
    decision: Decision,
) -> None:
    kept = judged("no-regression", FINAL_LOOK, 2.0)
    assert kept is not None
    before = kept.model_copy(update={"decision": decision})
    after = without(["t.py::test_old"], [], before)
    if decision.keeps or decision is Decision.INCONCLUSIVE:
        assert (after.decision, after.removed) == (Decision.ROLLED_BACK, ["t.py::test_old"])
    else:
        assert after == before


def test_a_gate_is_surer_that_a_case_is_not_slower_than_a_round() -> None:
    """A case of -2 % whose bound at 97.5 % is within the gate of 5 %, and at 99.7 % beyond it."""
    own = judged("no-regression", FINAL_LOOK, -2.0, spread=2.8)
    assert own is not None and own.exit_code == 9
    assert "5 % more time (-4.76 %) in case 'case0' cannot be excluded: " in own.reason
    assert own.reason.endswith("] at 99.4 %"), own.reason
    beside_a_gain = judged("improve", FINAL_LOOK, -2.0, *[9.0] * 8, spread=2.8)
    assert beside_a_gain is not None and beside_a_gain.exit_code == 0


@pytest.mark.parametrize(
    ("facts", "decision", "words"),
    [
        (VersionFacts(), "ACCEPTED", ""),
        (VersionFacts(doubt="the copy gains too"), "INCONCLUSIVE", "; but the copy gains too"),
        (
            VersionFacts(narrower="held-out-shape"),
            "ACCEPTED_WITH_NOTE",
            "less than the other version: ",
        ),
        (VersionFacts(failed_before="round 2 failed"), "REPAIR", "but round 2 failed: a cache"),
        (
            VersionFacts(
                failed_before="round 2 failed", root_cause="a stale build", narrower="nan"
            ),
            "ACCEPTED_WITH_NOTE",
            "and the notes say why: a stale build; it supports less than the other version: nan",
        ),
        (VersionFacts(doubt="noise", failed_before="round 2 failed"), "INCONCLUSIVE", "but noise"),
    ],
)
def test_what_else_is_known_decides_on_what_would_be_kept(
    facts: VersionFacts, decision: str, words: str
) -> None:
    kept = judged("improve", FINAL_LOOK, 20.0)
    assert kept is not None and kept.decision is Decision.ACCEPTED
    known = settled(answer_of(kept), facts)
    assert known.decision == decision and words in known.reason, known
    slower = judged("improve", FINAL_LOOK, -20.0)
    assert slower is not None and settled(answer_of(slower), facts) == answer_of(slower)


def answer_of(verdict: Verdict) -> Answer:
    return Answer(verdict.decision, verdict.reason, verdict.next_step)


def test_untimed_cases_decide_nothing() -> None:
    worse = judged("no-regression", FINAL_LOOK, -20.0)
    assert worse is not None
    case = checked_shape(gemm_row(256, 100.0))
    why = Observation(Ground.INTERPRETED, "an interpreter ran them", "use a GPU")
    for timed in (worse, None):
        verdict = with_untimed(timed, [case], PRIMUS, why)
        assert (verdict.decision, verdict.next_step) == (Decision.INCOMPLETE, "use a GPU")
        assert "1 case(s) not judged, case256: an interpreter ran them" in verdict.reason
        assert (f"; of the other cases: {worse.reason}" in verdict.reason) == (timed is worse)
        assert verdict.shapes[-1] == case
    assert with_untimed(worse, [], PRIMUS, why) == worse
