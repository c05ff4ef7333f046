"""Rows of a case whose test a plugin runs again, as they reach the deciding process."""

from __future__ import annotations

import json

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.result import PROPERTY, CaseResult


def row(check: str, diagnosis: str) -> tuple[str, object]:
    document = json.loads(CaseResult("test_x.py::test_x").to_json())
    return PROPERTY, json.dumps({**document, "check": check, "diagnosis": diagnosis})


@pytest.mark.parametrize(
    ("checks", "told"),
    [
        (("PASS", "PASS"), "1"),
        (("PASS", "FAIL"), "1"),
        (("FAIL", "PASS"), "0"),
        (("ERROR", "FAIL", "PASS"), "0"),
    ],
)
def test_a_later_row_replaces_a_pass_and_no_failure(checks: tuple[str, ...], told: str) -> None:
    collector, properties = Collector(), []
    for number, check in enumerate(checks):
        # A second run of a test adds to the properties of the first.
        properties.append(row(check, str(number)))
        report = pytest.TestReport(
            "test_x.py::test_x", ("test_x.py", 1, "test_x"), {}, "passed", None, "call",
            user_properties=properties,
        )  # fmt: skip
        collector.add_report(report)
    assert not collector.refusals
    assert collector.results["test_x.py::test_x"].diagnosis == told
