"""Campaigns of earlier releases, as docs/campaigns keeps them, are still read whole."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.decide.verdict import KernelChange, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.show.report.document import document
from pytest_kopt.show.words import kernel_rows

KEPT = sorted((Path(__file__).parents[1] / "docs" / "campaigns").iterdir())


def opened(root: Path, campaign: Path) -> Campaign:
    """Open a copy of a kept campaign."""
    copy = root / "agent" / "workspace" / campaign.name
    shutil.copytree(campaign, copy)
    return Campaign(Layout(copy), root)


@pytest.mark.parametrize("campaign", KEPT, ids=lambda path: path.name)
def test_a_campaign_without_the_bulk_of_its_evidence_has_its_report(
    tmp_path: Path, campaign: Path
) -> None:
    shown = document(opened(tmp_path, campaign))
    for item in shown["rounds"]:
        page = json.loads((campaign / f"rounds/round-{item['number']}/verdict.json").read_text())
        assert (item["decision"], item["reason"]) == (page["decision"], page["reason"])
        assert len(item["shapes"]) == len(page["shapes"])
        total = page["aggregate"]
        assert item["aggregate"]["change_pct"] == total["change_pct"]


@pytest.mark.parametrize("campaign", KEPT, ids=lambda path: path.name)
def test_the_report_says_what_changed_in_every_round(campaign: Path) -> None:
    """As `benchmarks/kept_campaigns_changes.py` told it; nothing where no kernel changed."""
    told = json.loads((campaign / "kernels.json").read_text())["rounds"]
    packed = re.search(r'id="data">([^<]*)<', (campaign / "report.html").read_text())
    assert packed is not None
    rounds = json.loads(gzip.decompress(base64.b64decode(packed[1])))["rounds"]
    assert len(rounds) == len(told) + 1, "the baseline has nothing to be compared with"
    for item in rounds[1:]:
        path = campaign / f"rounds/round-{item['number']}/verdict.json"
        kernels = [KernelChange(**change) for change in told[str(item["number"])]]
        verdict = Verdict.model_validate_json(path.read_text())
        assert item["kernels"] == kernel_rows(verdict.model_copy(update={"kernels": kernels}))
        assert item["kernels"], "each of these rounds launches something else"


def test_a_page_that_is_not_the_ledgers_verdict_is_refused(tmp_path: Path) -> None:
    campaign = opened(tmp_path, KEPT[0])
    page = campaign.layout.verdict(2)
    page.write_text(page.read_text().replace('"ACCEPTED"', '"ROLLED_BACK"'))
    with pytest.raises(BadInput, match="was changed since the ledger recorded it"):
        document(campaign)


@pytest.mark.parametrize("campaign", KEPT, ids=lambda path: path.name)
def test_the_kept_report_has_the_pairs_of_every_compared_round(campaign: Path) -> None:
    text = (campaign / "report.html").read_text()
    pages = [json.loads(page.read_text()) for page in campaign.glob("rounds/*/verdict.json")]
    compared = {page["round"] for page in pages if page["compare"] == "paired"}
    assert {int(number) for number in re.findall(r'id="pairs-(\d+)"', text)} == compared
    assert "<th>device_model</th><td>NVIDIA H200</td>" in text
