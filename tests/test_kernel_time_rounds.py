"""Rounds under `kernel-opt`: GPU kernel time judges them without being asked to (S4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.decide.verdict import Decision, Verdict
from tests.crash import Steps
from tests.driven_campaign import RATES, DrivenCampaign
from tests.model_campaign import OUTCOMES

KERNEL = "kernels/a.py"


def project_at(root: Path, **manifest: Any) -> DrivenCampaign:
    """Return a campaign with nothing measured yet."""
    return DrivenCampaign(root, {KERNEL: b"OLD = 1\n"}, in_git=False, **manifest)


def play(project: DrivenCampaign, outcome: str, *kernel_gains_pct: float) -> Verdict:
    """Run the next round; without gains the profiler sees no kernel."""
    ran = project.play(outcome, kernel_gains_pct=kernel_gains_pct)
    assert ran.verdict, ran
    return ran.verdict


@pytest.fixture
def project(tmp_path: Path) -> DrivenCampaign:
    """A campaign under kernel-opt with its baseline, and a candidate in the tree."""
    found = project_at(tmp_path / "project", policy="kernel-opt")
    assert play(found, "equal", 0.0, 0.0).decision is Decision.BASELINE
    found.write(KERNEL, b"NEW = 1\n")
    return found


@pytest.mark.parametrize(
    ("gains", "decision"),
    [
        ((5.0, 6.0), Decision.ACCEPTED),
        ((0.4, 0.6), Decision.ROLLED_BACK),
        ((-3.0, -3.0), Decision.ROLLED_BACK),
    ],
)
def test_what_the_benchmark_accepts_needs_less_kernel_time(
    project: DrivenCampaign, gains: tuple[float, float], decision: Decision
) -> None:
    """Nobody asked for a profile."""
    verdict = play(project, "faster", *gains)
    assert verdict.decision is decision
    assert verdict.kernel_time is not None
    assert verdict.kernel_time.pairs_pct == pytest.approx(gains)
    kept = decision.keeps
    assert project.kernel() == {KERNEL: b"NEW = 1\n" if kept else b"OLD = 1\n"}
    assert (project.layout.profiles / "round-2" / "attempt-1.json").is_file()


def test_without_kernel_times_a_round_is_incomplete_and_stays_open(
    project: DrivenCampaign,
) -> None:
    verdict = play(project, "faster")
    assert verdict.decision is Decision.INCOMPLETE
    assert "CUPTI could not be initialised" in verdict.reason
    assert "`kernel_time: false` in manifest.yaml" in verdict.next_step
    assert project.kernel() == {KERNEL: b"NEW = 1\n"}
    assert play(project, "faster", 5.0, 5.0).round == 2


def test_a_baseline_without_kernel_times_is_none(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project", policy="kernel-opt")
    assert play(project, "equal").decision is Decision.INCOMPLETE
    found = play(project, "equal", 0.0)
    assert found.decision is Decision.BASELINE
    assert found.kernel_time is not None and found.kernel_time.hottest == "hot"


def test_the_manifest_has_the_benchmark_judge_alone(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project", policy="kernel-opt", kernel_time=False)
    assert play(project, "equal").decision is Decision.BASELINE
    project.write(KERNEL, b"NEW = 1\n")
    found = play(project, "faster")
    assert (found.decision, found.kernel_time) == (Decision.ACCEPTED, None)


def test_the_manifest_has_kernel_time_judge_under_another_policy(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project", kernel_time=True)
    assert play(project, "equal", 0.0).decision is Decision.BASELINE
    project.write(KERNEL, b"NEW = 1\n")
    assert play(project, "faster", 1.5, 1.5).decision is Decision.ROLLED_BACK, "2 % is noise"


def test_the_baseline_freezes_whether_kernel_time_judges(project: DrivenCampaign) -> None:
    project.edit_manifest(kernel_time=False)
    ran = project.measure("next", OUTCOMES["faster"], RATES, Steps(project.root))
    assert "manifest key kernel_time: null -> false" in ran.refusal


def test_kernels_that_take_longer_count_as_regressions(project: DrivenCampaign) -> None:
    """Also where the benchmark rolled back for less than its noise."""
    play(project, "within the noise", -3.0, -3.0)
    decided = project.opened().state.rounds[2].verdict
    assert decided is not None and decided.kernel_time is not None
    assert decided.kernel_time.change_pct == pytest.approx(-3.0)
