"""A session that is killed leaves the state before or the state after, and the next one goes on.

Every step on disk is a point to be killed at; see `kill_points`. What the user has in the tree (an
edit, a staged file, an untracked one) is there afterwards, whatever the kill.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import kill_points
from .kill_points import Point
from .project import CAMPAIGN, KERNEL, SERIAL, TWO_WORKERS, Project
from .sources import doubled_kernel, write_doubled

OLD, FASTER, SLOWER = doubled_kernel(), doubled_kernel(187.5), doubled_kernel(312.5)
EDIT = "An edit that is none of kopt's business.\n"
#: What a round is about: its number, the version it judges, its decision, the version it leaves.
ROUNDS = {
    "baseline": (1, OLD, "BASELINE", OLD),
    "accepted": (2, FASTER, "ACCEPTED", FASTER),
    "rolled back": (2, SLOWER, "ROLLED_BACK", OLD),
}


def prepared(directory: Path, what: str) -> Project:
    """Return a project right before the round."""
    number, version, _, _ = ROUNDS[what]
    project = Project(directory / "project")
    project.root.mkdir(parents=True)
    write_doubled(project)
    kill_points.equip(project)
    project.commit_all()
    assert project.init().code == 0
    if number > 1:
        assert project.round(1).code == 0
    project.write(KERNEL, version)
    project.write("README.md", EDIT)
    project.write("staged.py", "ANSWER = 42\n")
    project.git("add", "staged.py")
    project.write("untracked.txt", "mine\n")
    return project


def words_of(what: str, mode: tuple[str, ...]) -> tuple[str, ...]:
    return ("--kopt-campaign", CAMPAIGN, "--kopt-round", str(ROUNDS[what][0]), *mode)


def keeps_what_is_the_users(project: Project, point: Point) -> None:
    assert project.read("README.md") == EDIT, point
    assert project.read("untracked.txt") == "mine\n", point
    status = project.git("status", "--porcelain", "--", "README.md", "staged.py", "untracked.txt")
    assert status.splitlines() == [" M README.md", "A  staged.py", "?? untracked.txt"], point


def survives(
    template: Project, directory: Path, what: str, mode: tuple[str, ...], point: Point
) -> None:
    """Kill a copy of the project at a point, run the next session, and look at everything."""
    number, version, decision, left = ROUNDS[what]
    project = template.copy(directory / "project")
    kill_points.kill(project, words_of(what, mode), point, directory / "killed.log")
    assert project.read(KERNEL) in (version, left), point
    keeps_what_is_the_users(project, point)
    before = project.ledger_bytes()

    run = project.round("next", *mode)
    finished = run.code == 4 and "nothing to measure" in run.refusal
    assert (finished or run.code in (0, 8)) and "INTERNALERROR" not in run.text, (point, run.text)
    assert project.ledger_bytes().startswith(before[: before.rfind(b"\n") + 1]), point
    keeps_what_is_the_users(project, point)
    assert project.read(KERNEL) == left, point
    decided = [
        event["decision"]
        for event in project.ledger()
        if event["event"] == "decided" and event["round"] == number
    ]
    assert decided == [decision], point
    assert project.verdict(number)["decision"] == decision, point
    own = project.campaign / f"rounds/round-{number}"
    assert (own / "kernel_snapshot" / KERNEL).read_text() == version, point
    assert (own / "artifacts/benchmark.csv").read_text().count("PASS") == 2, point
    assert (own / "summary.md").is_file(), point
    for log in ("performance_trend.md", "optimize.md"):
        text = (project.campaign / "logs" / log).read_text()
        assert text.count(f"\n| {number} |" if log.startswith("p") else f"round-{number}") >= 1, (
            point
        )
    commits = project.git("log", "--format=%s").splitlines()
    own_commits = [text for text in commits if f"round-{number}:" in text]
    assert len(own_commits) == (decision == "ACCEPTED"), (point, commits)
    if decision == "ACCEPTED":
        assert project.git("show", f"HEAD:{KERNEL}") == version, point
    project.git("fsck", "--no-dangling")
    assert project.kopt("status", CAMPAIGN).code == 0, point


@pytest.mark.parametrize("what", ["accepted", pytest.param("rolled back", marks=pytest.mark.long)])
def test_a_few_kills(what: str, tmp_path: Path) -> None:
    """A sample of the long test below: while a decision is written, and while it is carried out."""
    template = prepared(tmp_path / "template", what)
    found = kill_points.points(
        template.copy(tmp_path / "listed"), words_of(what, SERIAL), tmp_path / "steps.log"
    )
    appended = [i for i, point in enumerate(found) if point.what.endswith("ledger.jsonl")]
    for name, point in {
        "torn": next(item for item in found[appended[0] :] if item.torn),
        "before the last": found[appended[-1]],
    }.items():
        survives(template, tmp_path / name, what, SERIAL, point)


@pytest.mark.long
@pytest.mark.parametrize("mode", [SERIAL, TWO_WORKERS], ids=["serial", "n2"])
@pytest.mark.parametrize("what", ROUNDS)
def test_every_kill(what: str, mode: tuple[str, ...], tmp_path: Path) -> None:
    """Every third point, and all of them with KILL_POINTS=all: that takes an hour and a half."""
    every = 1 if os.environ.get("KILL_POINTS") == "all" else 3
    template = prepared(tmp_path / "template", what)
    found = kill_points.points(
        template.copy(tmp_path / "listed"), words_of(what, mode), tmp_path / "steps.log"
    )
    assert len(found) >= 50
    for place, point in enumerate(found[::every]):
        survives(template, tmp_path / str(place), what, mode, point)
    print(f"{what}: killed at {len(found[::every])} of {len(found)} points, all survived")
