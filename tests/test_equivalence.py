"""A paired version that is equal in speed is kept for a stated benefit, where equality is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.decide.case_verdict import Memory, is_of_memory
from pytest_kopt.decide.conclusion import VersionFacts
from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS, log_ratio
from pytest_kopt.decide.known_noise import DEVICE_TIMED, Noise
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.series import Series, SeriesTable
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.schema.table import Classes
from tests.builders import by_metrics, few_examples, paired_evidence, series_table

PRIMUS, KERNEL_OPT = policies.load("primus"), policies.load("kernel-opt")
KNOWN = Noise((), DEVICE_TIMED)
BENEFIT = "half the lines"


def evidence_of(
    *changes: float, look: int = FINAL_LOOK, spread: float = 0.05, **more: Any
) -> SeriesTable:
    return paired_evidence(*changes, look=look, spread=spread, metric="Forward TFLOPS", **more)


def judged(evidence: SeriesTable, benefit: str | None = BENEFIT) -> Verdict:
    verdict = decide(evidence, PRIMUS, VersionFacts(benefit or ""))
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("look", LOOKS)
def test_equal_and_a_benefit_is_kept_with_both_named(look: int) -> None:
    evidence = evidence_of(0.0, 0.0, look=look, noise=KNOWN)
    assert judged(evidence, None).decision is Decision.INCONCLUSIVE
    verdict = judged(evidence)
    assert (verdict.decision, verdict.exit_code) == (Decision.ACCEPTED_WITH_NOTE, 0)
    assert f"kept for its extra benefit (stated, not measured): {BENEFIT}" in verdict.reason
    total = verdict.aggregate
    assert total is not None and total.low_pct is not None and total.high_pct is not None
    assert total.confidence == pytest.approx(1 - 2 * LOOKS[look])
    assert f"equal within 2 %: {total.change_pct:+.2f} % [{total.low_pct:+.2f}" in verdict.reason
    assert -2 < total.low_pct < total.high_pct < 2


MIB = 1 << 20


@pytest.mark.parametrize(
    ("taken", "known"),
    [
        ([(64, 32), (8, 8), None], "(measured: 64 -> 32 MiB in the case that differs most)"),
        ([None, None, None], "(stated, not measured)"),
        (
            [(64, 64), (8, 8), None],
            "the notes claim less memory, but a call takes as much or more: ",
        ),
        (
            [(64, 32), (8, 9), None],
            "the notes claim less memory, but a call takes as much or more: 8",
        ),
    ],
    ids=["less", "not measured", "the same", "more in one case"],
)
def test_a_benefit_of_memory_is_measured_or_refused(
    taken: list[tuple[int, int] | None], known: str
) -> None:
    evidence = evidence_of(*[0.0] * len(taken), noise=KNOWN)
    cases = [
        replace(
            case,
            memory=both and Memory(incumbent_bytes=both[0] * MIB, candidate_bytes=both[1] * MIB),
        )
        for case, both in zip(evidence.series, taken, strict=True)
    ]
    verdict = judged(replace(evidence, series=tuple(cases)), "half the memory")
    assert known in verdict.reason
    assert verdict.decision.keeps == ("as much or more" not in verdict.reason)


def test_shared_memory_is_in_no_allocator() -> None:
    assert is_of_memory("Half the MEMORY") and not is_of_memory("half the shared memory")


def test_the_whole_interval_has_to_lie_inside_the_policys_noise() -> None:
    """A mean of zero is not enough, and `kernel-opt` asks for less than `primus` does."""
    assert judged(evidence_of(0.0, spread=4.0)).decision is Decision.INCONCLUSIVE
    near = evidence_of(0.0, spread=0.9)
    assert judged(near).decision is Decision.ACCEPTED_WITH_NOTE
    strict = decide(near, KERNEL_OPT, VersionFacts(BENEFIT))
    assert strict is not None and strict.decision is Decision.INCONCLUSIVE


def test_what_may_yet_be_shown_equal_is_measured_to_the_end() -> None:
    """Without a benefit it is futile to go on: there is no gain in sight."""
    early = evidence_of(0.0, look=4, spread=0.9)
    assert judged(early, None).decision is Decision.INCONCLUSIVE
    assert decide(early, PRIMUS, VersionFacts(BENEFIT)) is None


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ((1.0, 1.0), Decision.ACCEPTED),
        ((-1.0, -1.0), Decision.ROLLED_BACK),
        ((-7.0, 7.6), Decision.ROLLED_BACK),
        ((-3.0, 3.1), Decision.ACCEPTED_WITH_NOTE),
    ],
)
def test_a_benefit_changes_nothing_else(changes: tuple[float, ...], decision: Decision) -> None:
    evidence = evidence_of(*changes)
    assert judged(evidence).decision is decision
    if decision is not Decision.ACCEPTED_WITH_NOTE:
        assert judged(evidence) == judged(evidence, None)


def test_a_case_that_may_be_beyond_the_gate_is_not_kept() -> None:
    steady, wild = evidence_of(0.0).series[0], evidence_of(0.0, spread=7.0).series[0]
    wild = replace(wild, name="wild")
    opposite = replace(wild, name="opposite", new=tuple(-ratio for ratio in wild.new))
    evidence = replace(evidence_of(), series=(steady, wild, opposite))
    verdict = judged(evidence)
    assert verdict.decision is Decision.INCONCLUSIVE
    assert "5 % more time (-4.76 %) in case" in verdict.reason
    harmless = [replace(case, core=case is steady) for case in evidence.series]
    kept = judged(replace(evidence, series=tuple(harmless)))
    assert kept.decision is Decision.ACCEPTED_WITH_NOTE


def test_a_round_about_one_class_has_to_be_equal_as_a_whole_too() -> None:
    """The class is equal, but the aggregate's interval is wider than the noise."""
    steady, wild = evidence_of(0.0).series[0], evidence_of(0.0, spread=7.0).series[0]
    wild = replace(wild, name="other", dims={"M": 1}, core=False)
    evidence = replace(evidence_of(), series=(steady, wild), classes=Classes(("M",), "M=0"))
    assert judged(evidence).decision is Decision.INCONCLUSIVE
    verdict = judged(evidence_of(0.0, 0.0, classes=Classes(("M",), "M=0")))
    assert verdict.decision.keeps
    levels = [one.confidence for one in verdict.classes]
    assert levels == [pytest.approx(1 - 2 * LOOKS[FINAL_LOOK]), pytest.approx(0.95)]


