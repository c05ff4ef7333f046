"""Keys of the manifest that name cases: an unknown label is refused, and a label selects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash import Steps
from tests.driven_campaign import DrivenCampaign, Ran, files_below
from tests.model_campaign import OUTCOMES, Outcome

RATES = [100.0, 200.0, 300.0, 400.0]
LABELS = "case0, case1, case2, case3"
BASELINE = Outcome("BASELINE")
#: The last case loses 7 %, its class does not.
TRADED = Outcome("any", (1.2, 1.2, 1.2, 0.93))


@pytest.fixture
def project(tmp_path: Path) -> DrivenCampaign:
    return DrivenCampaign(tmp_path / "p", {"kernels/op.py": b"OLD = 1\n"}, in_git=False)


def run(project: DrivenCampaign, outcome: Outcome) -> Ran:
    rates = [rate * factor for rate, factor in zip(RATES, outcome.factors, strict=True)]
    return project.measure("next", outcome, rates, Steps(project.root))


def begun(project: DrivenCampaign, **manifest: Any) -> DrivenCampaign:
    project.edit_manifest(**manifest)
    assert run(project, BASELINE).refusal == ""
    project.write("kernels/op.py", b"NEW = 1\n")
    return project


def refusal(project: DrivenCampaign, outcome: Outcome) -> str:
    """Return why a session is refused, which changes nothing."""
    project.layout.lock.touch()
    before = files_below(project.root, project.root)
    why = run(project, outcome).refusal
    assert why and files_below(project.root, project.root) == before
    return why


@pytest.mark.parametrize("key", ["core_shapes", "target_shapes", "representative_shapes"])
def test_an_unknown_label_does_not_survive_the_baseline(project: DrivenCampaign, key: str) -> None:
    project.edit_manifest(**{key: ["case1", "does_not_exist", "case2"]})
    why = refusal(project, BASELINE)
    assert f"{key}: 'does_not_exist' names no case (allowed: {LABELS})" in why


def test_an_unknown_core_case_is_refused_before_anything_is_measured(
    project: DrivenCampaign,
) -> None:
    begun(project).edit_manifest(core_shapes=["does_not_exist"])
    unmeasured = Outcome("any", finding="stale-result")
    assert f"core_shapes: 'does_not_exist' names no case (allowed: {LABELS})" in refusal(
        project, unmeasured
    )


def test_core_shapes_say_which_cases_the_gate_guards(project: DrivenCampaign) -> None:
    """They may still be set once the baseline has shown the labels, by a node id as well."""
    begun(project)
    assert project.opened().manifest.core_shapes == "all"
    project.edit_manifest(core_shapes=["case0", "case2"])
    ran = run(project, TRADED)
    assert ran.verdict is not None
    assert (ran.verdict.decision, ran.verdict.exit_code) == ("ACCEPTED_WITH_NOTE", 0)


def test_without_core_shapes_every_case_is_guarded(project: DrivenCampaign) -> None:
    ran = run(begun(project), TRADED)
    assert ran.verdict is not None and ran.verdict.decision == "ROLLED_BACK"
    assert "'case3' regressed: -7.00 %" in ran.verdict.reason


def test_core_shapes_are_frozen_by_the_first_round_judged_by_them(project: DrivenCampaign) -> None:
    """Or a round that lost in one case could take that case out of the gate."""
    begun(project)
    assert run(project, TRADED).verdict is not None
    project.write("kernels/op.py", b"NEW = 1\n")
    project.edit_manifest(core_shapes=["case0"])
    why = refusal(project, TRADED)
    assert "core_shapes: was edited, but round 2 was measured" in why and "Fix: restore all" in why
    project.edit_manifest(core_shapes="all")
    assert run(project, OUTCOMES["faster"]).verdict is not None
