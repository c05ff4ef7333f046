"""Two sessions at the same time: on one campaign, on two in one repository, on one device."""

from __future__ import annotations

import itertools
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_kopt.devices import lock

from .live import beside, live, round_words
from .project import CAMPAIGN, CASES, KERNEL, Project, locks
from .sources import doubled_kernel, with_watchdog

#: Says so once, then waits until it is told to go on.
WAITS = (
    "x.shape[0] == 4 and (open('measured/waits.log', 'w'), any(__import__('os').path.exists('go') "
    "or __import__('time').sleep(0.02) for _ in range(50_000)))"
)
FASTER = doubled_kernel(187.5)
OTHER_KERNEL, OTHER_CASES = "kernels/tripled.py", "tests/test_tripled.py"


def test_a_campaign_has_one_session_at_a_time(started: Project) -> None:
    """The second is told which process it is, and changes nothing."""
    version = doubled_kernel(187.5, first=WAITS)
    started.write(OTHER_KERNEL, doubled_kernel())
    started.commit_all("Another kernel")
    started.write(KERNEL, version)
    with beside(started, *round_words()) as first:
        first.until(lambda: (started.root / "measured/waits.log").exists())
        before = started.contents()
        second = started.play("next")
        assert second.code == 4, second.text
        for part in (
            CAMPAIGN,
            "in use by",
            f"process {first.process.pid} on",
            "wait until it ends",
        ):
            assert part in second.refusal
        # `kopt init` of another campaign would take the branch from under the session.
        other = ("--from", CAMPAIGN, "--kernel", OTHER_KERNEL)
        switching = started.kopt("init", "other", *other)
        assert switching.code == 4 and f"process {first.process.pid} on" in switching.refusal
        assert started.contents() == before
        (started.root / "go").touch()
        assert first.finish().code == 0, first.text
    assert started.git("show", f"HEAD:{KERNEL}") == version


def test_a_branch_that_was_switched_meanwhile_gets_no_commit(started: Project) -> None:
    """What was decided is carried out by the next session on the campaign's own branch."""
    version = doubled_kernel(187.5, first=WAITS)
    started.write(KERNEL, version)
    main = started.git("rev-parse", "main")
    with beside(started, *round_words()) as session:
        session.until(lambda: (started.root / "measured/waits.log").exists())
        started.git("switch", "--quiet", "main")
        (started.root / "go").touch()
        run = session.finish()
    assert run.code == 11, run.text
    assert "'main'" in run.text and f"git switch optimize/{CAMPAIGN}" in run.text
    assert started.git("rev-parse", "main") == main
    started.git("switch", "--quiet", f"optimize/{CAMPAIGN}")
    run = started.play("next")
    assert started.git("show", f"HEAD:{KERNEL}") == version
    assert started.verdict(2)["decision"] == "ACCEPTED"
    assert run.code == 4 and "nothing to measure" in run.refusal


def two_campaigns(project: Project, *more: str) -> tuple[str, str]:
    """Give the project a second kernel with a campaign of its own; return both names."""
    project.git("switch", "--quiet", "main")
    project.write(OTHER_KERNEL, doubled_kernel().replace("doubled", "tripled"))
    cases = project.read(CASES).replace("doubled", "tripled").replace('"columns"', '"width"')
    project.write(OTHER_CASES, cases)
    project.git("add", OTHER_KERNEL, OTHER_CASES)
    project.git("commit", "--quiet", "-m", "Another kernel")
    for name, kernel, tests in (("one", KERNEL, CASES), ("two", OTHER_KERNEL, OTHER_CASES)):
        words = ("--op", name, "--kernel", kernel, "--tests", tests)
        run = project.kopt("init", name, *words, "--backend", "TORCH", "--gpu", "cpu", *more)
        assert run.code == 0, run.text
    return "one", "two"


def directory(project: Project, name: str) -> Path:
    return project.campaign.with_name(name)


