"""What a case sends: the same JSON as ever, read by a campaign and by what collects results."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import PROPERTY, CaseResult, Collector, ExpectedCase
from pytest_kopt.honesty.finding import CONSEQUENCES
from pytest_kopt.session.supervisor import Supervisor

#: As they were written while evidence was a dict of any keys.
WRITTEN = Path(__file__).with_name("results_of_0_1.jsonl").read_text().splitlines()

#: Times of calls with known and with fresh tensors: every timed call gets fresh ones now.
GONE = ("reuse_log_ratios",)


def known(value: Any) -> Any:
    """Return a document without the keys that hold null, and those that no version writes now."""
    if isinstance(value, dict):
        return {
            name: known(item)
            for name, item in value.items()
            if item is not None and name not in GONE
        }
    return value


@pytest.mark.parametrize("text", WRITTEN)
def test_what_was_written_reads_and_is_written_again_as_it_was(text: str) -> None:
    document = json.loads(text)
    again = json.loads(CaseResult.from_json(text).to_json())
    assert list(again) == list(document)
    # No training is simulated any more, and what it found has no name.
    document["evidence"].pop("training", None)
    document["evidence"] = known(document["evidence"])
    if conditions := document["evidence"].get("conditions"):
        # A clock that moved is a figure now, which the readings hold.
        flags = (flag for flag in conditions["flags"] if not flag.startswith("clock drifted"))
        conditions["flags"] = [*flags]
    document["findings"] = [f for f in document["findings"] if f["check"] in CONSEQUENCES]
    for finding in document["findings"]:
        # The class of a gain is a word of the notes now.
        del finding["bucket"]
    for finding in again["findings"]:
        # Nothing had details then.
        assert finding.pop("details") == []
    # NaN equals nothing.
    assert json.dumps(again, sort_keys=True) == json.dumps(document, sort_keys=True)


def test_every_key_of_evidence_is_among_what_was_written() -> None:
    """A new field needs no entry here; one that was renamed fails."""
    names = {name for text in WRITTEN for name in json.loads(text)["evidence"]}
    assert names - {"training"} <= {field.name for field in fields(CaseEvidence)}


def test_what_another_version_knew_is_left_out() -> None:
    document = json.loads(WRITTEN[0])
    document["evidence"]["of_another_version"] = [1]
    document["findings"] = [{"check": "of-another-version", "message": "m"}]
    assert CaseResult.from_json(json.dumps(document)) == CaseResult.from_json(WRITTEN[0])


@pytest.mark.parametrize(
    "text", ["[]", '{"v": 2}', '{"v": 1}', '{"v": 1, "nodeid": "a", "evidence": {"device": [1]}}']
)
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"CaseResult|another version"):
        CaseResult.from_json(text)


CASE = "test_x.py::test_x"


def row(check: str, diagnosis: str) -> tuple[str, object]:
    document = json.loads(CaseResult(CASE).to_json())
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
            CASE, ("test_x.py", 1, "test_x"), {}, "passed", None, "call",
            user_properties=properties,
        )  # fmt: skip
        collector.add_report(report)
    assert not collector.refusals()
    assert collector.results[CASE].diagnosis == told


def test_refusals_come_in_declaration_order() -> None:
    collector = Collector()
    collector.collected(["t.py::test[2]", "t.py::test[4]"])
    for number in (4, 2):
        refused = CaseResult(f"t.py::test[{number}]", refusal=f"case {number}: x is odd")
        report = pytest.TestReport(
            CASE, ("test_x.py", 1, "test_x"), {}, "passed", None, "call",
            user_properties=[(PROPERTY, refused.to_json())],
        )  # fmt: skip
        collector.add_report(report)
    assert collector.refusals() == ["case 2: x is odd", "case 4: x is odd"]


class Hooks:
    """Hands reports on to a collector as xdist does, through JSON."""

    def __init__(self) -> None:
        self.collector = Collector()

    def pytest_report_from_serializable(self, config: object, data: dict[str, Any]) -> Any:
        return pytest.TestReport(**data)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.collector.add_report(pytest.TestReport._from_json(sent(report)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.collector.add_collect_error(pytest.CollectReport._from_json(sent(report)))


def sent(report: pytest.TestReport | pytest.CollectReport) -> dict[str, object]:
    document: dict[str, object] = json.loads(json.dumps(report._to_json()))
    return document


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
def replay(hooks: Hooks) -> Supervisor:
    config: Any = SimpleNamespace(hook=hooks)
    measurements = SimpleNamespace(checker=None)
    controller: Any = SimpleNamespace(measurements=measurements)
    replay = Supervisor(config, controller)
    result = CaseResult.failed(CASE, ExpectedCase(CASE, "x", ("label", "Check"), {}), "")
    replay.collector.declared(result.to_json())
    return replay


REPORT: dict[str, Any] = {
    "nodeid": CASE, "location": ("test_x.py", 1, "test_x"), "keywords": {}, "outcome": "passed",
    "longrepr": None, "when": "call",
}  # fmt: skip


def test_a_case_whose_second_run_goes_through_was_lost_once(
    hooks: Hooks, replay: Supervisor
) -> None:
    """Whatever its first run has sent, the second one's row stands."""
    replay.report({**REPORT, "user_properties": [row("FAIL", "first")]})
    replay.died(CASE, "by SIGKILL\nand more", 1)
    for when in ("setup", "call"):
        replay.report({**REPORT, "when": when, "user_properties": [row("PASS", "second")]})
    collector = hooks.collector
    assert collector.lost == collector.lost_after_all() == [f"{CASE}: by SIGKILL"]
    assert collector.results[CASE].diagnosis == "second" and not collector.dead


def test_a_case_that_ends_its_process_twice_gets_the_row_that_it_declared(
    hooks: Hooks, replay: Supervisor
) -> None:
    replay.report({**REPORT, "user_properties": [row("PASS", "first")]})
    for times in (1, 2):
        replay.died(CASE, "by SIGSEGV\nand more", times)
    collector = hooks.collector
    assert collector.dead == {CASE: "by SIGSEGV\nand more"} and not collector.lost_after_all()
    assert collector.results[CASE].check == "ERROR"
    assert collector.results[CASE].diagnosis == "by SIGSEGV\nand more"


def test_processes_that_could_not_collect_are_told_of(hooks: Hooks, replay: Supervisor) -> None:
    replay.died(None, "an import", 1)
    assert not hooks.collector.collect_errors
    replay.died(None, "an import", 2)
    assert hooks.collector.startup_death == "an import"
    assert hooks.collector.collect_errors == {"": "no case could be collected: an import"}
