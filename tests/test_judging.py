"""What a session says before anything is compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.decide.grounds import Ground, Observation, by_ground, same_code, unchanged
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.runner import Died
from pytest_kopt.schema.columns import MEMORY
from pytest_kopt.trials import comparing
from pytest_kopt.trials.judging import (
    dishonest,
    fail_rows_of_failed_tests,
    findings_of,
    flagged,
    refuse,
    unfinished,
)
from pytest_kopt.trials.rounds import candidate

CASES = ["test_k.py::test_r[2]", "test_k.py::test_r[1]"]


def test_a_reason_that_cases_share_is_said_once() -> None:
    refusals = [f"case t.py::test[{i}]: x is odd. Fix: double it" for i in range(3)]
    with pytest.raises(BadInput) as refused:
        refuse([*refusals, "a worker sent noise"])
    text = "case t.py::test[0]: x is odd. Fix: double it (as in 2 more); a worker sent noise"
    assert str(refused.value) == text


def test_a_test_that_fails_once_its_case_is_measured_has_no_row_that_passes() -> None:
    """Its own assertion, or a fixture of the project's, may know more than the reference."""
    rows = [CaseResult(name, name, check="PASS", cells={"Time (ms)": 1.0}) for name in CASES]
    collector = Collector(order=CASES, results={row.nodeid: row for row in rows})
    collector.failures[CASES[1]] = "assert leaked == 0"
    fail_rows_of_failed_tests(collector)
    passed, failed = (collector.results[name] for name in CASES)
    assert passed == rows[0]
    assert (failed.check, failed.diagnosis) == ("FAIL", "assert leaked == 0")
    assert math.isnan(failed.cells["Time (ms)"])  # type: ignore[arg-type]


def test_skipped_cases_are_named_where_no_other_is_left() -> None:
    collector = Collector(order=CASES, skipped={*CASES})
    verdict = by_ground(unfinished(collector, None, ""), policies.load("primus"))
    assert verdict is not None and verdict.reason == (
        "no case has a row; 2 skipped: test_k.py::test_r[1], test_k.py::test_r[2]"
    )


def test_what_is_found_in_many_cases_is_one_flag() -> None:
    """A finding with other dB in each case stood there once for each case."""
    advice = "support what the incumbent supports"
    found = [
        Finding("held-out-dtype", f"raises: {place}", where=f"t.py::test[{place}]", advice=advice)
        for place in (1, 2, 3)
    ]
    elsewhere = Finding("harness-import", "asserts", where="kernels/k.py:3")
    verdict = unchanged("the same code").verdict("primus")
    told = flagged(verdict, [*found, found[0], elsewhere, "a word"])
    assert told.flags == [
        "a word",
        "harness-import: asserts (kernels/k.py:3)",
        f"held-out-dtype: in 3 cases. Fix: {advice}\n"
        + "\n".join(f"- test[{place}]: raises: {place}" for place in (1, 2, 3)),
    ]
    assert [named.where for named in told.findings] == [
        *(f"t.py::test[{place}]" for place in (1, 2, 3)),
        "kernels/k.py:3",
    ]


def test_a_finding_that_says_the_same_of_every_case_counts_them() -> None:
    shared = Finding("output-shared", "two calls returned the same memory", advice="compute anew")
    header = MEMORY.header(("n",))
    results = [
        CaseResult(
            nodeid=f"t.py::test[{n}]",
            label=f"n={n}",
            header=header,
            dims={"n": n},
            check="FAIL",
            cells=dict.fromkeys((column.name for column in MEMORY.columns), math.nan),
            findings=(shared,),
        )
        for n in (1, 2)
    ]
    found = findings_of(results)
    observation = dishonest(results, found)
    assert observation is not None
    verdict = observation.verdict("primus")
    assert verdict.reason == "what it gains is not real: output-shared"
    assert verdict.flags == [
        "output-shared: two calls returned the same memory (2 cases). Fix: compute anew"
    ]
    assert [named.where for named in verdict.findings] == ["t.py::test[1]", "t.py::test[2]"]


def test_a_long_list_of_cases_ends_with_their_number() -> None:
    places = range(9)
    found = [Finding("late-result", f"{n} %", where=f"t.py::test[{n}]") for n in places]
    observation = dishonest((), found)
    assert observation is not None
    heading, *listed = observation.verdict("primus").flags[0].splitlines()
    assert heading == "late-result: in 9 cases"
    assert listed == [*(f"- test[{place}]: {place} %" for place in range(5)), "- and 4 more"]