def test_of_several_metrics_all_are_equal_or_one_improves() -> None:
    equal, unclear, better = evidence_of(0.0), evidence_of(0.0, spread=4.0), evidence_of(3.0)
    for metrics, decision in (
        ([equal, equal], Decision.ACCEPTED_WITH_NOTE),
        ([equal, unclear], Decision.INCONCLUSIVE),
        ([better, unclear], Decision.ACCEPTED),
    ):
        verdict = decide(by_metrics(*metrics), PRIMUS, VersionFacts(BENEFIT))
        assert verdict is not None and verdict.decision is decision
        assert len(verdict.secondary) == 1


@given(
    st.lists(st.lists(st.floats(-3, 3), min_size=4, max_size=4), min_size=1, max_size=3),
    st.sampled_from([PRIMUS, KERNEL_OPT]),
)
@few_examples
def test_a_benefit_only_ever_keeps_what_is_inside_the_band(
    changes: list[list[float]], policy: Policy
) -> None:
    cases = tuple(
        Series(f"c{i}", f"c{i}", {"M": i}, tuple(map(log_ratio, found)))
        for i, found in enumerate(changes)
    )
    evidence = series_table(cases, "Forward TFLOPS")
    without, verdict = (decide(evidence, policy, VersionFacts(text)) for text in (" \n", BENEFIT))
    if verdict is None or verdict == without:
        return
    assert without is None or without.decision is Decision.INCONCLUSIVE
    assert verdict.decision is Decision.ACCEPTED_WITH_NOTE
    total = verdict.aggregate
    assert total is not None and total.low_pct is not None and total.high_pct is not None
    limit = -100 * (1 - 1 / (1 + policy.noise_pct / 100))
    assert limit < total.low_pct <= 0 <= total.high_pct < policy.noise_pct
    assert all((shape.low_pct or 0) > -policy.shape_gate_pct for shape in verdict.shapes)
