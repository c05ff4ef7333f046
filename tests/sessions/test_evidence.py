"""Profiles, rooflines, tips and memory of real rounds, and the commands that show them."""

from __future__ import annotations

import json

import pytest

from pytest_kopt.bundled import bundled

from .project import CAMPAIGN, KERNEL, Project
from .sources import doubled_kernel

TIPS = "agent/historical_experience/cpu/doubled/torch/tips.md"


def test_a_profiled_round_leaves_kernels_rooflines_and_memory(fresh: Project) -> None:
    run = fresh.round(1, "--kopt-profile")
    assert run.code == 0, run.text
    profile = json.loads((fresh.campaign / "profiles/round-1/attempt-1.json").read_text())
    assert [item["tool"] for item in profile["profiles"]] == ["torch.profiler"] * 2
    for item in profile["profiles"]:
        assert item["on"] == "cpu" and item["note"] == ""
        assert "aten::mul" in [row["kernel"] for row in item["rows"]]
        assert all(row["mean_us"] > 0 for row in item["rows"])
    assert run.out.count("profile doubled rows=") == 2
    lines = fresh.verdict(1)["rooflines"]
    assert [(line["label"], line["way"]) for line in lines] == [
        (f"doubled rows={rows} columns=8", way)
        for rows in (2, 4)
        for way in ("forward", "backward")
    ]
    assert {line["bound"] for line in lines} == {"UNKNOWN"}, "nothing is known of this CPU"
    assert "roofline: UNKNOWN" not in run.out, "only with -v"
    evidence = fresh.evidence(1)["results"][0]["evidence"]
    assert evidence["io_bytes"] == {"forward": 2 * 64, "backward": 3 * 64}
    assert evidence["dtype"] == "float32"
    memory = json.loads((fresh.campaign / "memory/v0.json").read_text())
    assert memory["profile_evidence"]["tool_used"] == "torch.profiler"
    assert any("UNKNOWN" in item["error_message"] for item in memory["pitfalls_and_fixes"])


@pytest.mark.long
def test_what_a_kept_round_taught_goes_from_campaign_to_campaign(fresh: Project) -> None:
    fresh.edit_manifest(policy="kernel-opt")
    assert fresh.round(1).code == 0
    fresh.write(KERNEL, doubled_kernel(125.0))
    notes = fresh.notes(change="half the cost", tip="halving pays", bucket="K1")
    run = fresh.round(2, "--kopt-profile", "--kopt-notes", notes)
    assert run.code == 0, run.text
    assert "halving pays" in fresh.read(TIPS)

    run = fresh.kopt("advise", CAMPAIGN)
    assert run.code == 0, run.text
    assert "round 2 ACCEPTED: half the cost" in run.out, run.text
    assert "halving pays" in run.out
    assert fresh.kopt("memory", "mask", CAMPAIGN, "v1").code == 0
    assert "half the cost" not in fresh.kopt("advise", CAMPAIGN).out
    assert fresh.ledger()[-1]["event"] == "masking"
    refused = fresh.kopt("memory", "restart", CAMPAIGN)
    assert refused.code == 4 and "is the baseline or the best" in refused.refusal

    run = fresh.init("--from", CAMPAIGN)
    assert run.code == 4, "the campaign exists"
    assert fresh.kopt("init", "later", "--from", CAMPAIGN).code == 0
    header = fresh.pytest("--kopt-campaign", "later", "--kopt-round", "1").out
    assert f"tips: {TIPS} (1)" in header and "halving pays" in header


def test_a_tip_without_its_rounds_bucket_is_refused_before_measuring(started: Project) -> None:
    notes = started.notes(tip="hand back what was produced last time")
    before = started.contents()
    run = started.ask(2, "--kopt-notes", notes)
    assert run.code == 4
    assert "the key tip needs the key bucket" in run.refusal
    assert started.contents() == before and not started.was_measured


def test_the_knowledge_that_is_advised_is_this_installations(fresh: Project) -> None:
    document = json.loads(fresh.kopt("advise", CAMPAIGN, "--json").out)
    assert document["reading"][0]["path"] == str(bundled("knowledge") / "workflow/loop.md")
    uncovered, unfit = document["gaps"]
    assert "op doubled has no pages" in uncovered and "are about GPUs" in unfit