@given(st.lists(st.sampled_from(Ground), min_size=1))
def test_the_first_ground_decides_and_of_one_ground_the_first_observation(
    grounds: list[Ground],
) -> None:
    observed = [Observation(ground, str(place)) for place, ground in enumerate(grounds)]
    verdict = by_ground([None, *observed, None], policies.load("primus"))
    first = next(ground for ground in Ground if ground in grounds)
    assert verdict is not None
    assert (verdict.decision, verdict.reason) == (first.decision, str(grounds.index(first)))
    assert (verdict.next_step, verdict.compare, verdict.policy) == (
        "run it again",
        "none",
        "primus",
    )


def test_without_an_observation_times_decide() -> None:
    assert by_ground([None], policies.load("primus")) is None


@pytest.mark.parametrize(
    ("first", "later", "decision"),
    [
        (Ground.SPOILED, Ground.EDITED, Decision.INCOMPLETE),
        (Ground.EDITED, Ground.MISSING, Decision.REJECTED_OVERFIT),
        (Ground.MISSING, Ground.DISHONEST, Decision.INCOMPLETE),
        (Ground.DISHONEST, Ground.WRONG, Decision.REJECTED_OVERFIT),
        (Ground.WRONG, Ground.INTERPRETED, Decision.REPAIR),
        (Ground.WRONG_AGAIN, Ground.INTERPRETED, Decision.ROLLED_BACK),
        (Ground.INTERPRETED, Ground.UNSOUND, Decision.INCOMPLETE),
        (Ground.WRONG, Ground.NO_FIGURE, Decision.REPAIR),
        (Ground.UNSOUND, Ground.SAME, Decision.INCOMPLETE),
        (Ground.NO_FIGURE, Ground.FIRST, Decision.ROLLED_BACK),
    ],
)
def test_the_order_in_which_a_session_decides(
    first: Ground, later: Ground, decision: Decision
) -> None:
    """What spoils the session comes first, what accuses before what is missing or wrong."""
    observed = [Observation(ground, ground.name) for ground in (later, first)]
    verdict = by_ground(observed, policies.load("primus"))
    assert verdict is not None and (verdict.decision, verdict.reason) == (decision, first.name)


def test_equal_code_is_decided_by_what_is_asked() -> None:
    for observation, decision in (
        (same_code("the same", None, ()), Decision.ROLLED_BACK),
        (same_code("the same", "less code", ()), Decision.ACCEPTED_WITH_NOTE),
        (unchanged("the same"), Decision.ACCEPTED),
        (unchanged("the same", asks_gain=True), Decision.INCONCLUSIVE),
    ):
        assert observation.verdict("primus").decision is decision


def case(place: int) -> CaseResult:
    cells = {column.name: 1.0 for column in MEMORY.columns}
    nodeid, header = f"t.py::test[{place}]", MEMORY.header(("n",))
    return CaseResult(nodeid, f"n={place}", header, {"n": place}, "PASS", cells)  # type: ignore[arg-type]


def test_a_candidate_that_dies_in_a_quick_comparison_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cases that a quick round only checks are not missing then."""
    results = {result.nodeid: result for result in map(case, (1, 2))}

    def dies(comparison: object, cases: Sequence[CaseResult], criteria: object) -> None:
        how = "SIGSEGV\nits stack"
        raise Died(f"it killed its process twice: {how}", how, cases[0].nodeid)

    monkeypatch.setattr(comparing, "compare", dies)
    monkeypatch.setattr(comparing, "_facts", lambda trial: None)
    monkeypatch.setattr(NoiseHistory, "here", lambda *given: None)
    manifest = SimpleNamespace(primary_metric=None, core_shapes="all", classes=())
    trial: Any = object.__new__(candidate.CandidateRound)
    vars(trial).update(
        settings=SimpleNamespace(compare="paired", workspace=None),
        campaign=SimpleNamespace(
            manifest=manifest,
            state=SimpleNamespace(rounds={}),
            incumbent=lambda: SimpleNamespace(sources={}),
        ),
        policy=policies.load("primus"),
        watch=SimpleNamespace(check_dependencies=lambda harness: None),
        round_notes=Notes(),
        number=2,
        frozen=dict.fromkeys(results),
        representative=(*results,)[:1],
        level="quick",
        raced=(),
        kernel=SimpleNamespace(hashes={}, files={}),
        trees=SimpleNamespace(having=lambda old: None),
        collector=Collector(order=[*results], results=results),
        measurements=SimpleNamespace(compare=lambda ids, versions, phase: nullcontext()),
        interrupted="",
        edits=(),
        harness_to_record=None,
    )
    verdict, paired, detail = candidate._judge(trial, [])
    assert (verdict.decision, paired) == (Decision.REPAIR, None)
    assert verdict.reason == "1 of 1 case(s) are ERROR: n=1"
    assert detail.endswith("its stack")
