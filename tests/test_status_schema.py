"""`kopt status --json` keeps to its published schema."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.outlook.status_model import Status
from pytest_kopt.decide.verdict import Decision
from tests.campaigns import campaign_at, record, status_of

PUBLISHED = files("pytest_kopt") / "schemas" / "status.schema.json"
#: A campaign with a final comparison, races and rooflines, and one of an earlier release.
KEPT = [
    *sorted((Path(__file__).parents[1] / "docs/campaigns").iterdir()),
    Path(__file__).parent / "campaign_of_0_1/rmsnorm",
]


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    document: dict[str, Any] = json.loads(PUBLISHED.read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def test_the_published_schema_is_the_models(schema: jsonschema.Draft202012Validator) -> None:
    """Otherwise write `Status.model_json_schema()` into the file."""
    assert schema.schema == Status.model_json_schema()


@pytest.mark.parametrize("name", ["verdict", "status"])
def test_every_key_says_what_it_means(name: str) -> None:
    """The schema is all that a program's author has."""
    document = json.loads((files("pytest_kopt") / f"schemas/{name}.schema.json").read_text())
    parts = {"": document, **document["$defs"]}
    silent = [
        f"{part}.{key}"
        for part, known in parts.items()
        for key, field in known.get("properties", {}).items()
        if not field.get("description")
    ]
    assert len(parts) > 10 and silent == []


@pytest.mark.parametrize("campaign", KEPT, ids=lambda path: path.name)
def test_a_kept_campaigns_status_is_valid(
    tmp_path: Path, campaign: Path, schema: jsonschema.Draft202012Validator
) -> None:
    copy = tmp_path / "agent/workspace" / campaign.name
    shutil.copytree(campaign, copy)
    schema.validate(status_of(Campaign(Layout(copy), tmp_path)))


def test_every_decisions_status_is_valid(
    tmp_path: Path, schema: jsonschema.Draft202012Validator
) -> None:
    campaign = campaign_at(tmp_path)
    schema.validate(status_of(campaign))
    record(campaign, 1, Decision.BASELINE)
    number = 2
    for decision in Decision:
        if decision is not Decision.BASELINE:
            record(campaign, number, decision, hypothesis=f"idea {number}", change_pct=-9.0)
            schema.validate(status_of(campaign))
            number += not decision.leaves_open
    running = {"phase": "comparing", "pid": 1, "started": None, "total": 3, "done": 1}
    campaign.layout.running.write_text(json.dumps(running))
    campaign.end("stopped")
    document = status_of(campaign)
    schema.validate(document)
    assert document["ended"] == "stopped" and document["running"]["phase"] == "comparing"


@pytest.mark.parametrize("change", [{"next": None}, {"surprise": 1}, {"rounds": [{}]}], ids=str)
def test_another_document_is_not(
    tmp_path: Path, schema: jsonschema.Draft202012Validator, change: dict[str, Any]
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(status_of(campaign_at(tmp_path)) | change)
