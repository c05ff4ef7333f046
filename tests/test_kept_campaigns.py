"""The campaigns of docs/campaigns are whole, and one of an earlier release is still read."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.errors import BadInput
from pytest_kopt.show.files import projections
from pytest_kopt.show.report.page import document

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.pictures import CAMPAIGNS, PICTURED, PICTURES, report
from tests.campaigns import status_of

#: A campaign of 2026-11-22 that came without the bulk of its evidence.
OLD = Path(__file__).parent / "campaign_of_0_1/rmsnorm"
ALL = [*CAMPAIGNS, OLD]


def opened(root: Path, campaign: Path) -> Campaign:
    """Open a copy of a kept campaign."""
    copy = root / "agent" / "workspace" / campaign.name
    shutil.copytree(campaign, copy)
    return Campaign(Layout(copy), root)


@pytest.mark.parametrize("campaign", ALL, ids=lambda path: path.name)
def test_the_report_has_the_verdict_of_every_round(tmp_path: Path, campaign: Path) -> None:
    shown = document(opened(tmp_path, campaign))
    for item in shown["rounds"]:
        page = json.loads((campaign / f"rounds/round-{item['number']}/verdict.json").read_text())
        assert (item["decision"], item["reason"]) == (page["decision"], page["reason"])
        assert len(item["verdict"].shapes) == len(page["shapes"])
        assert item["verdict"].aggregate.change_pct == page["aggregate"]["change_pct"]


@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda path: path.name)
def test_a_kept_campaign_holds_its_evidence(tmp_path: Path, campaign: Path) -> None:
    """Every file that the ledger names is there, with the content that it had."""
    copy = opened(tmp_path, campaign)
    for item in copy.state.decided_rounds():
        for attempt in item.attempts.values():
            for name, digest in attempt.hashes.items():
                content = (copy.layout.directory / name).read_bytes()
                assert hashlib.sha256(content).hexdigest() == digest, name


@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda path: path.name)
def test_the_kept_report_is_the_one_that_is_written_today(campaign: Path) -> None:
    """Otherwise: `python -m benchmarks.pictures`."""
    text = (campaign / "report.html").read_text()
    assert text == report(campaign)
    pages = [json.loads(page.read_text()) for page in campaign.glob("rounds/*/verdict.json")]
    compared = {page["round"] for page in pages if page["compare"] == "paired"}
    assert {int(number) for number in re.findall(r'id="pairs-(\d+)"', text)} == compared
    assert "<th>device_model</th><td>NVIDIA H100 80GB HBM3</td>" in text


def test_the_pictures_show_the_report_of_today() -> None:
    digest = hashlib.sha256(PICTURED.read_bytes()).hexdigest()
    assert (PICTURES / "report.sha256").read_text().strip() == digest


def test_a_campaign_of_another_release_still_opens(tmp_path: Path) -> None:
    """Ledger and verdicts hold keys that this release does not know."""
    campaign = opened(tmp_path, CAMPAIGNS[0])
    before = document(campaign), status_of(campaign)
    lines = []
    for line in campaign.layout.ledger.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "decided":
            path = campaign.layout.attempt(event["round"], event["attempt"]) / "verdict.json"
            verdict = json.loads(path.read_text())
            for part in (verdict, verdict["applied"], *verdict["shapes"]):
                part["of_another_release"] = 1
            path.write_text(json.dumps(verdict))
            event["verdict_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        event.get("notes", event)["of_another_release"] = 1
        lines.append(json.dumps(event))
    campaign.layout.ledger.write_text("".join(f"{line}\n" for line in lines))
    campaign = Campaign(campaign.layout, tmp_path)
    assert (document(campaign), status_of(campaign)) == before


def test_a_page_that_is_not_the_ledgers_verdict_is_refused(tmp_path: Path) -> None:
    campaign = opened(tmp_path, OLD)
    page = campaign.layout.verdict(2)
    page.write_text(page.read_text().replace('"ACCEPTED"', '"ROLLED_BACK"'))
    with pytest.raises(BadInput, match="was changed since the ledger recorded it"):
        document(campaign)


@pytest.mark.parametrize("is_evidence_kept", [True, False])
def test_files_that_are_written_again_lose_no_verdict(
    tmp_path: Path, is_evidence_kept: bool
) -> None:
    """The round's page is the only copy, and holds keys of the release that recorded it."""
    campaign = opened(tmp_path, CAMPAIGNS[0] if is_evidence_kept else OLD)
    pages = {
        round.number: campaign.layout.verdict(round.number)
        for round in campaign.state.decided_rounds()
    }
    texts = {number: page.read_bytes() for number, page in pages.items()}
    for number in pages:
        campaign.state.rounds[number].last.record.unlink(missing_ok=True)
    if is_evidence_kept:
        projections.refresh(campaign)
    else:
        with pytest.raises(BadInput, match=r"evidence\.json: kopt cannot read the evidence"):
            projections.refresh(campaign)
    for number, page in pages.items():
        attempt = campaign.state.rounds[number].last
        assert page.read_bytes() == texts[number]
        assert hashlib.sha256(attempt.recorded()).hexdigest() == attempt.outcome().verdict_sha256
        assert attempt.record.exists() is is_evidence_kept
