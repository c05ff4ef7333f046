from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt import policies
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.outlook.status_model import COMMANDS, advice
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.knowledge import facts
from pytest_kopt.show import standing
from pytest_kopt.show.standing import advice_lines as lines
from tests.campaigns import campaign_at, record
from tests.test_ceilings import measured

EVIDENCE = CaseEvidence(
    device_model="NVIDIA H200",
    dtype="bfloat16",
    engine="graph",
    forward_samples_ms=(0.216,),
    flops=(2.0 * 4096**3, 4.0 * 4096**3),
    io_bytes={"forward": 3 * 2 * 4096**2},
)


def text_of(campaign: Campaign) -> str:
    return "\n".join(lines(advice(campaign)))


def order(text: str) -> list[str]:
    return [line.split()[1] for line in text.splitlines() if line.strip()[:1].isdigit()]


def test_attention_on_gfx950_in_flydsl(tmp_path: Path) -> None:
    campaign = campaign_at(
        tmp_path, target_op="attention_fwd", target_gpu="MI355X", target_backend="FLYDSL"
    )
    text = text_of(campaign)
    pages = order(text)
    for page in ("ops/attention/overview.md", "hardware/gfx950/overview.md"):
        assert f"knowledge/{page}" in pages
    assert pages.index("knowledge/ops/attention/overview.md") < pages.index(
        "knowledge/ops/attention/optimization-directions.md"
    )
    assert "has no pages" not in text
    assert "hbm_bandwidth: 8 TB/s <- knowledge/hardware/gfx950/spec.yaml:MI355X" in text
    assert "roofline: UNKNOWN until the baseline is measured" in text


def test_gemm_on_sm_90_in_triton(tmp_path: Path) -> None:
    text = text_of(campaign_at(tmp_path, target_op="gemm_bf16"))
    assert "knowledge/ops/gemm/overview.md" in order(text)
    assert "knowledge/backend/triton/overview.md" in order(text)
    assert "H200.hbm_bandwidth" in text and "H200.l2_size" in text
    assert "H20." not in text and "H100." not in text, "the model's own facts, and no sister's"
    assert "has no pages" not in text


def test_an_op_without_pages_is_said_plainly(tmp_path: Path) -> None:
    text = text_of(campaign_at(tmp_path, target_op="topk"))
    assert "op topk has no pages" in text
    assert not any("/ops/" in page for page in order(text))
    assert "knowledge/backend/triton/overview.md" in order(text)


def test_every_page_named_exists(tmp_path: Path) -> None:
    document = advice(campaign_at(tmp_path))
    assert document["reading"]
    assert all(Path(item["path"]).is_file() for item in document["reading"])


def test_the_roofline_chooses_the_band(tmp_path: Path) -> None:
    campaign = campaign_at(tmp_path, target_op="gemm")
    record(campaign, 1, Decision.BASELINE, measured=EVIDENCE)
    documented = text_of(campaign)
    assert "compute" in documented and "989.5 TFLOPS" in documented
    assert "band 50 to 80 %: pipeline, layout, work distribution" in documented
    assert "matrix_peak_bf16_dense: 989.5 TFLOPS <- knowledge/hardware/sm_90" in documented
    facts.save(campaign.layout.directory.parent, measured())
    text = text_of(campaign)
    assert "790.0 TFLOPS" in text, "measured ceilings are preferred"
    assert "band 80 to 100 %" in text


@pytest.fixture
def stuck(tmp_path: Path) -> Campaign:
    campaign = campaign_at(tmp_path, target_op="gemm")
    record(campaign, 1, Decision.BASELINE)
    record(campaign, 2, Decision.ACCEPTED, change="gemm-01", key_finding="loads were narrow")
    record(campaign, 3, Decision.ROLLED_BACK, hypothesis="triton-01", lesson="it spills")
    return campaign


def test_one_roll_back_is_no_stagnation(stuck: Campaign) -> None:
    document = advice(stuck)
    assert document["stagnation"] is None
    assert document["lessons"] == [
        "round 2 ACCEPTED: gemm-01 -> loads were narrow",
        "round 3 ROLLED_BACK: triton-01 -> it spills",
    ]


@pytest.mark.parametrize(
    ("more", "action"), [(1, "list"), (2, "profile"), (3, "read"), (4, "compare"), (6, "compare")]
)
def test_roll_backs_in_a_row_climb_the_ladder(stuck: Campaign, more: int, action: str) -> None:
    for number in range(4, 4 + more):
        record(stuck, number, Decision.INCONCLUSIVE, change=f"try {number}")
    review = advice(stuck)["stagnation"]
    assert review["rollbacks_in_a_row"] == 1 + more
    assert review["action"].startswith(action)
    assert len(review["disproved"]) == 1 + more


def test_the_review_stands_below_the_round_that_made_it_due(stuck: Campaign) -> None:
    def below() -> list[str]:
        return list(standing.closing_lines(stuck, policies.load("primus")))

    assert below() == [], "one roll-back"
    record(stuck, 4, Decision.REPAIR)
    assert below() == [], "the round is still open"
    record(stuck, 4, Decision.ROLLED_BACK)
    assert below()[0].startswith("stagnation: 2 rounds in a row were not kept; this does not end")
    assert below()[1].startswith("First, list what the last rounds disproved, and ")
    record(stuck, 5, Decision.REPAIR)
    assert below() == []
    record(stuck, 5, Decision.ACCEPTED)
    assert below() == []


def test_the_review_names_directions_that_were_not_tried(stuck: Campaign) -> None:
    record(stuck, 4, Decision.ROLLED_BACK, change="gemm-02 with four stages")
    ids = [item["id"] for item in advice(stuck)["stagnation"]["untried"]]
    assert len(ids) >= 3
    assert not {"gemm-01", "gemm-02", "triton-01"} & set(ids)
    text = text_of(stuck)
    assert "this does not end the campaign" in text
    assert f"{ids[0]} " in text


def test_a_kept_round_ends_the_stagnation(stuck: Campaign) -> None:
    record(stuck, 4, Decision.ROLLED_BACK)
    record(stuck, 5, Decision.ACCEPTED)
    assert advice(stuck)["stagnation"] is None


def test_masked_rounds_are_not_looked_at(stuck: Campaign) -> None:
    record(stuck, 4, Decision.ROLLED_BACK, change="gemm-02")
    stuck.mask([3], masked=True)
    document = advice(stuck)
    assert document["stagnation"] is None
    assert not any("gemm-02" in text for text in document["lessons"])


def test_where_too_few_directions_are_left_it_says_so(tmp_path: Path) -> None:
    campaign = campaign_at(
        tmp_path, target_op="fft", target_backend="MINE", target_lang="MINE", target_gpu="sm_80"
    )
    record(campaign, 1, Decision.BASELINE)
    record(campaign, 2, Decision.ROLLED_BACK)
    record(campaign, 3, Decision.ROLLED_BACK)
    text = text_of(campaign)
    assert "only 0 direction(s) are left in the knowledge base" in text
    assert text.count(" has no pages (") == 3


def test_readme_skill_and_advice_name_the_same_commands() -> None:
    root = Path(__file__).parents[1]
    for page in ("README.md", "pytest_kopt/.agents/skills/kopt/SKILL.md"):
        text = (root / page).read_text().replace("--kopt-campaign NAME ", "")
        assert [name for name in COMMANDS if name not in text] == [], page
