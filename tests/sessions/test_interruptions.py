"""A session that is interrupted: nothing decided, nothing left running, and the next one goes on.

A terminal sends its Ctrl-C to the whole group, a CI runner its SIGTERM to the first process; the
processes that run kernels are in groups of their own.
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..fake_gpus import FakeDriver
from ..waiting import HANG
from .live import Live, live, round_words
from .paired import FASTER, PLAIN, compares, kernel, traced, write_paired
from .project import KERNEL, SERIAL, TWO_WORKERS, Project
from .sources import doubled_kernel

#: The first call with four rows says so and then stays.
HANGS_ONCE = (
    "x.shape[0] == 4 and not __import__('os').path.exists('measured/hangs.log') "
    "and (open('measured/hangs.log', 'w'), __import__('time').sleep(3600))"
)
VERSION = doubled_kernel(187.5, first=HANGS_ONCE)
LONG = pytest.mark.long

Interrupt = Callable[[Live], None]


def ctrl_c(session: Live) -> None:
    session.press_ctrl_c()


def ctrl_c_twice(session: Live) -> None:
    """The second while the first is still being dealt with."""
    session.press_ctrl_c()
    session.process.poll()
    try:
        session.process.wait(0.1)
    except subprocess.TimeoutExpired:
        session.press_ctrl_c()


def sigterm(session: Live) -> None:
    session.send(signal.SIGTERM)


def sighup(session: Live) -> None:
    session.send(signal.SIGHUP)


def sigkill(session: Live) -> None:
    session.send(signal.SIGKILL)


def goes_on(project: Project, version: str) -> None:
    """The next run decides the round that was cut off, from where it was."""
    assert project.read(KERNEL) == version
    run = project.play("next")
    assert run.code == 0 and "ACCEPTED" in run.out, run.text
    assert project.git("show", f"HEAD:{KERNEL}") == version


@pytest.mark.parametrize(
    ("interrupt", "words", "codes"),
    [
        (ctrl_c, SERIAL, {2}),
        (sigkill, SERIAL, {-signal.SIGKILL}),
        pytest.param(ctrl_c, TWO_WORKERS, {2}, marks=LONG),
        # pytest's own summing up is cut short by the second one; what we record is not.
        pytest.param(ctrl_c_twice, SERIAL, {2, -signal.SIGINT}, marks=LONG),
        pytest.param(ctrl_c_twice, TWO_WORKERS, {2, -signal.SIGINT}, marks=LONG),
        pytest.param(sigterm, SERIAL, {2}, marks=LONG),
        pytest.param(sigterm, TWO_WORKERS, {2}, marks=LONG),
        pytest.param(sighup, SERIAL, {2}, marks=LONG),
        pytest.param(sighup, TWO_WORKERS, {2}, marks=LONG),
        pytest.param(sigkill, TWO_WORKERS, {-signal.SIGKILL}, marks=LONG),
    ],
)
def test_while_a_kernel_hangs_in_its_check(
    started: Project, interrupt: Interrupt, words: tuple[str, ...], codes: set[int]
) -> None:
    """What is interrupted ends, however long the kernel would still take."""
    started.write(KERNEL, VERSION)
    before = started.ledger()
    with live(started, *round_words(*words)) as session:
        session.until(lambda: (started.root / "measured/hangs.log").exists())
        interrupt(session)
        run = session.finish()
        assert run.code in codes, run.text
        session.is_gone()
    events = started.ledger()[len(before) :]
    if interrupt is sigkill:
        assert not events
    else:
        assert [event["event"] for event in events] == ["opened", "measured", "decided"]
        assert events[-1]["decision"] == "INCOMPLETE"
        assert "interrupted" in events[-1]["reason"]
    goes_on(started, VERSION)


@LONG
def test_nohup_means_what_it_says(started: Project) -> None:
    """A signal that is ignored when the session begins does not end it."""
    started.write(KERNEL, doubled_kernel(187.5))
    script = "trap '' HUP; exec \"$@\""
    words = [sys.executable, "-m", "pytest", *round_words()]
    process = subprocess.Popen(
        ["sh", "-c", script, "sh", *words],
        cwd=started.root,
        env=started.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    # The header's line: its handlers stand by then.
    for line in process.stdout:
        if "collected" in line:
            break
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=HANG)
    assert process.returncode == 0 and "ACCEPTED" in out, out


@LONG
def test_a_terminal_that_is_closed(started: Project) -> None:
    """The window goes away: the system sends SIGHUP, and nothing more can be printed."""
    started.write(KERNEL, VERSION)
    ours, theirs = pty.openpty()
    taking = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    taking += "os.execv(sys.executable, [sys.executable, '-m', 'pytest', *sys.argv[1:]])"
    process = subprocess.Popen(
        [sys.executable, "-c", taking, *round_words()],
        cwd=started.root,
        env=started.environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_NONBLOCK)
    while not (started.root / "measured/hangs.log").exists():
        assert process.poll() is None
        try:
            os.read(ours, 4096)
        except BlockingIOError:
            signal.sigtimedwait([], 0.02)
    os.close(ours)
    process.wait(HANG)
    assert started.ledger()[-1].get("decision") == "INCOMPLETE"
    goes_on(started, VERSION)


COMMAND = """\
import subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
open("building.log", "w").close()
inner.wait()
"""


@pytest.mark.parametrize("interrupt", [sigterm, pytest.param(ctrl_c, marks=LONG)])
def test_while_a_command_runs(fresh: Project, interrupt: Interrupt) -> None:
    """A build takes what it has fresh along."""
    fresh.write("build.py", COMMAND)
    fresh.edit_manifest(test_command="python build.py")
    before = fresh.ledger()
    with live(fresh, *round_words()) as session:
        session.until(lambda: (fresh.root / "building.log").exists())
        assert len(session.left_running()) >= 3
        interrupt(session)
        assert session.finish().code == 2, session.text
        session.is_gone()
    assert fresh.ledger() == before


@LONG
@pytest.mark.parametrize("interrupt", [sigterm, ctrl_c])
def test_while_waiting_for_an_idle_gpu(fresh: Project, interrupt: Interrupt) -> None:
    driver = FakeDriver(fresh.root.parent / "driver", 1)
    driver.set(0, utilisation=99)
    variables = driver.variables(dict(os.environ)) | {"CUDA_VISIBLE_DEVICES": "0"}
    fresh.edit_manifest(target_gpu="sm_90")
    before = fresh.contents()
    with live(fresh, *round_words("--kopt-device", "cuda", number="1"), **variables) as session:
        session.until(lambda: "waiting for an idle GPU" in session.text)
        interrupt(session)
        assert session.finish().code == 2, session.text
        session.is_gone()
    assert fresh.contents() == before
    fresh.edit_manifest(target_gpu="cpu")
    assert fresh.round(1).code == 0


@LONG
def test_a_gpu_that_torch_cannot_use_is_not_a_fault_of_the_kernel(fresh: Project) -> None:
    driver = FakeDriver(fresh.root.parent / "driver", 1)
    (driver.directory / "sitecustomize.py").write_text("import pynvml\n")
    variables = driver.variables(dict(os.environ)) | {"CUDA_VISIBLE_DEVICES": driver.uuids[0]}
    fresh.edit_manifest(target_gpu="sm_90")
    before = fresh.contents()
    run = fresh.pytest(*round_words("--kopt-device", "cuda", number="1"), **variables)
    assert run.code == 4
    assert "torch cannot use the GPU: " in run.text
    assert "INTERNALERROR" not in run.text
    assert fresh.contents() == before


@pytest.fixture
def compared(tmp_path: Path) -> Project:
    """A campaign of paired comparisons whose kernel has a faster version in the tree."""
    project = Project(tmp_path / "paired")
    project.root.mkdir()
    write_paired(project)
    project.commit_all()
    init = ("--op", "plain", "--kernel", PLAIN, "--backend", "TORCH", "--gpu", "cpu")
    assert project.kopt("init", "c", *init).code == 0
    run = project.pytest("--kopt-round", "1", **traced(tmp_path))
    assert run.code == 0, run.text
    (tmp_path / "traced" / "trace").unlink()
    project.write(PLAIN, kernel(FASTER, "new"))
    return project


@LONG
@pytest.mark.parametrize(
    ("interrupt", "words"),
    [(sigterm, SERIAL), (ctrl_c, SERIAL), (sighup, TWO_WORKERS), (sigkill, SERIAL)],
)
def test_in_the_middle_of_the_comparison(
    compared: Project, interrupt: Interrupt, words: tuple[str, ...]
) -> None:
    """The trees of the incumbent go away too; a kill leaves them to the next session."""
    trace = compared.root.parent / "traced" / "trace"
    temporary = compared.root.parent / "tmp"
    temporary.mkdir()
    variables = {**traced(compared.root.parent), "TMPDIR": str(temporary)}
    ledger = compared.root / "agent/workspace/c/ledger.jsonl"
    before = ledger.read_text()
    with live(compared, "--kopt-round", "next", *words, **variables) as session:
        session.until(lambda: compares(trace))
        interrupt(session)
        run = session.finish()
        session.is_gone()
    said = "interrupted before a verdict: nothing is decided, the kernel is as it was"
    assert (said in run.text) == (interrupt is not sigkill), run.text
    assert ledger.read_text() == before, "nothing is decided"
    assert compared.read(PLAIN) == kernel(FASTER, "new")
    if interrupt is not sigkill:
        assert not list(temporary.glob("kopt-scratch-*"))
    run = compared.pytest("--kopt-round", "next", **variables)
    assert run.code == 0 and "ACCEPTED" in run.out, run.text
    assert not list(temporary.glob("kopt-scratch-*"))


@LONG
@pytest.mark.parametrize(
    ("interrupt", "words"), [(ctrl_c, SERIAL), (sigterm, TWO_WORKERS), (sigkill, SERIAL)]
)
def test_while_candidates_are_checked_side_by_side(
    compared: Project, interrupt: Interrupt, words: tuple[str, ...]
) -> None:
    """Those that hang end with the others, and the same race can be run again."""
    folder = compared.root.parent / "traced"
    before = kernel()
    compared.write(PLAIN, before)
    late = f"import time\n\ntime.sleep(0 if __import__('os').path.exists('{folder}/on') else 3600)"
    for name in ("a", "b", "c"):
        text = kernel(FASTER, name, imports=f"open('{folder}/{name}', 'w')\n{late}")
        compared.write(f"ideas/{name}/{PLAIN}", text)
    race = [f"--kopt-candidates=ideas/{name}" for name in "abc"]
    variables = traced(compared.root.parent)
    ledger = compared.root / "agent/workspace/c/ledger.jsonl"
    known = ledger.read_text()
    with live(compared, "--kopt-round", "next", *race, *words, **variables) as session:
        session.until(lambda: any((folder / name).exists() for name in "abc"))
        # They begin while the incumbent's cases are checked, whose end is waited for here.
        running = compared.root / "agent/workspace/c/running.json"
        session.until(lambda: "checking candidate" in running.read_text())
        interrupt(session)
        session.finish()
        session.is_gone()
    assert ledger.read_text() == known and compared.read(PLAIN) == before
    (folder / "on").touch()
    run = compared.pytest("--kopt-round", "next", *race, **variables)
    assert run.code == 0 and "ACCEPTED" in run.out, run.text
