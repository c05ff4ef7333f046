"""What a campaign's final comparison found, in words: in the terminal, the log and the status."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import trend
from pytest_kopt.campaign.outlook.status import status
from pytest_kopt.decide.verdict import Aggregate, Decision
from pytest_kopt.show.files.projections import final_text as text
from pytest_kopt.show.files.projections import outlook
from pytest_kopt.show.standing import status_lines as lines
from tests.builders import NOW
from tests.campaigns import campaign_at, record


def finished(root: Path, bucket: str | None) -> tuple[Campaign, ledger.Final]:
    """A campaign with one gain, whose notes claim a bucket or none, and its final comparison."""
    campaign = campaign_at(root)
    record(campaign, 1, Decision.BASELINE)
    record(campaign, 2, Decision.ACCEPTED, change_pct=60.0, bucket=bucket)
    final = ledger.Final(
        time=NOW,
        best=2,
        decision=Decision.ACCEPTED,
        reason="Forward TFLOPS improved",
        aggregate=Aggregate(metric="Forward TFLOPS", change_pct=60.0, low_pct=55.0, high_pct=65.0),
        evidence={},
        report=trend.compose(campaign),
    )
    ledger.append(campaign.layout.ledger, final)
    campaign.read_again()
    return campaign, final


def test_the_status_tells_what_it_found(tmp_path: Path) -> None:
    campaign, _ = finished(tmp_path, None)
    shown = list(lines(status(campaign)))
    place = shown.index("final: round 2 against the baseline: ACCEPTED +60.0 % [+55.0, +65.0]")
    assert shown[place + 1] == "    Forward TFLOPS improved"
    assert sum(line.startswith("final: ") for line in shown) == 1


@pytest.mark.parametrize(("bucket", "is_told"), [(None, False), ("K1", True)])
def test_the_transfer_is_shown_where_a_bucket_was_claimed(
    tmp_path: Path, bucket: str | None, is_told: bool
) -> None:
    """A gain with fresh tensors means nothing to a user who claimed none."""
    _, final = finished(tmp_path, bucket)
    assert final.report is not None
    said = "\n".join([*outlook(final.report), text("c", final)])
    words = ("weight caches", "R_real", "product of the accepted gains", "with fresh tensors")
    assert [word in said for word in words] == [is_told] * len(words), said
