"""`kopt bisect` over real histories: what is measured, what is skipped, and what it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .paired import FASTER, OLD, PLAIN, SLOWER, Gate, kernel, project_at
from .project import Project


class Bisected(Gate):
    """Runs `kopt bisect` as the gate is run: nothing may be left behind."""

    def words(self, base: str) -> tuple[str, ...]:
        return ("bisect", base, "--json")

    def bisect(self, *words: str, code: int, base: str = "good") -> dict[str, Any]:
        """Return the report of a bisection that ends with this exit code."""
        before = self.left_behind()
        run = self.project.kopt(*self.words(base), *words, **self.variables())
        self.expect(before)
        assert run.code == code, run.text
        report: dict[str, Any] = json.loads(run.out)
        return report


@pytest.fixture
def bisected(tmp_path: Path) -> Bisected:
    """A project whose first commit is tagged as good."""
    project = project_at(tmp_path / "project")
    project.git("tag", "good")
    return Bisected(project)


def commit(project: Project, subject: str, text: str, path: str = PLAIN) -> str:
    """Commit a file and return the commit."""
    project.write(path, text)
    project.commit_all(subject)
    return project.head()


def test_the_first_slower_commit_of_a_history_is_named(bisected: Bisected) -> None:
    """A merge made it slow; what is broken is stepped over."""
    project = bisected.project
    same = commit(project, "Rewrite", kernel(OLD, "rewritten"))
    wrong = commit(project, "Mistake", kernel(OLD, "wrong", factor=3.0))
    project.git("switch", "--quiet", "-c", "side")
    commit(project, "On the side", kernel(SLOWER, "side"))
    project.git("switch", "--quiet", "main")
    project.git("merge", "--quiet", "--no-ff", "-m", "Merge the side", "side")
    merge = project.head()
    last = commit(project, "Say more", "A good project.\n", "README.md")
    report = bisected.bisect(code=8)
    first = report["first_slower"]
    assert first["commit"] == merge and first["subject"] == "Merge the side"
    assert first["or_one_of"] == [wrong]
    total = first["verdict"]["aggregate"]
    assert total["change_pct"] == pytest.approx(100 * (OLD / SLOWER - 1))
    assert total["low_pct"] <= total["change_pct"] <= total["high_pct"] < 0
    standing = {row["commit"]: row for row in report["commits"]}
    assert {*standing} == {same, wrong, merge, last}
    assert standing[same]["standing"] == "not slower"
    assert standing[wrong]["standing"] == "skipped" and "FAIL" in standing[wrong]["reason"]
    assert standing[merge]["standing"] == standing[last]["standing"] == "slower"


@pytest.mark.long
def test_a_history_without_a_loss_says_so_with_the_bound(bisected: Bisected) -> None:
    """A commit that got faster is no loss, and neither are words."""
    commit(bisected.project, "Say more", "A good project.\n", "README.md")
    (words,) = bisected.bisect(code=0)["commits"]
    assert words["standing"] == "not slower"
    commit(bisected.project, "Gain", kernel(FASTER, "gain"))
    report = bisected.bisect(code=0)
    assert report["first_slower"] is None
    (gain,) = report["commits"]
    assert gain["standing"] == "not slower" and gain["verdict"]["aggregate"]["low_pct"] > 0
    shown = bisected.project.kopt("bisect", "good", **bisected.variables())
    assert shown.out == "BAD is not slower than GOOD\n", shown.text
    assert "Gain: not slower: " in shown.err, shown.text


@pytest.mark.long
def test_commits_that_do_not_build_are_skipped_and_named(bisected: Bisected) -> None:
    """One does not even parse, one lacks what it imports; the loss lies right behind them."""
    project = bisected.project
    same = commit(project, "Rewrite", kernel(OLD, "rewritten"))
    unparsed = commit(project, "Half a line", kernel(OLD, "half") + "\nplain = (\n")
    missing = commit(project, "No such module", kernel(OLD, "lost", imports="import nowhere"))
    slower = commit(project, "Mend and slow down", kernel(SLOWER, "slow"))
    commit(project, "Go on", kernel(SLOWER, "later"))
    report = bisected.bisect(code=8)
    first = report["first_slower"]
    assert (
        first["commit"] == slower
        and {row["commit"]: row["standing"] for row in report["commits"]}[same] == "not slower"
    )
    assert {*first["or_one_of"]} == {unparsed, missing}
    standing = {row["commit"]: row for row in report["commits"]}
    assert standing[same]["standing"] == "not slower"
    for broken, says in ((unparsed, "SyntaxError"), (missing, "No module named 'nowhere'")):
        assert standing[broken]["standing"] == "skipped", standing[broken]
        assert says in standing[broken]["reason"], standing[broken]


def _unrelated(project: Project) -> tuple[str, ...]:
    project.git("switch", "--quiet", "-c", "other", "good")
    commit(project, "Elsewhere", kernel(OLD, "elsewhere"))
    project.git("switch", "--quiet", "main")
    return ("other",)


@pytest.mark.parametrize(
    ("prepare", "parts"),
    [
        (lambda _: ("nowhere",), ("'nowhere' is unknown", "a branch, tag or commit")),
        (_unrelated, ("'other' is no ancestor of 'HEAD'", "merge-base")),
        (lambda _: ("good", "--", "tests/nowhere.py"), ("BAD cannot be compared",)),
    ],
    ids=["unknown", "no ancestor", "no such test"],
)
def test_what_cannot_be_bisected_is_refused(
    bisected: Bisected, prepare: Callable[[Project], tuple[str, ...]], parts: tuple[str, ...]
) -> None:
    commit(bisected.project, "Change", kernel(SLOWER, "slower"))
    words = prepare(bisected.project)
    before = bisected.left_behind()
    run = bisected.project.kopt("bisect", *words, **bisected.variables())
    assert run.code == 4, run.text
    for part in parts:
        assert part in run.refusal
    bisected.expect(before)
