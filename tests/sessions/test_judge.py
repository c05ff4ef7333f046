"""`kopt judge`: submissions in turns against a problem's own kernel, of which nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .paired import FASTER, PLAIN, SLOWER, kernel, traced, write_paired
from .project import Project


@pytest.fixture
def problem(tmp_path: Path) -> Project:
    """A project without git."""
    project = Project(tmp_path / "problem")
    write_paired(project)
    return project


def judged(problem: Project, *submissions: Path | str, code: int) -> list[dict[str, Any]]:
    """Return what is printed of each submission."""
    before = problem.contents()
    temporary = problem.root.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    variables = {
        **traced(problem.root.parent),
        "PYTHONPATH": str(problem.root),
        "TMPDIR": str(temporary),
    }
    words = ("judge", ".", *map(str, submissions), "--at", PLAIN)
    run = problem.kopt(*words, **variables)
    assert run.code == code, run.text
    assert problem.contents() == before
    assert not [*temporary.glob("kopt-*")]
    return [json.loads(line) for line in run.out.splitlines()]


def test_each_submission_has_one_verdict(problem: Project, tmp_path: Path) -> None:
    files = {
        "faster.py": kernel(FASTER, "new"),
        "slower.py": kernel(SLOWER, "new"),
        "wrong.py": kernel(FASTER, "new", factor=3.0),
        "large.py": "#" * (1 << 20) + "\n",
    }
    submissions = [tmp_path / name for name in (*files, "link.py", "nowhere.py")]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "link.py").symlink_to("faster.py")
    documents = judged(problem, *submissions, code=0)
    assert [Path(document["submission"]).name for document in documents] == [
        path.name for path in submissions
    ]
    assert [document["outcome"] for document in documents] == [
        *("faster", "slower", "wrong", "refused", "refused", "refused"),
    ]
    assert [document["exit_code"] for document in documents] == [0, 8, 1, 1, 1, 1]
    decisions = [(document["verdict"] or {}).get("decision") for document in documents]
    assert decisions == ["ACCEPTED", "ROLLED_BACK", "REPAIR", None, None, None]
    (alone,) = judged(problem, tmp_path / "large.py", code=1)
    assert alone["outcome"] == "refused"


def test_a_submission_has_a_time_limit(problem: Project, tmp_path: Path) -> None:
    """Python alone takes longer to start."""
    (tmp_path / "new.py").write_text(kernel(FASTER, "new"))
    (document,) = judged(problem, tmp_path / "new.py", "--seconds", "0.01", code=1)
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
