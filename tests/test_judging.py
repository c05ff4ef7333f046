"""What a session says before anything is compared."""

from __future__ import annotations

from pytest_kopt import policies
from pytest_kopt.cases.result import Collector
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.trials.judging import cut_off, flagged, uncompared

CASES = ["test_k.py::test_r[2]", "test_k.py::test_r[1]"]


def test_skipped_cases_are_named_where_no_other_is_left() -> None:
    collector = Collector(order=CASES, skipped={*CASES})
    verdict = cut_off(collector, None, "", policies.load("primus"))
    assert verdict is not None and verdict.reason == (
        "no case has a row; 2 skipped: test_k.py::test_r[1], test_k.py::test_r[2]"
    )


def test_what_is_found_in_many_cases_is_one_flag() -> None:
    """A torch error of six lines stood there once for each case."""
    advice = "support what the incumbent supports"
    found = [
        Finding("held-out-dtype", f"raises: {place}", where=f"t.py::test[{place}]", advice=advice)
        for place in (1, 2, 3)
    ]
    elsewhere = Finding("divisible-shapes", "asserts", where="kernels/k.py:3")
    verdict = uncompared((), policies.load("primus"), Decision.ACCEPTED, "faster")
    told = flagged(verdict, [*found, found[0], elsewhere, "a word"])
    assert told.flags == [
        "a word",
        "divisible-shapes: asserts (kernels/k.py:3)",
        f"held-out-dtype: raises: 1 (t.py::test[1] and 2 more cases). Fix: {advice}",
    ]
    assert [named.where for named in told.findings] == [
        *(f"t.py::test[{place}]" for place in (1, 2, 3)),
        "kernels/k.py:3",
    ]
