"""Working trees that are not as a tool expects them: rounds end clearly, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .project import CASES, KERNEL, SCRIPT, Project
from .sources import doubled_kernel

FASTER, SLOWER = doubled_kernel(187.5), doubled_kernel(312.5)


def is_rolled_back(project: Project, incumbent: bytes) -> None:
    run = project.play("next")
    assert run.code == 8, run.text
    assert (project.root / KERNEL).read_bytes() == incumbent


def test_a_path_with_spaces_and_other_letters(started_template: Project, tmp_path: Path) -> None:
    project = started_template.copy(tmp_path / "mein Projekt – ядро 🔥 'quoted'")
    project.write(KERNEL, FASTER)
    run = project.play("next")
    assert run.code == 0, run.text
    assert project.git("show", f"HEAD:{KERNEL}") == FASTER
    project.write(KERNEL, SLOWER)
    is_rolled_back(project, FASTER.encode())


def as_it_is(text: str) -> bytes:
    return f"# -*- coding: latin-1 -*-\r\n# caf\xe9\r\n{text}".replace("\n", "\r\n").encode(
        "latin-1"
    )


def test_a_kernel_of_other_lines_and_bytes_comes_back_byte_for_byte(started: Project) -> None:
    """CR LF and Latin-1: what is committed and what is restored are the very bytes."""
    kernel = started.root / KERNEL
    kernel.write_bytes(as_it_is(FASTER))
    run = started.play("next")
    assert run.code == 0, run.text
    shown = subprocess.run(
        ["git", "show", f"HEAD:{KERNEL}"], cwd=started.root, capture_output=True, check=True
    )
    assert shown.stdout == as_it_is(FASTER)
    kernel.write_bytes(as_it_is(SLOWER))
    is_rolled_back(started, as_it_is(FASTER))


def test_a_kernel_behind_a_link_stays_behind_it(fresh: Project) -> None:
    kernel = fresh.root / KERNEL
    home = fresh.root / "elsewhere" / "doubled.py"
    home.parent.mkdir()
    kernel.rename(home)
    kernel.symlink_to("../elsewhere/doubled.py")
    fresh.commit_all("Move the kernel behind a link")
    assert fresh.round(1).code == 0
    before = home.read_bytes()
    home.write_text(SLOWER)
    is_rolled_back(fresh, before)
    assert kernel.is_symlink() and home.read_bytes() == before


def test_a_file_that_may_not_be_written_is_restored_as_it_was(started: Project) -> None:
    """Its mode is part of the version: the incumbent's comes back with the incumbent's bytes."""
    kernel = started.root / KERNEL
    before, mode = kernel.read_bytes(), kernel.stat().st_mode
    kernel.write_text(SLOWER)
    kernel.chmod(0o444)
    is_rolled_back(started, before)
    assert kernel.stat().st_mode == mode


def detached(project: Project) -> Callable[[], None]:
    branch = project.git("branch", "--show-current").strip()
    project.git("checkout", "--quiet", "--detach")

    def finish() -> None:
        project.git("switch", "--quiet", branch)

    return finish


def merging(project: Project) -> Callable[[], None]:
    branch = project.git("branch", "--show-current").strip()
    project.git("stash", "--quiet")
    project.git("switch", "--quiet", "-c", "elsewhere")
    project.write("more.py", "MORE = 1\n")
    project.git("add", "more.py")
    project.git("commit", "--quiet", "-m", "More")
    project.git("switch", "--quiet", branch)
    project.git("stash", "pop", "--quiet")
    project.git("merge", "--quiet", "--no-commit", "--no-ff", "elsewhere")

    def finish() -> None:
        project.git("commit", "--quiet", "--no-edit")

    return finish


def rebasing(project: Project) -> Callable[[], None]:
    marker = project.root / ".git" / "rebase-merge"
    marker.mkdir()
    return marker.rmdir


@pytest.mark.parametrize(
    ("begin", "named"),
    [
        (detached, "HEAD is detached"),
        pytest.param(merging, "a merge", marks=pytest.mark.long),
        pytest.param(rebasing, "a rebase", marks=pytest.mark.long),
    ],
)
def test_what_git_waits_for_is_named_and_nothing_is_touched(
    started: Project, begin: Callable[[Project], Callable[[], None]], named: str
) -> None:
    started.edit_manifest(git_branch="auto", git_commit=True)
    started.git("switch", "--quiet", "-C", f"optimize/{started.campaign.name}")
    started.write(KERNEL, FASTER)
    finish = begin(started)
    before = started.contents()
    run = started.play("next")
    assert run.code == 4 and named in run.refusal
    assert started.contents() == before
    finish()
    assert started.play("next").code == 0


@pytest.mark.long
def test_line_ends_that_git_converts(started: Project) -> None:
    """The commit has git's line ends, the tree keeps its own, to the byte."""
    started.git("config", "core.autocrlf", "true")
    kernel = started.root / KERNEL
    kernel.write_bytes(FASTER.replace("\n", "\r\n").encode())
    assert started.play("next").code == 0
    assert started.git("show", f"HEAD:{KERNEL}") == FASTER
    assert started.git("status", "--porcelain", "--", KERNEL) == ""
    kernel.write_bytes(SLOWER.replace("\n", "\r\n").encode())
    is_rolled_back(started, FASTER.replace("\n", "\r\n").encode())


