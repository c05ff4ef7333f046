"""The campaign's README: facts of the very model, and the targets that the baseline tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt import policies
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.manifest import ARCHITECTURES
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.knowledge.facts import facts_of, product_of
from pytest_kopt.show.files.summary import campaign_readme
from tests.campaigns import campaign_at, record
from tests.test_advice import EVIDENCE
from tests.test_roofline import UNKNOWN, gemm

PRIMUS = policies.load("primus")


def with_readme(root: Path, **changes: str) -> Campaign:
    campaign = campaign_at(root, **changes)
    campaign.layout.readme.write_text(campaign_readme(campaign.manifest, PRIMUS))
    return campaign


def models_in(text: str) -> set[str]:
    return {model for model in ARCHITECTURES if f":{model}." in text}


@pytest.mark.parametrize("model", [model for model in ARCHITECTURES if product_of(model)])
def test_a_campaign_on_a_model_has_all_of_its_facts_and_no_sisters(
    tmp_path: Path, model: str
) -> None:
    text = with_readme(tmp_path, target_gpu=model).layout.readme.read_text()
    assert models_in(text) == {model}
    for fact in facts_of(ARCHITECTURES[model], model):
        assert f"- {fact.citation()}\n" in text


def test_fp4_has_a_ridge_where_a_document_tells_its_peak(tmp_path: Path) -> None:
    for model, ridge in (("B200", "1169"), ("MI355X", "1258")):
        text = with_readme(tmp_path / model, target_gpu=model).layout.readme.read_text()
        assert f"{model}: memory-bound below {ridge} FLOP/byte in " in text


def test_an_architecture_alone_has_what_its_models_share(tmp_path: Path) -> None:
    text = with_readme(tmp_path, target_gpu="sm_90").layout.readme.read_text()
    assert models_in(text) == set()
    models = "H100, H200, H20, H100_PCIE, H100_NVL, H200_NVL"
    assert f"Only the architecture is known, and the peaks of {models} differ" in text
    assert "shared_memory_per_sm: 228 KB <- knowledge/hardware/sm_90/spec.yaml:" in text
    assert "FLOP/byte in" not in text


@pytest.mark.parametrize("gpu", ["cpu", "sm_86", "A30", "RTX_4090", "GH200"])
def test_what_no_file_knows_is_unknown(tmp_path: Path, gpu: str) -> None:
    text = with_readme(tmp_path, target_gpu=gpu).layout.readme.read_text()
    assert f"{gpu} is in no spec file: its peaks are UNKNOWN".lower() in text.lower()


@pytest.mark.parametrize("gpu", ["H200", "sm_90"])
def test_the_baseline_tells_model_and_absolute_targets(tmp_path: Path, gpu: str) -> None:
    """All else stays as the user has it by then."""
    campaign = with_readme(tmp_path, target_gpu=gpu)
    readme = campaign.layout.readme
    readme.write_text(
        readme.read_text().replace("constraints: TBD", "constraints: none") + "mine\n"
    )
    assert "TBD, known once round 1" in readme.read_text()
    found = [gemm(4096, 4096, 4096, 0.216), gemm(16, 8192, 8192, 0.1)]
    record(campaign, 1, Decision.BASELINE, measured=EVIDENCE, rooflines=found)
    text = readme.read_text()
    assert "constraints: none" in text and text.endswith("mine\n")
    assert models_in(text) == {"H200"} and "The baseline was measured on NVIDIA H200." in text
    stops = [line.split() for line in text.partition("## Stop Conditions")[2].splitlines()]
    rows = [[w for w in words if w != "|"] for words in stops if "gemm" in words]
    # 90 % of 790 TFLOPS and of 4.3 TB/s; 2 * 4096^3 FLOP take 193.3 µs at 711 TFLOPS.
    assert rows[0] == ["gemm", "forward", "compute", "711", "520.8", "193.3"]
    assert rows[1] == ["gemm", "forward", "memory", "61.68", "3870", "34.82"]
    assert "  - bandwidth" in text and "  - rate" in text, "what the targets rest on"


def test_targets_without_a_ceiling_are_unknown_and_say_why(tmp_path: Path) -> None:
    campaign = with_readme(tmp_path)
    blocked = [gemm(512, 512, 512, 1.0, UNKNOWN)]
    record(campaign, 1, Decision.BASELINE, measured=EVIDENCE, rooflines=blocked)
    stops = campaign.layout.readme.read_text().partition("## Stop Conditions")[2]
    assert stops.count("UNKNOWN ") >= 4 and "`kopt calibrate --ceilings`" in stops


def test_another_device_than_the_model_named_is_said(tmp_path: Path) -> None:
    campaign = with_readme(tmp_path, target_gpu="H100")
    record(campaign, 1, Decision.BASELINE, measured=EVIDENCE, rooflines=[gemm(512, 512, 512, 1.0)])
    text = campaign.layout.readme.read_text()
    assert models_in(text) == {"H100"} and "The baseline was measured on NVIDIA H200." in text
