from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.show import projections
from pytest_kopt.show.tips import lines
from tests.campaigns import campaign_at, record

FOLDER = "agent/historical_experience/sm_90/softmax/triton"


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    found = campaign_at(tmp_path)
    record(found, 1, Decision.BASELINE)
    return found


def file_of(campaign: Campaign) -> Path:
    return campaign.root / FOLDER / "tips.md"


def test_a_round_that_taught_nothing_leaves_no_file(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ACCEPTED, change="wider loads")
    assert not file_of(campaign).exists()
    assert list(lines(campaign)) == []


def test_a_tip_is_appended_in_c11s_form(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ROLLED_BACK, change="bigger tiles", tip="tiles of 256 spill here")
    text = file_of(campaign).read_text()
    (entry,) = tips.entries(file_of(campaign))
    assert entry.title.endswith(" round-2 — ROLLED BACK")
    assert [line.split(":")[0] for line in entry.text.splitlines()] == [
        *("- Context", "- Signal", "- Takeaway", "- Applicability")
    ]
    assert "- Context: bigger tiles (c)" in text
    assert "- Signal: why round 2 is ROLLED_BACK" in text
    assert "- Takeaway: tiles of 256 spill here" in text


def test_a_tips_own_fields_win(campaign: Campaign) -> None:
    tip = "Signal: 20 % fewer\n stalls\nApplicability: D = 64 only\nTakeaway: swizzle V"
    record(campaign, 2, Decision.ACCEPTED, tip=tip)
    (entry,) = tips.entries(file_of(campaign))
    assert "- Signal: 20 % fewer stalls\n" in entry.text
    assert "- Applicability: D = 64 only" in entry.text
    assert entry.title.endswith("— ACCEPTED")


def test_the_file_only_grows(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ACCEPTED, tip="first")
    before = file_of(campaign).read_text()
    projections.refresh(campaign)
    assert file_of(campaign).read_text() == before, "nothing is appended twice"
    campaign.note(2, Notes(tip="first, but only above 4096 columns"))
    record(campaign, 3, Decision.ROLLED_BACK, tip="second")
    after = file_of(campaign).read_text()
    assert after.startswith(before)
    takeaways = [tips.fields(e.text)["Takeaway"] for e in tips.entries(file_of(campaign))]
    assert takeaways == ["first", "first, but only above 4096 columns", "second"]


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


def test_a_correction_is_appended_and_names_its_tip(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ACCEPTED, tip="always unroll by 8")
    known = tips.entries(file_of(campaign))
    more = tips.correction(1, "only without spills", "2026-11-21 12:00", known)
    assert "### 2026-11-21 12:00 correction of tip 1 (" in more
    with pytest.raises(BadInput, match=r"no tip 2 \(legal: 1\)"):
        tips.correction(2, "x", "2026-11-21 12:00", known)


TRICKS = [
    "cache the activations between calls",
    "caching quantised scales makes the second call free",
    "remember the output of the last call",
    "an activation cache wins 20 %",
    "key the dict on id(a) and skip the cast",
    "compare data_ptr with the last call's",
    "use lru_cache on the wrapper",
    "M_per_group: tl.constexpr removes the loop",
    "a fixed M_per_group lets the compiler unroll",
    "a W2 trick",
]
LESSONS = [
    "keep the activations in L2 cache by ordering tiles",
    "reuse the output tile in registers",
    "store the result through shared memory",
    "cache lines of 128 bytes want 16-byte loads",
    "the weight cache keyed on _version hits once a step",
    "scale both operands before the product",
]


@pytest.mark.parametrize("tip", TRICKS)
def test_praise_of_a_trick_is_refused_unless_marked(tip: str) -> None:
    with pytest.raises(BadInput, match="praises what no real step gains from"):
        tips.check(tip)
    tips.check(f"anti-pattern: {tip}")
    tips.check(f"Takeaway: {tip} — an Anti-Pattern, do not")


@pytest.mark.parametrize("tip", LESSONS)
def test_an_honest_lesson_passes(tip: str) -> None:
    tips.check(tip)


@pytest.mark.parametrize("bucket", ["W2", "W3"])
def test_a_round_of_a_refused_bucket_gives_no_unmarked_tip(bucket: str) -> None:
    with pytest.raises(BadInput, match=f"bucket {bucket}"):
        tips.check_notes(Notes.model_validate({"tip": "fast", "bucket": bucket}), "notes.yaml")
    tips.check_notes(Notes(tip="fast", bucket="W1"), "notes.yaml")


def test_a_rejected_rounds_tip_stands_only_as_anti_pattern(campaign: Campaign) -> None:
    record(campaign, 2, Decision.REJECTED_OVERFIT, tip="it is so fast")
    assert not file_of(campaign).exists()
    record(campaign, 3, Decision.REJECTED_OVERFIT, tip="anti-pattern: keyed on the address")
    (entry,) = tips.entries(file_of(campaign))
    assert "anti-pattern" in entry.text