@pytest.mark.long
def test_names_that_differ_only_in_case(fresh: Project) -> None:
    """Two files here, and two campaigns."""
    other = "kernels/Doubled.py"
    fresh.write(other, "SCALE = 1\n")
    fresh.git("add", other)
    fresh.git("commit", "--quiet", "-m", "Another of that name")
    fresh.edit_manifest(kernel_source=["kernels"])
    twin = fresh.campaign.with_name(fresh.campaign.name.upper())
    assert fresh.round(1).code == 0
    fresh.write(KERNEL, FASTER)
    fresh.write(other, "SCALE = 2\n")
    assert fresh.play("next").code == 0
    assert fresh.git("show", f"HEAD:{KERNEL}") == FASTER
    assert fresh.git("show", f"HEAD:{other}") == "SCALE = 2\n"
    fresh.write(KERNEL, SLOWER)
    fresh.write(other, "SCALE = 3\n")
    is_rolled_back(fresh, FASTER.encode())
    assert fresh.read(other) == "SCALE = 2\n"
    run = fresh.pytest("--kopt-campaign", twin.name, "--kopt-round", "1")
    assert run.code == 4 and fresh.campaign.name in run.refusal


@pytest.mark.long
def test_other_repositories_inside_are_nobodys_business(started: Project) -> None:
    """A submodule with edits of its own is neither committed nor touched."""
    inner = started.root / "vendor"
    inner.mkdir()
    part = Project(inner)
    part.write("code.c", "int x;\n")
    part.commit_all()
    started.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "./vendor")
    started.commit_all("Add a submodule")
    part.write("code.c", "int y;\n")
    started.write(KERNEL, FASTER)
    assert started.play("next").code == 0
    assert part.read("code.c") == "int y;\n"
    assert started.git("show", "--format=", "--name-only", "HEAD").split() == [KERNEL]


def test_a_kernel_in_a_submodule_is_refused_before_anything_is_written(
    started: Project, tmp_path: Path
) -> None:
    part = Project(tmp_path / "part")
    part.write("fast.py", "def fast(x):\n    return x\n")
    part.commit_all()
    local = ("-c", "protocol.file.allow=always")
    started.git(*local, "submodule", "--quiet", "add", str(part.root), "vendor")
    started.commit_all("Add a submodule")
    words = ("init", "inner", "--op", "work", "--backend", "TORCH", "--gpu", "cpu")
    run = started.kopt(*words, "--kernel", "vendor/fast.py")
    assert run.code == 4 and "in another repository (a submodule?): 'vendor'" in run.refusal
    assert f"cd {started.root}/vendor && kopt init" in run.refusal
    assert not (started.root / "agent/workspace/inner").exists()
    assert started.play("next").code == 4, "the kernel is as it was"


