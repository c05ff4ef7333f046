"""Campaigns in work trees of their own: the user's tree is untouched, and nothing is lost."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_kopt.cli.main import main

from .project import CAMPAIGN, CASES, INIT, KERNEL, Project, Run
from .sources import doubled_kernel, write_doubled

BRANCH = f"optimize/{CAMPAIGN}"


@pytest.fixture
def ready(empty: Project) -> Project:
    """A project with a first commit and no campaign."""
    write_doubled(empty)
    empty.commit_all()
    return empty


def in_tree(project: Project, words: tuple[str, ...] = INIT) -> Project:
    """Set a campaign up in a tree of its own beside the project."""
    tree = project.root.with_name(f"tree-of-{words[1]}")
    run = project.kopt(*words, "--worktree", f"../{tree.name}")
    assert run.code == 0, run.text
    assert f"cd {tree}\n" in run.out
    return Project(tree)


def users_state(project: Project) -> tuple[str, ...]:
    """What git and the disk say of the user's tree."""
    words = (
        "status --porcelain",
        "branch --show-current",
        "rev-parse HEAD",
        "diff",
        "diff --cached",
    )
    return tuple(project.git(*text.split()) for text in words)


def test_a_campaign_in_a_tree_of_its_own(ready: Project) -> None:
    """It runs there and is kept in the main tree's workspace, which outlives the other tree."""
    ready.write("README.md", "Edited.\n")
    ready.write("staged.txt", "staged\n")
    ready.git("add", "staged.txt")
    ready.write("draft.txt", "untracked\n")
    before = users_state(ready)
    tree = in_tree(ready)
    assert tree.git("branch", "--show-current").strip() == BRANCH
    assert tree.head() == ready.head()
    manifest = (ready.campaign / "manifest.yaml").read_text()
    assert "execution_mode: workspace" in manifest and not (tree.root / "agent").exists()

    assert tree.round(1).code == 0
    tree.write(KERNEL, doubled_kernel(187.5))
    run = tree.pytest("--kopt-round", "next")  # the branch says which campaign
    assert run.code == 0, run.text
    shown = tree.git("log", "-1", "--format=%B", "--name-only")
    assert shown.split()[-1] == KERNEL and f"Details: {CAMPAIGN}/logs/optimize.md" in shown
    assert users_state(ready) == before

    kept = [path for path in ready.campaign.rglob("*") if path.is_file()]
    assert [p for p in kept if str(ready.root.parent).encode() in p.read_bytes()] == [], (
        "no document names the place where it was made"
    )

    away, there = (project.kopt("status", CAMPAIGN) for project in (ready, tree))
    assert away.code == there.code == 0, away.text
    way = f"cd {tree.root} && "
    assert f"{way}pytest" in away.out and away.out.replace(way, "") == there.out

    run = ready.ask("next")
    assert run.code == 4 and f"cd {tree.root}" in run.refusal
    assert users_state(ready) == before

    tree.git("clean", "-qfd")
    ready.git("worktree", "remove", str(tree.root))
    run = ready.kopt("status", CAMPAIGN)
    assert run.code == 0 and "round 2: ACCEPTED" in run.out
    assert f"git switch {BRANCH}" in run.out
    assert ready.git("show", f"{BRANCH}:{KERNEL}") == doubled_kernel(187.5)


SECOND = "second_torch_cpu_20260101"


@pytest.mark.long
def test_two_campaigns_at_the_same_time_in_trees_of_their_own(ready: Project) -> None:
    """Of different kernels in one repository: they take turns at timing, and nothing gets mixed."""
    for path in (KERNEL, CASES):
        text = ready.read(path).replace("kernels.doubled", "kernels.second")
        ready.write(path.replace("doubled", "second"), text)
    ready.commit_all("Add a second kernel")
    kernels = {CAMPAIGN: KERNEL, SECOND: "kernels/second.py"}
    trees = {}
    for name, path in kernels.items():
        what = ("--op", "doubled", "--kernel", path, "--tests", f"tests/test_{Path(path).stem}.py")
        trees[name] = in_tree(ready, ("init", name, *what, *INIT[6:]))
    before = users_state(ready)

    def play(name: str) -> Run:
        return trees[name].pytest("--kopt-round", "next")

    for _ in ("the baseline", "an accepted round"):
        with ThreadPoolExecutor() as pool:
            runs = list(pool.map(play, kernels))
        assert [run.code for run in runs] == [0, 0], "".join(run.text for run in runs)
        for name, path in kernels.items():
            trees[name].write(path, doubled_kernel(187.5))
    for name, path in kernels.items():
        assert ready.git("show", f"optimize/{name}:{path}") == doubled_kernel(187.5)
        words = ("log", "--format=", "--name-only", f"main..optimize/{name}")
        assert ready.git(*words).split() == [path], "its own commits and no others"
        run = ready.kopt("status", name)
        assert "1 accepted, none rolled back" in run.out and str(trees[name].root) in run.out
    assert users_state(ready) == before


