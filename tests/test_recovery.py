"""What the session after a kill finds and finishes; each was once found by `test_stateful`."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.show.files import projections
from tests.crash import Killed
from tests.driven_campaign import DrivenCampaign

KERNEL = "kernels/a.py"


def play_and_die_before_settling(project: DrivenCampaign, outcome: str) -> None:
    with mock.patch.object(Campaign, "settle", side_effect=[None, Killed()]):
        project.play(outcome)
    assert project.opened().state.pending


def project_at(root: Path, *, in_git: bool = False) -> DrivenCampaign:
    """Return a campaign with a baseline, and a candidate in the tree."""
    project = DrivenCampaign(root, {KERNEL: b"OLD = 1\n"}, in_git=in_git, max_iterations=1)
    assert project.play("equal").verdict
    project.write(KERNEL, b"NEW = 1\n")
    return project


@pytest.fixture
def project(tmp_path: Path) -> DrivenCampaign:
    return project_at(tmp_path / "project")


def test_a_roll_back_is_finished_although_the_campaign_has_ended(project: DrivenCampaign) -> None:
    play_and_die_before_settling(project, "slower")
    assert "no further round: T3" in project.play("slower").refusal
    assert project.kernel() == {KERNEL: b"OLD = 1\n"}
    assert project.opened().state.pending is None


def test_what_the_user_wrote_after_a_kill_is_not_rolled_back(project: DrivenCampaign) -> None:
    play_and_die_before_settling(project, "slower")
    project.write(KERNEL, b"MINE = 1\n")
    project.edit_manifest(max_iterations=None)
    ran = project.play("faster")
    assert ran.verdict and ran.verdict.round == 3
    assert project.kernel() == {KERNEL: b"MINE = 1\n"}
    snapshot = project.layout.attempt(3, 1) / "kernel_snapshot" / KERNEL
    assert snapshot.read_bytes() == b"MINE = 1\n"


def test_what_was_measured_is_committed_after_a_kill(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project", in_git=True)
    play_and_die_before_settling(project, "faster")
    project.write(KERNEL, b"MINE = 1\n")
    assert "no further round" in project.play("faster").refusal
    assert project.git("show", f"HEAD:{KERNEL}") == "NEW = 1\n"
    assert project.kernel() == {KERNEL: b"MINE = 1\n"}


def test_nothing_is_finished_while_git_waits_for_the_user(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project", in_git=True)
    play_and_die_before_settling(project, "faster")
    (project.root / ".git/MERGE_HEAD").write_text(project.git("rev-parse", "HEAD"))
    assert "a merge is in progress" in project.play("faster").refusal
    assert project.opened().state.pending
    (project.root / ".git/MERGE_HEAD").unlink()
    assert "no further round" in project.play("faster").refusal
    assert project.git("show", f"HEAD:{KERNEL}") == "NEW = 1\n"


def test_files_that_a_kill_left_unwritten_are_written_by_the_next_session(
    project: DrivenCampaign,
) -> None:
    project.edit_manifest(max_iterations=None)
    with mock.patch.object(projections, "refresh", side_effect=[None, Killed()]):
        project.play("faster")
    layout = project.layout
    missing = [layout.summary(2), layout.verdict(2), layout.memory(1), layout.snapshot(2)]
    assert not any(path.exists() for path in missing)
    assert "nothing to measure" in project.play("equal").refusal
    assert all(path.exists() for path in missing)


def test_an_attempt_of_which_only_the_beginning_is_on_record_is_none(
    project: DrivenCampaign,
) -> None:
    """The ledger's last line was being written: the attempt has begun there, and no evidence."""
    project.edit_manifest(max_iterations=None)
    assert project.play("a case missing").verdict
    before = project.layout.ledger.read_bytes()
    assert project.play("a case missing").verdict
    began, measured, *_ = project.layout.ledger.read_bytes().removeprefix(before).splitlines(True)
    for torn in (b"", measured[:100]):
        project.layout.ledger.write_bytes(before + began + torn)
        ran = project.play("faster")
        assert ran.verdict and (ran.verdict.round, ran.verdict.attempt) == (2, 3), ran
        project.layout.ledger.write_bytes(before)


def test_evidence_that_no_event_names_is_kept_beside_that_of_the_next_session(
    project: DrivenCampaign,
) -> None:
    project.edit_manifest(max_iterations=None)
    with mock.patch.object(Campaign, "append", side_effect=Killed()):
        assert project.play("slower").verdict is None
    left = (project.layout.attempt(2, 1) / "benchmark.csv").read_bytes()
    assert project.play("faster").verdict
    assert (project.layout.attempt(2, 1) / "benchmark.csv").read_bytes() != left
    kept = project.layout.artifacts(2) / "attempt-1.cut-off-1"
    assert (kept / "benchmark.csv").read_bytes() == left