def test_a_campaign_whose_kernel_became_a_repository_says_so(started: Project) -> None:
    """Its commit ended in a traceback, and so did every session after it."""
    started.write(KERNEL, FASTER)
    started.git("init", "--quiet", "kernels")
    run = started.play("next")
    assert run.code == 4 and "in another repository (a submodule?): 'kernels'" in run.refusal
    shutil.rmtree(started.root / "kernels/.git")
    assert started.play("next").code == 0


def test_a_tree_of_another_owner_gets_gits_own_words(started: Project) -> None:
    started.write(KERNEL, FASTER)
    foreign = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    run = started.pytest("--kopt-round", "next", **foreign)
    assert run.code == 4 and "safe.directory" in run.refusal
    run = started.pytest("--kopt-base", "HEAD", "--kopt-compare", "auto", **foreign)
    assert run.code == 4 and "safe.directory" in run.refusal
    assert started.play("next").code == 0


def test_a_candidate_that_was_committed_by_hand_and_rolled_back(started: Project) -> None:
    started.write(KERNEL, SLOWER)
    started.commit_all("By hand")
    run = started.play("next")
    assert run.code == 8
    command = f"git commit -m 'Back to the current best' -- {KERNEL}"
    assert f"HEAD holds another version than the current best: {KERNEL}" in run.text
    assert command in run.text
    started.git("commit", "--quiet", "-m", "Back", "--", KERNEL)
    assert not started.git("status", "--porcelain", "--", KERNEL)


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """Mount a disk of 4 MB; skips where that takes rights that this process lacks."""
    directory.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "kopt", str(directory)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(file: Path) -> None:
    with open(file, "wb", buffering=0) as stream, pytest.raises(OSError, match="No space left"):
        while True:
            stream.write(bytes(512))


def test_a_full_disk_ends_the_session_and_loses_nothing(
    started_template: Project, tmp_path: Path
) -> None:
    """Full before the round, then full when it is about to be recorded."""
    with small_disk(tmp_path / "disk") as disk:
        project = started_template.copy(disk / "project")
        project.write(KERNEL, SLOWER)
        fill(disk / "filling")
        run = project.round("next")
        assert run.code == 11 and "No space left on device" in run.text
        assert "INTERNALERROR" not in run.text and "Traceback" not in run.text
        assert project.read(KERNEL) == SLOWER
        (disk / "filling").unlink()

        project.write(KERNEL, doubled_kernel(312.5, first=FILLS))
        filling = project.root / "measured/filling"
        run = project.round("next", FILL=str(filling))
        assert run.code == 11 and "No space left on device" in run.text
        assert "the next session finishes" in run.text and "INTERNALERROR" not in run.text
        filling.unlink()
        is_rolled_back(project, doubled_kernel().encode())


def with_plugin(project: Project, text: str) -> dict[str, str]:
    """Return the variables of a run that has a plugin of this text, from beside the project."""
    folder = project.root.parent / "beside"
    folder.mkdir()
    (folder / "beside.py").write_text(text)
    return {"PYTHONPATH": str(folder), "PYTEST_PLUGINS": f"{Path(SCRIPT).stem},beside"}


QUOTA = """\
import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
"""


def test_a_file_that_may_not_grow_ends_the_session_and_loses_nothing(started: Project) -> None:
    """A quota, without root: no file may be larger than 4 kB, and the evidence is."""
    started.write(KERNEL, SLOWER)
    before = started.ledger_bytes()
    run = started.round("next", PYTHONDONTWRITEBYTECODE="1", **with_plugin(started, QUOTA))
    assert run.code == 11 and "File too large" in run.text, run.text
    assert "Traceback" not in run.text and "INTERNALERROR" not in run.text
    assert started.ledger_bytes() == before and started.read(KERNEL) == SLOWER
    is_rolled_back(started, doubled_kernel().encode())


