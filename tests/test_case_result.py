"""What a case sends and a campaign keeps: typed in between, and the same JSON as ever outside."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult

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
    document["evidence"] = known(document["evidence"])
    if conditions := document["evidence"].get("conditions"):
        # A clock that moved is a figure now, which the readings hold.
        flags = (flag for flag in conditions["flags"] if not flag.startswith("clock drifted"))
        conditions["flags"] = [*flags]
    for finding in again["findings"]:
        # Nothing had details then.
        assert finding.pop("details") == []
    # NaN equals nothing.
    assert json.dumps(again, sort_keys=True) == json.dumps(document, sort_keys=True)


def test_every_key_of_evidence_is_among_what_was_written() -> None:
    """A new field needs no entry here; one that was renamed fails."""
    names = {name for text in WRITTEN for name in json.loads(text)["evidence"]}
    assert names <= {field.name for field in fields(CaseEvidence)}


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
