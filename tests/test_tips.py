from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.show.files import projections
from pytest_kopt.show.standing import tip_lines as lines
from tests.campaigns import campaign_at, record

FOLDER = "agent/historical_experience/sm_90/softmax/triton"


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    found = campaign_at(tmp_path)
    record(found, 1, Decision.BASELINE)
    return found


def file_of(campaign: Campaign) -> Path:
    return campaign.root / FOLDER / "tips.md"


def takeaways(campaign: Campaign) -> list[str]:
    projections.refresh(campaign)
    return [entry.takeaway for entry in tips.entries(file_of(campaign))]


def test_a_round_that_taught_nothing_leaves_no_file(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ACCEPTED, change="wider loads")
    assert not file_of(campaign).exists()
    assert list(lines(campaign)) == []


def test_a_tip_is_appended_in_c11s_form(campaign: Campaign) -> None:
    record(
        campaign,
        2,
        Decision.ROLLED_BACK,
        change="bigger tiles",
        tip="tiles of 256 spill",
        bucket="K1",
    )
    text = file_of(campaign).read_text()
    (entry,) = tips.entries(file_of(campaign))
    assert entry.title.endswith(" round-2 — ROLLED BACK")
    assert [line.split(":")[0] for line in entry.text.splitlines()] == [
        *("- Context", "- Signal", "- Takeaway", "- Applicability", "- Bucket")
    ]
    assert "- Context: bigger tiles (c)" in text
    assert "- Signal: why round 2 is ROLLED_BACK" in text
    assert "- Takeaway: tiles of 256 spill" in text


def test_the_file_only_grows(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ACCEPTED, tip="first", bucket="K1")
    before = file_of(campaign).read_text()
    projections.refresh(campaign)
    assert file_of(campaign).read_text() == before, "nothing is appended twice"
    campaign.note(2, Notes(tip="first, but only above 4096 columns"))
    record(campaign, 3, Decision.ROLLED_BACK, tip="second")
    after = file_of(campaign).read_text()
    assert after.startswith(before)
    assert takeaways(campaign) == ["first", "first, but only above 4096 columns", "second"]


def test_they_are_shared_by_campaigns_on_the_same_target(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ACCEPTED, tip="exp2 with a folded scale")
    text = "\n".join(lines(campaign_at(campaign.root, "later")))
    assert f"tips: {FOLDER}/tips.md (1)" in text
    assert "exp2 with a folded scale" in text
    assert list(lines(campaign_at(campaign.root, "other", target_op="rmsnorm"))) == []


def test_an_open_rounds_tip_waits_for_its_decision(campaign: Campaign) -> None:
    record(campaign, 2, Decision.REPAIR, tip="mind the mask")
    assert not file_of(campaign).exists()
    record(campaign, 2, Decision.ACCEPTED)
    assert "mind the mask" in file_of(campaign).read_text()


@pytest.mark.parametrize(
    "tip",
    [
        "Do not cache activations: it never transfers",
        "If the same x arrives twice, hand back what was produced last time",
    ],
)
def test_a_tip_is_judged_by_its_rounds_bucket_not_by_its_words(
    campaign: Campaign, tip: str
) -> None:
    record(campaign, 2, Decision.ACCEPTED)
    with pytest.raises(BadInput, match="needs the key bucket"):
        campaign.note(2, Notes(tip=tip))
    with pytest.raises(BadInput, match="needs the key bucket"):
        campaign.note(2, Notes(tip=tip, anti_pattern=False))
    campaign.note(2, Notes(bucket="K1"))
    campaign.note(2, Notes(tip=tip))
    assert takeaways(campaign) == [tip]


@pytest.mark.parametrize("bucket", ["W2", "W3"])
def test_a_tip_of_a_refused_bucket_is_an_anti_pattern(campaign: Campaign, bucket: str) -> None:
    record(campaign, 2, Decision.ROLLED_BACK, tip="key\non a", bucket=bucket)
    assert takeaways(campaign) == ["anti-pattern: key on a"]
    (entry,) = tips.entries(file_of(campaign))
    assert entry.text.endswith(f"- Bucket: {bucket}")
    assert "anti-pattern: key on a" in "\n".join(lines(campaign))


def test_a_person_can_mark_a_tip(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ACCEPTED, tip="padding to 128", anti_pattern=True)
    assert takeaways(campaign) == ["anti-pattern: padding to 128"]
    campaign.note(2, Notes(tip="padding to 64", bucket="K1"))
    assert takeaways(campaign)[1:] == ["padding to 64"], "the mark was the other tip's"


def test_a_rejected_rounds_tip_is_an_anti_pattern(campaign: Campaign) -> None:
    """Whatever bucket was claimed, and without one."""
    record(campaign, 2, Decision.REJECTED_OVERFIT, tip="it is so fast", bucket="K1")
    record(campaign, 3, Decision.REJECTED_OVERFIT)
    campaign.note(3, Notes(tip="Anti-pattern: keyed on the address"))
    assert takeaways(campaign) == [
        "anti-pattern: it is so fast",
        "Anti-pattern: keyed on the address",
    ]


def test_a_round_that_is_rejected_later_marks_its_tip_anew(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ACCEPTED, tip="keep the product", bucket="K4")
    before = file_of(campaign).read_text()
    campaign.note(2, Notes(bucket="W2"))
    assert takeaways(campaign) == ["keep the product", "anti-pattern: keep the product"]
    assert file_of(campaign).read_text().startswith(before)


OLD = """\
# Tips: softmax (TRITON) on sm_90

<!-- old round-2 0123456789ab -->
### 2026-01-01 10:00 round-2 — ROLLED BACK

- Context: c
- Signal: s
- Takeaway: an Anti-Pattern: keyed on the address
- Applicability: here

### 2026-01-02 10:00 round-3 — ACCEPTED

- Takeaway: wider loads
"""


def test_files_without_buckets_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "tips.md"
    path.write_text(OLD)
    known = tips.entries(path)
    assert [entry.takeaway for entry in known] == [
        "an Anti-Pattern: keyed on the address",
        "wider loads",
    ]


def test_a_file_with_a_title_alone_holds_no_tips(tmp_path: Path) -> None:
    path = tmp_path / "tips.md"
    path.write_text(OLD.splitlines()[0])
    assert tips.entries(path) == []