def dirty_kernel(project: Project) -> None:
    project.write(KERNEL, doubled_kernel(1.0))


def existing(project: Project) -> None:
    (project.root.parent / "tree").mkdir()


def taken_branch(project: Project) -> None:
    project.git("worktree", "add", "-q", "-b", BRANCH, "../elsewhere")


def unborn(project: Project) -> None:
    project.git("update-ref", "-d", "HEAD")


def no_repository(project: Project) -> None:
    (project.root / ".git").rename(project.root.parent / "gone")


def imported_from_the_users_tree(project: Project) -> None:
    """As an editable install does it."""
    text = project.read("pyproject.toml").replace('["."]', f'["{project.root}"]')
    project.write("pyproject.toml", text)
    project.commit_all()


def test_a_tree_whose_tests_import_the_users_kernel_measures_nothing(ready: Project) -> None:
    imported_from_the_users_tree(ready)
    tree = in_tree(ready)
    run = tree.round(1)
    assert run.code == 4, run.text
    assert re.search(r"from a copy, \S+, instead of this tree's", run.text), run.text


def nothing(project: Project) -> None:
    pass


@pytest.mark.parametrize(
    ("spoil", "words", "named"),
    [
        (dirty_kernel, (), rf"commit the kernel first, {KERNEL}"),
        (existing, (), r"/tree exists already"),
        (taken_branch, (), rf"branch '{BRANCH}' is checked out in \S+/elsewhere"),
        (unborn, (), r"no commit yet"),
        (no_repository, (), r"no git repository"),
        (nothing, ("--branch", "none"), r"needs a branch"),
        (nothing, ("--worktree", "trees/inside"), r"lies inside the tree"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_tree_that_cannot_be_made_is_named_and_nothing_changes(
    ready: Project,
    spoil: Callable[[Project], None],
    words: tuple[str, ...],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(ready)
    before = [file for file in sorted(ready.root.parent.rglob("*")) if is_ours(file)]
    contents = ready.contents()
    monkeypatch.chdir(ready.root)
    assert main([*INIT, "--worktree", "../tree", *words]) == 4
    told = capsys.readouterr().err
    assert re.search(named, told) and "Traceback" not in told, told
    assert [file for file in sorted(ready.root.parent.rglob("*")) if is_ours(file)] == before
    assert ready.contents() == contents


def is_ours(path: Path) -> bool:
    return "__pycache__" not in path.parts and ".git" not in path.parts


@pytest.mark.long
def test_a_bare_repository_and_a_submodule_are_named(ready: Project, tmp_path: Path) -> None:
    """Where no main tree would keep the campaign; a plain campaign in such a tree holds it fast."""
    bare = tmp_path / "bare.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(ready.root), str(bare)], check=True)
    only = Project(tmp_path / "only")
    subprocess.run(["git", "worktree", "add", "-q", str(only.root)], cwd=bare, check=True)
    run = only.kopt(*INIT, "--worktree", "../tree")
    assert run.code == 4 and "no main tree" in run.refusal
    assert only.kopt(*INIT).code == 0
    removal = ["git", "worktree", "remove", "--force", str(only.root)]
    done = subprocess.run(removal, cwd=bare, capture_output=True, text=True, check=False)
    assert done.returncode and "holds campaigns of pytest-kopt" in done.stderr
    assert (only.campaign / "manifest.yaml").exists()

    around = Project(tmp_path / "around")
    around.write("README.md", "Around.\n")
    around.commit_all()
    words = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")
    around.git(*words, str(ready.root), "part")
    run = Project(around.root / "part").kopt(*INIT, "--worktree", "../../tree")
    assert run.code == 4 and "submodule" in run.refusal
    assert not (tmp_path / "tree").exists()
