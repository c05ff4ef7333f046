"""A campaign that goes on elsewhere: from a clone of the repository and its own directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_kopt.devices import machine

from .project import CAMPAIGN, KERNEL, Project
from .sources import doubled_kernel
from .story import Story

#: Found by every process whose PYTHONPATH names its folder: another machine's name.
OTHER_HOST = "import platform\nplatform.node = lambda: 'another-host'\n"


@pytest.fixture
def moved(serial_story: Story, tmp_path: Path) -> Project:
    """A campaign with an accepted round, cloned to another path, without what git ignores."""
    home = serial_story["accepted"].project
    target = Project(tmp_path / "another machine" / "clone")
    home.git("clone", "--quiet", f"file://{home.root}", str(target.root))
    shutil.copytree(home.campaign, target.campaign)
    return target


def test_a_campaign_goes_on_from_a_clone_and_its_directory(moved: Project, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(OTHER_HOST)
    elsewhere = {"PYTHONPATH": str(tmp_path)}
    before = moved.ledger_bytes()
    run = moved.kopt("status")
    assert run.code == 0 and "round 2: ACCEPTED" in run.out and "the chain is broken" not in run.out
    assert f"pytest --kopt-campaign {CAMPAIGN} --kopt-round 3" in run.out

    moved.write(KERNEL, doubled_kernel(125.0))
    assert f"{KERNEL} is not as round 2 had it" in moved.kopt("status").out
    run = moved.round("next", **elsewhere)
    assert run.code == 0, run.text
    verdict = moved.verdict(3)
    assert verdict["decision"] == "ACCEPTED", "the harness is the baseline's, wherever it lies"
    flags = [flag for flag in verdict["flags"] if "another-host" in flag]
    assert len(flags) == 1 and "--kopt-compare paired" in flags[0], verdict["flags"]
    assert moved.ledger_bytes().startswith(before)
    assert moved.git("show", f"HEAD:{KERNEL}") == doubled_kernel(125.0)


def test_a_branch_without_the_accepted_commit_is_named(moved: Project) -> None:
    """Its kernel is not the one that the next round goes on from; the same kernel is enough."""
    accepted = moved.head()[:12]
    branch = moved.git("branch", "--show-current").strip()
    moved.git("reset", "--quiet", "--hard", "HEAD~1")
    before = moved.contents()
    run = moved.round("next")
    assert run.code == 4 and accepted in run.refusal and "round 2" in run.refusal
    assert moved.contents() == before
    run = moved.kopt("status")
    assert run.code == 0 and f"lacks commit {accepted}" in run.out
    assert "--kopt-round 3" not in run.out

    moved.git("reset", "--quiet", "--hard", "@{1}")
    moved.git("checkout", "--quiet", "--orphan", "squashed")
    moved.git("commit", "--quiet", "-m", "All in one")
    moved.git("branch", "--quiet", "-M", "squashed", branch)
    run = moved.kopt("status")
    assert "lacks commit" not in run.out and "--kopt-round 3" in run.out


def test_a_campaign_directory_that_is_not_whole_is_named(moved: Project) -> None:
    shutil.rmtree(moved.campaign / "rounds/round-2/artifacts/attempt-1/kernel_snapshot")
    run = moved.kopt("status")
    assert run.code == 0 and KERNEL in run.out.partition("next: fix first")[2]
    run = moved.round("next")
    assert run.code == 4 and KERNEL in run.refusal


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ({}, ""),
        ({"host": "a"}, ""),
        ({"host": "a", "cpu": "X"}, ""),
        ({"host": "b", "cpu": "X"}, "b (X), this is a (X)"),
        ({"host": "a", "cpu": "Y"}, "a (Y), this is a (X)"),
        ({"host": "b"}, "b (CPU not recorded), this is a (X)"),
    ],
)
def test_another_machine_is_told_from_what_a_session_recorded(
    recorded: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "this_machine", lambda: {"host": "a", "cpu": "X"})
    assert machine.elsewhere(recorded) == told
