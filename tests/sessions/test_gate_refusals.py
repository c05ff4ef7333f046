"""Gates that judge nothing: what they refuse, and what is left of one that is cut off."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import contents_at

from .paired import (
    FASTER,
    PLAIN,
    PLAIN_CASES,
    Gate,
    compares,
    kernel,
    names,
    project_at,
)
from .project import Project

long = pytest.mark.long


# What is refused: one message, nothing measured, nothing changed.


def test_bases_that_are_none(gate: Gate) -> None:
    project = gate.project
    assert "nowhere" in gate.refused(base="nowhere")
    for ref in ("--output=stolen", "-O", "main:README.md", "main..main", ""):
        message = gate.refused(base=ref)
        assert f"--kopt-base {ref}" in message and "unknown" in message
    assert not (project.root / "stolen").exists()
    project.git("checkout", "--quiet", "--orphan", "elsewhere")
    project.commit_all("Another history")
    assert "no common history" in gate.refused()


def test_a_clone_without_the_merge_base(gate: Gate, tmp_path: Path) -> None:
    """As CI makes it: the head alone, or head and base without what lies between."""
    origin = gate.project
    origin.git("switch", "--quiet", "-c", "topic")
    origin.write(PLAIN, kernel(FASTER, "new"))
    origin.commit_all("Faster")
    origin.git("switch", "--quiet", "main")
    origin.write("README.md", "Meanwhile.\n")
    origin.commit_all("Meanwhile")
    url = f"file://{origin.root}"
    origin.git("clone", "-q", "--depth", "1", "--branch", "topic", url, str(tmp_path / "clone"))
    clone = Gate(Project(tmp_path / "clone"))
    message = clone.refused(base="origin/main")
    assert "unknown" in message and "fetch-depth: 0" in message
    clone.project.git("fetch", "-q", "--depth", "1", "origin", "main:refs/remotes/origin/main")
    message = clone.refused(base="origin/main")
    assert "no common history" in message and "shallow" in message and "fetch-depth: 0" in message


def test_where_there_is_no_repository(gate: Gate, tmp_path: Path) -> None:
    (gate.project.root / ".git").rename(tmp_path / "away")
    done = gate.project.refuse(*gate.words("main"))
    assert done.code == 4 and "no git repository" in done.refusal
    gate.project.git("init", "--quiet")
    done = gate.project.refuse(*gate.words("main"))
    assert done.code == 4 and "commit" in done.refusal


def test_a_submodule_that_changed(gate: Gate, tmp_path: Path) -> None:
    other = project_at(tmp_path / "other")
    project = gate.project
    local = ("-c", "protocol.file.allow=always")
    project.git(*local, "submodule", "--quiet", "add", str(other.root), "vendor")
    project.commit_all("With a submodule")
    project.write("vendor/kernels/plain.py", kernel(FASTER, "new"))
    repository = Repository.around(project.root)
    assert repository is not None
    assert contents_at(repository, "HEAD") == {
        "vendor/kernels/plain.py": other.read("kernels/plain.py").encode()
    }
    Project(project.root / "vendor").commit_all("Faster")
    project.git("checkout", "--quiet", "-b", "bump")
    project.commit_all("Bump the submodule")
    (project.root / "vendor/.git").rename(tmp_path / "away")
    message = gate.refused()
    assert "vendor" in message and "git submodule update --init vendor" in message


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--kopt-round", "2"), ("--kopt-base", "it needs no campaign")),
        (("--kopt-campaign", "mine"), ("--kopt-base", "it needs no campaign")),
        (("--kopt-compare", "stored"), ("--kopt-compare", "no stored baseline", "paired")),
        (("--kopt-notes", "notes.yaml"), ("--kopt-notes", "--kopt-round")),
        (("-o", "kopt_gate=faster"), ("'faster'", "no-regression, improve")),
        (("--kopt-calibrate", "4"), ("--kopt-calibrate", "--kopt-base")),
        (("--kopt-check-only",), ("--kopt-check-only: excludes --kopt-base", "records nothing")),
    ],
)
def test_options_that_do_not_go_with_it(
    refusing: Gate, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    message = refusing.refused(*words)
    for part in parts:
        assert part in message


def test_a_gate_needs_a_base(refusing: Gate) -> None:
    run = refusing.project.refuse("--kopt-gate", "improve")
    assert run.code == 4 and "--kopt-base REF" in run.refusal
    run = refusing.project.refuse("--kopt-allow-removed")
    assert run.code == 4 and "--kopt-allow-removed: needs --kopt-base" in run.refusal


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """A gate that only refuses, shared."""
    return Gate(project_at(tmp_path_factory.mktemp("refusing") / "project"))


@long
def test_a_base_whose_kernel_does_not_import(gate: Gate) -> None:
    """Its test file is there, so its cases are not new ones."""
    gate.project.git("rm", "--quiet", PLAIN)
    gate.project.commit_all("Broken")
    gate.project.write(PLAIN, kernel(FASTER, "new"))
    done = gate()
    assert done.run.code == 4 and done.verdict is None and done.trace == [], done.run.text
    for part in ("tests/test_plain.py", "does not import", "kernels.plain", "--kopt-base main"):
        assert part in done.run.refusal


@long
def test_a_base_whose_kernel_does_not_import_when_it_is_called(gate: Gate) -> None:
    """Seen only in the replicas; never a stored comparison, never silence."""
    late = kernel().replace(
        "def plain(x):\n", "def plain(x):\n    from kernels.core import COST_MS\n"
    )
    gate.project.write(PLAIN, late)
    gate.project.write("kernels/core.py", "raise ImportError('gone astray')\n")
    gate.project.commit_all("Broken")
    gate.project.write("kernels/core.py", "COST_MS = 250.0\n")
    done = gate()
    assert done.run.code == 4, done.run.text
    for part in ("gone astray", "--kopt-base main", "under both names"):
        assert part in done.run.refusal
    assert done.verdict is None


# Cut off in the middle.

BLOCKING = """\
import os
import pathlib
import time

pathlib.Path(os.environ["TRACE"]).write_text("collecting 0\\n")
time.sleep(3600)
"""


@long
def test_interrupted_while_the_base_is_collected(gate: Gate) -> None:
    gate.project.write("tests/test_plain.py", BLOCKING)
    gate.project.commit_all("Takes its time")
    gate.project.write("tests/test_plain.py", PLAIN_CASES)
    # A process that still collects would not listen to anything milder than a kill.
    assert gate.interrupt(signal.SIGTERM, lambda: names(gate.traced()) == {"collecting"}) == 2
    assert names(gate.traced()) == {"collecting"}, "nothing was measured after that"


@long
def test_interrupted_in_the_middle_of_the_comparison(gate: Gate) -> None:
    gate.project.write(PLAIN, kernel(FASTER, "new"))
    assert gate.interrupt(signal.SIGINT, lambda: compares(gate.trace)) == 2
    assert not gate.verdict.exists()


def test_trees_of_a_killed_run_are_removed_by_the_next(gate: Gate) -> None:
    """Only those of processes that are gone."""
    dead, alive = (gate.tmp / f"kopt-scratch-{pid}-x" for pid in (2**22 + 1, os.getpid()))
    for path in (dead, alive):
        (path / "first").mkdir(parents=True)
    gate.project.write("tests/test_plain.py", PLAIN_CASES + "\n\nTIDIER = True\n")
    run = gate.project.pytest(*gate.words("main"), **gate.variables())
    assert run.code == 0 and "no kernel code changed" in run.out, run.text
    assert not dead.exists() and alive.exists()