@pytest.mark.long
def test_two_campaigns_in_one_tree_without_branches(fresh: Project) -> None:
    """Both decide at the same time, and each has only its own: kernel, commits, ledger, times."""
    names = two_campaigns(fresh, "--branch", "none")
    for number, versions in (
        ("1", (doubled_kernel(), doubled_kernel())),
        ("2", (doubled_kernel(187.5), doubled_kernel(312.5))),
    ):
        fresh.write(KERNEL, versions[0])
        fresh.write(OTHER_KERNEL, versions[1].replace("doubled", "tripled"))
        with (
            live(fresh, *round_words(number=number, campaign="one")) as one,
            live(fresh, *round_words(number=number, campaign="two")) as two,
        ):
            codes = one.finish().code, two.finish().code
            assert codes == ((0, 0) if number == "1" else (0, 8)), one.text + two.text
    assert fresh.read(KERNEL) == FASTER
    assert fresh.read(OTHER_KERNEL) == doubled_kernel().replace("doubled", "tripled")
    for name, kernel in zip(names, (KERNEL, OTHER_KERNEL), strict=True):
        snapshots = directory(fresh, name).glob("rounds/*/kernel_snapshot/**/*.py")
        assert {path.name for path in snapshots} == {Path(kernel).name}
    assert fresh.git("show", "--format=", "--name-only", "HEAD").split() == [KERNEL]
    assert_no_overlap(
        [each for name in names for number in (1, 2) for each in timed(fresh, name, number)]
    )


def timed(project: Project, name: str, number: int) -> list[tuple[float, float]]:
    """From when to when each case of a round was timed (seconds since the epoch)."""
    path = directory(project, name) / f"rounds/round-{number}/artifacts/attempt-1/evidence.json"
    results = [json.loads(text) for text in json.loads(path.read_text())["results"]]
    return [tuple(result["evidence"]["timed"]) for result in results]


def assert_no_overlap(intervals: list[tuple[float, float]]) -> None:
    """Nobody was timed while somebody else was."""
    assert len(intervals) >= 4
    ordered = sorted(intervals)
    for (_, end), (start, _) in itertools.pairwise(ordered):
        assert end <= start, ordered


def test_two_campaigns_with_branches_cannot_share_a_tree(fresh: Project) -> None:
    """The branch and the ways out are named; in trees of their own they do not meet."""
    two_campaigns(fresh)
    before = fresh.contents()
    run = fresh.pytest(*round_words(number="1", campaign="one"))
    assert run.code == 4, run.text
    for part in ("'optimize/two'", "git switch optimize/one", "kopt init --worktree", "none"):
        assert part in run.refusal
    assert fresh.contents() == before


def held() -> list[str]:
    """The locks of the machine; those that are waited for have an arrow."""
    return Path("/proc/locks").read_text().splitlines()


@pytest.mark.long
def test_waiting_for_the_device_is_no_hang(
    started: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the case rests: whoever holds the device may time for as long as it takes."""
    monkeypatch.setattr(lock, "DIRECTORY", locks())
    started.write(KERNEL, FASTER)
    with ExitStack() as holding:
        holding.enter_context(lock.timing_lock("cpu"))
        inode = str((locks() / "cpu.lock").stat().st_ino)
        with live(started, *round_words(), **with_watchdog(started)) as session:
            limits = started.root.parent / "watchdog/limits.log"
            session.until(lambda: any("->" in line and inode in line for line in held()))
            (line,) = (line for line in held() if "->" in line and inode in line)
            waits = line.split("WRITE")[1].split()[0]
            told = [text for text in limits.read_text().splitlines() if text.startswith(waits)]
            assert told[-1] == f"{waits} rests"
            holding.close()
            assert session.finish().code == 0, session.text


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_three_sessions_take_turns_on_one_device(
    started_template: Project, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Projects of their own, one machine: timing never overlaps, whoever runs it."""
    projects = [started_template.copy(tmp_path / str(i) / "project") for i in range(3)]
    for project in projects:
        project.write(KERNEL, FASTER)
    with (
        live(projects[0], *round_words(*words)) as a,
        live(projects[1], *round_words(*words)) as b,
        live(projects[2], *round_words(*words)) as c,
    ):
        for session in (a, b, c):
            assert session.finish().code == 0, session.text
    assert_no_overlap([each for project in projects for each in timed(project, CAMPAIGN, 2)])