FILLS = """\
import os
    if "FILL" in os.environ:
        with open(os.environ["FILL"], "ab", buffering=0) as stream:
            try:
                while stream.write(bytes(512)):
                    pass
            except OSError:
                pass"""


#: Git is asked fifty times as a rule, for five seconds.
IMPATIENT = """\
from pytest_kopt.campaign.git import repository

assert repository._TRIES > 2
repository._TRIES = 2
"""


#: The session of a round is killed when the ledger has its decision and the tree has not.
DEADLY = """\
import os
import signal

from pytest_kopt.campaign.campaign import Campaign

settle = Campaign.settle


def die(campaign, *given, **named):
    if campaign.state.pending:
        os.kill(os.getpid(), signal.SIGKILL)
    return settle(campaign, *given, **named)


Campaign.settle = die
"""


@pytest.mark.parametrize(
    ("version", "decision", "left"),
    [(FASTER, "ACCEPTED", FASTER), (SLOWER, "ROLLED_BACK", doubled_kernel())],
)
def test_what_was_decided_before_a_kill_is_carried_out_by_the_next_session(
    started: Project, version: str, decision: str, left: str
) -> None:
    """Each step on disk is a point to be killed at in `test_stateful`; here the kill is real."""
    started.write(KERNEL, version)
    started.write("untracked.txt", "mine\n")
    run = started.round(2, **with_plugin(started, DEADLY))
    assert run.code == -signal.SIGKILL and started.read(KERNEL) == version, run.text
    assert started.play("next").code == 4, "nothing is left to measure"
    assert started.verdict(2)["decision"] == decision and started.read(KERNEL) == left
    assert started.git("show", f"HEAD:{KERNEL}") == left
    assert started.read("untracked.txt") == "mine\n"


def test_a_cut_off_commit_waits_for_git(started: Project) -> None:
    """The session that has to finish it ends with a message as long as git's index is locked."""
    started.write(KERNEL, FASTER)
    assert started.play("next").code == 0
    decided = started.ledger_bytes().splitlines(keepends=True)[:-2]
    (started.campaign / "ledger.jsonl").write_bytes(b"".join(decided))
    started.git("reset", "--quiet", "HEAD~1")
    lock = started.root / ".git/index.lock"
    lock.touch()
    run = started.round("next", **with_plugin(started, IMPATIENT))
    assert run.code == 11 and "git cannot commit" in run.text, run.text
    assert "Traceback" not in run.text and "INTERNALERROR" not in run.text
    lock.unlink()
    assert started.play(2).code == 4
    assert started.git("show", f"HEAD:{KERNEL}") == FASTER
    assert started.git("status", "--porcelain", "--", KERNEL) == ""
    assert [event["event"] for event in started.ledger()][-1] == "applied"


def test_the_baseline_is_the_kernel_of_head(fresh: Project) -> None:
    """An edit that no commit has became the baseline, and later commits carried it along."""
    fresh.write(KERNEL, fresh.read(KERNEL) + "# a stray edit\n")
    run = fresh.ask(1)
    assert run.code == 4 and "differs from HEAD" in run.refusal
    assert not fresh.was_measured


def test_an_installed_copy_in_front_of_the_kernel_is_named(fresh: Project) -> None:
    """Every round said that both versions are the same, and not why."""
    copy = fresh.root.parent / "site" / "installed.py"
    copy.parent.mkdir()
    copy.write_text(fresh.read(KERNEL))
    fresh.replace(CASES, "from kernels.doubled import", "from installed import")
    fresh.commit_all("Another copy")
    run = fresh.round(1, PYTHONPATH=str(copy.parent))
    assert run.code == 4, run.text
    assert f"no case imports {KERNEL}" in run.refusal
    assert f"the cases call installed.doubled in {copy}" in run.refusal
    assert "applied" not in [event["event"] for event in fresh.ledger()]
