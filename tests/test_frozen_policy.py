"""A campaign is judged by one policy: its thresholds are frozen at the baseline (E6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt import policies
from tests.campaigns import status_of
from tests.crash import Steps
from tests.driven_campaign import DrivenCampaign, Ran, files_below
from tests.model_campaign import OUTCOMES, Outcome

KERNEL = "kernels/op.py"
RATES = [100.0, 200.0, 300.0, 400.0]
#: One case loses 30 %, which a gate of 100 % lets through.
WORSE = Outcome("ACCEPTED_WITH_NOTE", (1.5, 1.5, 1.5, 0.7))
PRIMUS = policies.load("primus").model_dump(mode="json")


@pytest.fixture
def project(tmp_path: Path) -> DrivenCampaign:
    return DrivenCampaign(tmp_path / "p", {KERNEL: b"OLD = 1\n"}, in_git=False)


def run(project: DrivenCampaign, outcome: Outcome = OUTCOMES["faster"], **given: Any) -> Ran:
    rates = [rate * factor for rate, factor in zip(RATES, outcome.factors, strict=True)]
    return project.measure("next", outcome, rates, Steps(project.root), **given)


def baseline(project: DrivenCampaign, **given: Any) -> DrivenCampaign:
    assert run(project, Outcome("BASELINE"), **given).refusal == ""
    project.write(KERNEL, b"NEW = 1\n")
    return project


def policy_file(project: DrivenCampaign, text: str, name: str = "mine.yaml") -> str:
    project.write(name, text.encode())
    return str(project.root / name)


def refused(project: DrivenCampaign, outcome: Outcome = WORSE, **given: Any) -> str:
    """Ask for a round that has to be refused with nothing changed, and return why."""
    before = files_below(project.root, project.root)
    ran = run(project, outcome, **given)
    assert ran.verdict is None and ran.refusal, ran
    assert files_below(project.root, project.root) == before
    return ran.refusal


def test_a_file_may_neither_play_a_preset_nor_loosen_the_gate(project: DrivenCampaign) -> None:
    baseline(project)
    text = "shape_gate_pct: 100\nnoise_pct: 0\n"
    why = refused(project, policy=policy_file(project, f"name: primus\n{text}"))
    assert "'primus', the name of a preset" in why
    why = refused(project, policy=policy_file(project, text))
    assert "--kopt-policy: 'mine' is not the baseline's policy 'primus'" in why
    assert "shape_gate_pct: 5.0 -> 100.0" in why and "noise_pct: 2.0 -> 0.0" in why
    assert "max_regressions" in why and "kopt init NEW --from c" in why
    assert "noise_pct: 2.0 -> 1.0" in refused(project, policy="kernel-opt")
    assert run(project, WORSE).verdict.decision == "ROLLED_BACK"  # type: ignore[union-attr]


def test_the_manifests_policy_edited_by_hand_is_refused_too(project: DrivenCampaign) -> None:
    baseline(project)
    policy_file(project, "shape_gate_pct: 100\n")
    project.edit_manifest(policy="mine.yaml")
    assert "policy (manifest.yaml): 'mine'" in (why := refused(project))
    assert "shape_gate_pct: 5.0 -> 100.0" in why
    assert "shape_gate_pct: 5.0 -> 100.0" in status_of(project.opened())["obstacle"]
    # Under another name, but the same: that is a change of the manifest like others.
    policy_file(project, "base: primus\n")
    assert run(project).verdict is not None
    (event,) = (e for e in project.news(b"") if e["event"] == "manifest_changed")
    assert event["values"] == {"policy": "mine.yaml"}


def test_a_policy_file_edited_between_rounds_is_refused(project: DrivenCampaign) -> None:
    policy_file(project, "shape_gate_pct: 3\n")
    project.edit_manifest(policy="mine.yaml")
    baseline(project)
    policy_file(project, "shape_gate_pct: 30\n")
    assert "shape_gate_pct: 3.0 -> 30.0" in refused(project)
    policy_file(project, "shape_gate_pct: 3\n")
    assert run(project).verdict is not None


def test_a_stop_limit_may_change_and_each_change_is_an_event(project: DrivenCampaign) -> None:
    baseline(project)
    patient = policy_file(project, "max_regressions: 10\n")
    for given in ({"policy": patient}, {"policy": patient}, {}):
        ran = run(project, OUTCOMES["slower"], **given)
        assert ran.verdict is not None, ran.refusal
        project.write(KERNEL, b"NEW = 1\n")
    changes = [e["values"] for e in project.news(b"") if e["event"] == "policy_changed"]
    assert changes == [{"max_regressions": 10}, {"max_regressions": 5}]
    assert project.opened().recorded_policy() == PRIMUS


def test_verdict_and_evidence_hold_the_thresholds(project: DrivenCampaign) -> None:
    baseline(project)
    patient = policy_file(project, "max_regressions: 10\n")
    run(project, policy=patient)
    expected = {1: PRIMUS, 2: PRIMUS | {"name": "mine", "max_regressions": 10}}
    for number, policy in expected.items():
        folder = project.layout.directory / f"rounds/round-{number}"
        verdict = json.loads((folder / "verdict.json").read_text())
        assert (verdict["policy"], verdict["thresholds"]) == (policy["name"], policy)
        campaign = project.opened()
        assert campaign.state.rounds[number].last.session()["policy"] == policy


def test_the_baselines_own_policy_counts_wherever_it_was_given(project: DrivenCampaign) -> None:
    baseline(project, policy="kernel-opt")
    assert "noise_pct: 1.0 -> 2.0" in refused(project)
    project.edit_manifest(policy="kernel-opt")
    assert run(project).verdict is not None
