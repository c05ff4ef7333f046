"""`kopt restore` and `kopt discard`: what they leave; a kill leaves one state or the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt.cli.main import main
from tests.crash import Steps
from tests.driven_campaign import RATES, DrivenCampaign, made_quick
from tests.model_campaign import OUTCOMES

KERNEL, OTHER = "kernels/a.py", "kernels/b.py"
OLD, SLOW, MINE = {KERNEL: b"OLD = 1\n"}, {KERNEL: b"SLOW = 1\n", OTHER: b"\n"}, b"MINE = 1\n"


def project_at(root: Path) -> DrivenCampaign:
    """Return a campaign with a baseline, a slower round 2, and an edit that nobody measured."""
    project = DrivenCampaign(root, OLD, in_git=False)
    assert project.play("equal").verdict
    for path, text in SLOW.items():
        project.write(path, text)
    assert project.play("slower").verdict and project.kernel() == OLD
    project.write(KERNEL, MINE)
    return project


@pytest.fixture
def project(tmp_path: Path) -> DrivenCampaign:
    return project_at(tmp_path / "project")


def test_a_version_is_restored_and_what_lay_there_is_kept(project: DrivenCampaign) -> None:
    before = project.ledger()
    assert not project.restore(2, Steps(project.root)).refusal
    assert project.kernel() == SLOW
    assert (project.layout.replaced(1) / KERNEL).read_bytes() == MINE
    restoring, restored = project.news(before)
    assert (restoring["event"], restoring["round"]) == ("restoring", 2)
    assert restored["files"] == [KERNEL, OTHER]
    ran = project.play("faster")
    assert ran.verdict and ran.verdict.round == 3 and ran.verdict.decision == "ACCEPTED"


def test_a_round_without_a_version_is_refused(project: DrivenCampaign) -> None:
    before = project.ledger()
    refusal = project.restore(3, Steps(project.root)).refusal
    assert "round 3 has no recorded version (allowed: 1, 2)" in refusal
    assert project.ledger() == before and project.kernel() == {KERNEL: MINE}


def test_a_kill_leaves_nothing_or_what_the_next_session_finishes(tmp_path: Path) -> None:
    begun = project_at(tmp_path / "begun")
    before, seen = begun.ledger(), set()
    for project in begun.deaths(tmp_path, lambda here, steps: here.restore(2, steps)):
        is_begun = any(event["event"] == "restoring" for event in project.news(before))
        project.measure("final", OUTCOMES["equal"], RATES, Steps(project.root))
        assert project.kernel() == (SLOW if is_begun else {KERNEL: MINE}), project.root
        assert project.opened().state.restoring is None
        if is_begun:
            assert (project.layout.replaced(1) / KERNEL).read_bytes() == MINE
        seen.add(is_begun)
    assert seen == {True, False}


def test_an_edit_after_a_kill_stays(project: DrivenCampaign) -> None:
    begun = project.ledger()
    project.restore(2, Steps(project.root))
    lines = project.layout.ledger.read_bytes()[len(begun) :].splitlines(keepends=True)
    project.layout.ledger.write_bytes(begun + lines[0])
    project.write(KERNEL, b"LATER = 1\n")
    assert project.play("faster").verdict
    assert project.kernel()[KERNEL] == b"LATER = 1\n"


@pytest.mark.parametrize("outcome", ["wrong", "interrupted"])
def test_an_open_round_is_discarded(project: DrivenCampaign, outcome: str) -> None:
    assert project.play(outcome).verdict
    project.write(OTHER, MINE)
    assert not project.discard(Steps(project.root)).refusal
    assert project.kernel() == OLD
    snapshot = project.layout.attempt(3, 2) / "kernel_snapshot"
    assert (snapshot / OTHER).read_bytes() == MINE
    state = project.opened().state
    verdict = state.rounds[3].verdict
    assert state.next_round == 4 and verdict is not None
    assert verdict.decision == "ROLLED_BACK" and "discarded by its author" in verdict.reason
    assert "discarded by its author" in project.layout.summary(3).read_text()
    project.write(KERNEL, b"NEXT = 1\n")
    assert project.play("faster").verdict


def test_no_open_round_is_no_round_to_discard(project: DrivenCampaign) -> None:
    before = project.ledger()
    assert "no round after the baseline is open" in project.discard(Steps(project.root)).refusal
    assert project.ledger() == before


def test_a_kill_discards_wholly_or_not_at_all(tmp_path: Path) -> None:
    opened = project_at(tmp_path / "opened")
    assert opened.play("wrong").verdict
    with made_quick(in_git=False):
        for project in opened.deaths(tmp_path, DrivenCampaign.discard):
            project.discard(Steps(project.root))
            assert project.kernel() == OLD, project.root
            assert project.opened().state.next_round == 4, project.root


def test_what_was_in_the_tree_already_is_not_told_as_kept(
    project: DrivenCampaign, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)
    assert main(["restore", "2"]) == 0
    assert "restored; what was there is kept in" in capsys.readouterr().out
    assert main(["restore", "2"]) == 0
    assert capsys.readouterr().out == "round 2: its version is in the tree already\n"
