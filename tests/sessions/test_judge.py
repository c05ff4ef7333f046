"""`kopt judge`: a submission against a problem's own kernel, of which nothing is left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .paired import FASTER, PLAIN, kernel, traced, write_paired
from .project import Project


@pytest.fixture
def problem(tmp_path: Path) -> Project:
    """A project without git."""
    project = Project(tmp_path / "problem")
    write_paired(project)
    return project


def judged(problem: Project, submission: Path, *words: str, code: int) -> dict[str, Any]:
    """Return what is printed of a submission."""
    before = problem.contents()
    temporary = problem.root.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    variables = {
        **traced(problem.root.parent),
        "PYTHONPATH": str(problem.root),
        "TMPDIR": str(temporary),
    }
    run = problem.kopt("judge", ".", str(submission), *words, "--at", PLAIN, **variables)
    assert run.code == code, run.text
    assert problem.contents() == before
    assert not [*temporary.glob("kopt-*")]
    document: dict[str, Any] = json.loads(run.out)
    assert document["exit_code"] == code
    return document


@pytest.mark.parametrize(
    ("text", "code", "outcome", "decision"),
    [
        (kernel(FASTER, "new"), 0, "faster", "ACCEPTED"),
        (kernel(FASTER, "new", factor=3.0), 1, "wrong", "REPAIR"),
    ],
    ids=["faster", "wrong"],
)
def test_a_submission_has_one_verdict(
    problem: Project, tmp_path: Path, text: str, code: int, outcome: str, decision: str
) -> None:
    (tmp_path / "new.py").write_text(text)
    document = judged(problem, tmp_path / "new.py", code=code)
    assert (document["outcome"], document["verdict"]["decision"]) == (outcome, decision)


def test_a_submission_is_a_plain_file(problem: Project, tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(kernel(FASTER, "new"))
    (tmp_path / "link.py").symlink_to("new.py")
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("link.py", "pipe.py", "nowhere.py"):
        document = judged(problem, tmp_path / name, code=4)
        assert (document["outcome"], document["verdict"]) == ("not judged", None)
        assert document["reason"] == f"{tmp_path / name}: is no plain file"


def test_a_submission_has_a_time_limit(problem: Project, tmp_path: Path) -> None:
    """Python alone takes longer to start."""
    (tmp_path / "new.py").write_text(kernel(FASTER, "new"))
    document = judged(problem, tmp_path / "new.py", "--seconds", "0.01", code=1)
    assert (document["outcome"], document["verdict"]) == ("over the time limit", None)
    assert document["reason"] == "it takes more than 0.01 s"


def test_a_problem_has_a_baseline(problem: Project, tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(kernel())
    run = problem.kopt("judge", ".", str(tmp_path / "new.py"), "--at", "kernels/none.py")
    assert run.code == 4 and "there is no such file or folder" in run.refusal
    document = json.loads(run.out)
    assert document["reason"] == run.refusal and document["outcome"] == "not judged"
    (problem.root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    run = problem.kopt("judge", ".", str(tmp_path / "new.py"), "--at", PLAIN)
    assert run.code == 4 and 'have no testpaths. Fix: testpaths = ["tests"]' in run.refusal
