"""What a session says before anything is compared."""

from __future__ import annotations

import math

import pytest

from pytest_kopt import policies
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.decide.hard_gates import unchanged
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.schema.columns import MEMORY
from pytest_kopt.trials.judging import cut_off, findings_of, flagged, overfit, refuse

CASES = ["test_k.py::test_r[2]", "test_k.py::test_r[1]"]


def test_a_reason_that_cases_share_is_said_once() -> None:
    refusals = [f"case t.py::test[{i}]: x is odd. Fix: double it" for i in range(3)]
    with pytest.raises(BadInput) as refused:
        refuse([*refusals, "a worker sent noise"])
    text = "case t.py::test[0]: x is odd. Fix: double it (as in 2 more); a worker sent noise"
    assert str(refused.value) == text


def test_skipped_cases_are_named_where_no_other_is_left() -> None:
    collector = Collector(order=CASES, skipped={*CASES})
    verdict = cut_off(collector, None, "", policies.load("primus"))
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
    verdict = unchanged(policies.load("primus"), "the same code")
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
    verdict = overfit(results, found, policies.load("primus"))
    assert verdict.reason == "what it gains is not real: output-shared"
    assert verdict.flags == [
        "output-shared: two calls returned the same memory (2 cases). Fix: compute anew"
    ]
    assert [named.where for named in verdict.findings] == ["t.py::test[1]", "t.py::test[2]"]


def test_a_long_list_of_cases_ends_with_their_number() -> None:
    found = [
        Finding("late-result", f"{place} %", where=f"t.py::test[{place}]") for place in range(9)
    ]
    verdict = overfit((), found, policies.load("primus"))
    heading, *listed = verdict.flags[0].splitlines()
    assert heading == "late-result: in 9 cases"
    assert listed == [*(f"- test[{place}]: {place} %" for place in range(5)), "- and 4 more"]
