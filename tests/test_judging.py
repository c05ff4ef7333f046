"""What a session says before anything is compared."""

from __future__ import annotations

from pytest_kopt import policies
from pytest_kopt.cases.result import Collector
from pytest_kopt.trials.judging import cut_off

CASES = ["test_k.py::test_r[2]", "test_k.py::test_r[1]"]


def test_skipped_cases_are_named_where_no_other_is_left() -> None:
    collector = Collector(order=CASES, skipped={*CASES})
    verdict = cut_off(collector, None, "", policies.load("primus"))
    assert verdict is not None and verdict.reason == (
        "no case has a row; 2 skipped: test_k.py::test_r[1], test_k.py::test_r[2]"
    )
