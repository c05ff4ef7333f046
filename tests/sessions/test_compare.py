"""`kopt compare`: two files, folders or refs, whose project stays as it is."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt import BadInput, compare
from pytest_kopt.standalone import two_versions

from .. import nursery
from .paired import FASTER, OLD, PLAIN, kernel, traced, write_paired
from .project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project without git."""
    project = Project(tmp_path / "project")
    write_paired(project)
    return project


def compared(project: Project, *words: str, code: int, command: str = "compare") -> dict[str, Any]:
    """Run `kopt compare` or `time`, which leaves nothing behind; return what it prints."""
    before = project.contents()
    variables = traced(project.root.parent)
    variables["PYTHONPATH"] = str(project.root)
    temporary = project.root.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    run = project.kopt(command, *words, "--json", TMPDIR=str(temporary), **variables)
    assert run.code == code, run.text
    assert project.contents() == before
    left = [path.name for path in temporary.iterdir() if path.name.startswith("kopt-")]
    assert not left, left
    document: dict[str, Any] = json.loads(run.out)
    assert document["exit_code"] == code
    return document


def test_two_files_at_the_place_that_the_tests_import(project: Project, tmp_path: Path) -> None:
    old, new = tmp_path / "old.py", tmp_path / "plain.py"
    old.write_text(kernel(OLD, "old"))
    new.write_text(kernel(FASTER, "new", factor=3.0))
    document = compared(project, str(old), str(new), "tests/test_plain.py", code=1)
    assert document["verdict"]["outcome"] == "wrong"


def test_two_folders_and_two_refs(project: Project, tmp_path: Path) -> None:
    """The older ref may come second: there is no merge base to go by."""
    folders = [Project(tmp_path / name) for name in ("wrong", "plain")]
    for folder, factor in zip(folders, (3.0, 2.0), strict=True):
        folder.write(PLAIN, kernel(OLD, folder.root.name, factor=factor))
    wrong, plain = (str(folder.root) for folder in folders)
    assert compared(project, plain, wrong, code=1)["verdict"]["outcome"] == "wrong"
    project.write(PLAIN, kernel(FASTER, "old"))
    project.commit_all("Faster")
    project.write(PLAIN, kernel(OLD, "new"))
    project.commit_all("Slower")
    document = compared(project, "HEAD", "HEAD~1", code=0)
    assert document["verdict"]["base"] == project.head()
    assert document["verdict"]["outcome"] == "faster"


def test_threads_of_a_program_call_it_and_find_everything_as_it_was(
    project: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    variables = project.environment() | traced(tmp_path)
    variables |= {"PYTHONPATH": str(project.root), "TMPDIR": str(temporary)}
    variables |= {nursery.SOCKET: nursery.address()}
    monkeypatch.setattr(two_versions, "subprocess", nursery.RELAYING)
    for name in {*os.environ} - {*variables}:
        monkeypatch.delenv(name)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    old, faster, wrong = (tmp_path / name / "plain.py" for name in ("old", "faster", "wrong"))
    kernels = (kernel(OLD, "old"), kernel(FASTER, "new"), kernel(OLD, "new", factor=3.0))
    for file, source in zip((old, faster, wrong), kernels, strict=True):
        file.parent.mkdir()
        file.write_text(source)
    before = project.contents(), Path.cwd(), dict(os.environ)

    def compared_with_old(new: Path) -> tuple[str | None, float | None]:
        verdict = compare(old, new, "tests/test_plain.py", project=project.root)
        return verdict.outcome, verdict.shapes[0].change_pct

    with ThreadPoolExecutor() as threads:
        first, second = threads.map(compared_with_old, (faster, wrong))
    assert first[0] == "faster" and first[1] == pytest.approx(100 * (OLD / FASTER - 1))
    assert second == ("wrong", None)
    with pytest.raises(BadInput, match=r"nowhere\.py: there is no such file, folder or git ref"):
        compare(old, "nowhere.py", project=project.root)
    with pytest.raises(BadInput, match="there is no such folder"):
        compare(old, faster, project=tmp_path / "nowhere")
    assert (project.contents(), Path.cwd(), dict(os.environ)) == before
    assert not [path for path in temporary.iterdir() if path.name.startswith("kopt-")]
    assert capfd.readouterr() == ("", "")


def test_versions_that_no_case_runs_are_not_compared(project: Project, tmp_path: Path) -> None:
    folders = [Project(tmp_path / name) for name in ("plain", "wrong")]
    for folder, factor in zip(folders, (2.0, 3.0), strict=True):
        folder.write("plain.py", kernel(OLD, folder.root.name, factor=factor))
    plain, wrong = (str(folder.root) for folder in folders)
    reason = compared(project, plain, wrong, code=4)["reason"]
    unused = "no case runs the files that differ: plain.py"
    called = "the cases call kernels.plain.plain"
    assert reason.startswith(f"{plain}: {unused}; {called}. Fix: name tests that do; or name")
    document = compared(project, plain, wrong, "--at", "kernels", code=1)
    assert document["verdict"]["base"] == plain
    files = (str(Path(folder, "plain.py")) for folder in (plain, wrong))
    reason = compared(project, *files, "--at", "kernels/plian.py", code=4)["reason"]
    assert reason.startswith("--at kernels/plian.py: there is no such file")


def test_what_is_no_pair_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = project.kopt("compare", str(tmp_path / "empty"), "kernels", "tests")
    assert run.code == 4 and "/empty: has no file at a path" in run.refusal
    run = project.kopt("compare", PLAIN, "kernels", "tests")
    assert run.code == 4 and "neither two files, two folders nor two git refs" in run.refusal
    for unknown in ("HEAD", "kernels/nwe.py"):
        run = project.kopt("compare", PLAIN, unknown, "tests")
        assert (
            run.code == 4 and f"{unknown}: there is no such file, folder or git ref" in run.refusal
        )


def test_without_tests_the_older_version_says_what_is_right(
    project: Project, tmp_path: Path
) -> None:
    """The test that was made for it is kept, and times one version."""
    old, new = tmp_path / "plain.py", project.root / PLAIN
    old.write_text("def plain(x):\n    return 2 * x\n")
    kept = tmp_path / "kept" / "test_doubled.py"
    words = ("--call", "plain", "--shapes", "f32[4,8]", "--write-test", str(kept))
    new.write_text(kernel(FASTER, "new", factor=3.0))
    document = compared(project, str(old), PLAIN, *words, code=1)
    assert document["reference"] == "plain.py in float64"
    assert document["verdict"]["outcome"] == "wrong"
    assert [path.name for path in sorted(kept.parent.iterdir())] == [
        "reference_plain.py",
        "test_doubled.py",
    ]
    old.write_text("import nowhere\n\n\ndef plain(x):\n    return 2 * x\n")
    reason = compared(project, str(old), PLAIN, *words[:4], code=4)["reason"]
    assert f"{old}: test_kopt_plain.py does not import there" in reason
    for file in kept.parent.iterdir():
        project.write(f"tests/{file.name}", file.read_text())
    new.write_text(kernel(FASTER, "new"))
    timed = compared(project, PLAIN, "tests/test_doubled.py", command="time", code=0)
    assert [(row["Check"], row["Time (ms)"]) for row in timed["rows"]] == [("PASS", FASTER)]
