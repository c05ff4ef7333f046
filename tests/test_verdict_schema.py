from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from pytest_kopt import policies
from pytest_kopt.decide.stored import StoredEvidence, decide_stored
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.schema.table import NO_CLASSES, Classes
from tests.builders import gemm_table

PUBLISHED = files("pytest_kopt") / "schemas" / "verdict.schema.json"
PRIMUS = policies.load("primus")

CONTRACTS_EXAMPLE: dict[str, Any] = {
    "schema_version": 1,
    "campaign": "softmax_triton_sm90_20261120",
    "round": 3,
    "attempt": 1,
    "decision": "ACCEPTED",
    "reason": "Combined Step TFLOPS improved",
    "compare": "paired",
    "engine": "graph",
    "policy": "primus",
    "aggregate": {
        "metric": "Combined Step TFLOPS",
        "candidate": 310.1,
        "incumbent": 300.0,
        "change_pct": 3.36,
        "low_pct": 3.21,
        "high_pct": 3.50,
        "confidence": 0.99,
    },
    "shapes": [
        {
            "label": "M1",
            "dims": {"M": 1},
            "check": "PASS",
            "change_pct": 1.0,
            "low_pct": 0.8,
            "high_pct": 1.2,
            "status": "improved",
            "device": "GPU-0",
        }
    ],
    "flags": ["throttled"],
    "applied": {"git_commit": "abc", "restored": []},
}


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    document: dict[str, Any] = json.loads(PUBLISHED.read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def stored(
    *rates: float, checks: list[str] | None = None, classes: Classes = NO_CLASSES
) -> Verdict:
    evidence = StoredEvidence(
        gemm_table(rates, checks=checks), gemm_table([100.0, 100.0]), classes=classes
    )
    return decide_stored(evidence, PRIMUS)


VERDICTS = {
    "accepted": stored(103.0, 103.0),
    "with a note": stored(110.0, 99.0),
    "rolled back": stored(110.0, 90.0),
    "repair": stored(110.0, math.nan, checks=["PASS", "FAIL"]),
    "missing case": stored(103.0),
    "to be measured again": stored(101.0, 101.0),
    "missing metrics": stored(103.0, math.nan),
    "split": stored(110.0, 90.0, classes=Classes(("M",), "M=512")),
}


def test_the_published_schema_is_the_models(schema: jsonschema.Draft202012Validator) -> None:
    assert schema.schema == Verdict.model_json_schema()


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts_are_valid(schema: jsonschema.Draft202012Validator, name: str) -> None:
    document = json.loads(VERDICTS[name].model_dump_json())
    schema.validate(document)
    assert Verdict.model_validate(document) == VERDICTS[name]


@pytest.mark.parametrize("decision", Decision)
def test_every_decision_is_valid(
    schema: jsonschema.Draft202012Validator, decision: Decision
) -> None:
    schema.validate({**CONTRACTS_EXAMPLE, "decision": str(decision)})


def test_the_contracts_example_is_valid(schema: jsonschema.Draft202012Validator) -> None:
    schema.validate(CONTRACTS_EXAMPLE)
    assert Verdict.model_validate(CONTRACTS_EXAMPLE).decision is Decision.ACCEPTED


@pytest.mark.parametrize(
    "change",
    [
        {"decision": "MAYBE"},
        {"compare": "guessed"},
        {"schema_version": 2},
        {"round": "three"},
        {"reason": None},
        {"surprise": 1},
        {"aggregate": {"candidate": 1.0}},
        {"shapes": [{"label": "a", "dims": {}, "check": "PASS", "status": "faster"}]},
        {"applied": {"git_commit": 7}},
    ],
    ids=str,
)
def test_what_is_no_verdict_is_refused(
    schema: jsonschema.Draft202012Validator, change: dict[str, Any]
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        schema.validate({**CONTRACTS_EXAMPLE, **change})


@pytest.mark.parametrize("key", ["decision", "reason", "compare", "policy"])
def test_what_every_verdict_has_is_required(
    schema: jsonschema.Draft202012Validator, key: str
) -> None:
    document = {name: value for name, value in CONTRACTS_EXAMPLE.items() if name != key}
    with pytest.raises(jsonschema.ValidationError, match=key):
        schema.validate(document)


def test_a_written_verdict_has_every_key_of_the_contract() -> None:
    written = json.loads(VERDICTS["accepted"].model_dump_json())
    assert set(CONTRACTS_EXAMPLE) <= set(written)
    assert set(CONTRACTS_EXAMPLE["aggregate"]) <= set(written["aggregate"])
    assert set(CONTRACTS_EXAMPLE["shapes"][0]) <= set(written["shapes"][0])
    assert set(CONTRACTS_EXAMPLE["applied"]) <= set(written["applied"])


def test_a_figure_that_is_not_finite_is_null_in_the_file() -> None:
    document = {**CONTRACTS_EXAMPLE, "aggregate": {"metric": "x", "candidate": math.nan}}
    text = Verdict.model_validate(document).model_dump_json()
    assert json.loads(text)["aggregate"]["candidate"] is None
