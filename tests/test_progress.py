"""How far a session is, for people and for whoever polls."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from _pytest._io import TerminalWriter

from pytest_kopt.campaign import running
from pytest_kopt.decide.inference import FINAL_LOOK
from pytest_kopt.decide.verdict import ActionWord
from pytest_kopt.errors import BadInput, KernelError
from pytest_kopt.process_tree import is_alive
from pytest_kopt.show import progress as module
from pytest_kopt.show.progress import Progress, Span

from .waiting import HANG


class Screen:
    """A terminal reporter as far as progress uses one."""

    def __init__(self, *, tty: bool = False, verbosity: int = 0) -> None:
        self.isatty, self.verbosity = tty, verbosity
        self.written: list[str] = []
        self.config = self
        self.writer = TerminalWriter(io.StringIO())

    def write_line(self, line: str) -> None:
        self.written.append(line)

    def rewrite(self, line: str, *, erase: bool) -> None:
        self.written.append(f"\r{line}")

    def ensure_newline(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def get_terminal_writer(self) -> TerminalWriter:
        return self.writer


def on(screen: Screen) -> Any:
    return screen


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_starts_for_long_is_told_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal too: the header that follows would stand behind it."""
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.01)
    screen, clock, told = Screen(tty=True), Clock(), threading.Event()
    monkeypatch.setattr(screen, "flush", told.set)
    progress = Progress(on(screen), clock=clock)
    progress.begin("starting")
    clock.now += module.QUIET_SECONDS
    assert told.wait(HANG)
    progress.stop()
    assert screen.written == ["kopt: starting, 10 s so far"]


def test_a_terminal_shows_how_far_a_phase_is() -> None:
    screen, clock = Screen(tty=True), Clock()
    progress = Progress(on(screen), clock=clock)
    progress.begin("checking", 5)
    for place in range(2):
        progress.started(f"t.py::test_softmax[{place}]")
        clock.now += 2.0
        progress.advance()
    progress.started("t.py::test_softmax[2]")
    assert screen.written[0] == "\rkopt: checking 1 of 5: test_softmax[0]"
    assert screen.written[-1] == "\rkopt: checking 3 of 5: test_softmax[2]"
    progress.begin("comparing", FINAL_LOOK, "replicates")
    for _ in range(3):
        clock.now += 3.0
        progress.advance()
    assert screen.written[-3:] == [
        "\rkopt: comparing, 1 of at most 8 replicates",
        "\rkopt: comparing, 2 of at most 8 replicates",
        "\rkopt: comparing, 3 of at most 8 replicates",
    ]
    progress.stop()


def test_a_race_shows_each_of_its_phases(tmp_path: Path) -> None:
    screen, clock, file = Screen(), Clock(), tmp_path / "running.json"
    progress = Progress(on(screen), file, clock)
    progress.begin("checking candidate", 8, says=True)
    for _ in range(2):
        clock.now += 2.0
        progress.advance()
    assert progress.line() == "kopt: checking candidate 3 of 8"
    progress.begin("racing", 4, "replicates")
    for _ in range(3):
        progress.advance()
    found = json.loads(file.read_text())
    assert (found["phase"], found["done"], found["total"]) == ("racing", 3, 4)
    assert progress.line() == "kopt: racing, 3 of at most 4 replicates"
    progress.begin("checking the winner", says=True)
    clock.now += 3.0
    assert progress.line() == "kopt: checking the winner, 3 s so far"
    progress.begin("comparing the winner", FINAL_LOOK, "replicates")
    progress.advance()
    assert json.loads(file.read_text())["phase"] == "comparing the winner"
    said = [line.partition(",")[0] for line in screen.written]
    assert said == [
        "kopt: checking candidate 1 of 8",
        "kopt: racing",
        "kopt: checking the winner",
        "kopt: comparing the winner",
    ]
    progress.stop()


def test_elsewhere_a_line_comes_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that takes long, or hangs, is no silence."""
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.005)
    clock, screen = Clock(), Screen()
    told = threading.Event()
    said = screen.write_line

    def write_line(line: str) -> None:
        said(line)
        told.set()

    monkeypatch.setattr(screen, "write_line", write_line)
    progress = Progress(on(screen), clock=clock)
    progress.begin("checking", 3)
    progress.started("t.py::test_slow")
    assert not told.wait(0.05)
    clock.now = 10.0
    assert told.wait(HANG)
    progress.stop()
    assert set(screen.written) == {"kopt: checking 1 of 3: test_slow"}


@pytest.mark.parametrize(("verbosity", "lines"), [(-1, 0), (0, 1), (1, 3)])
def test_elsewhere_it_is_as_loud_as_asked(verbosity: int, lines: int) -> None:
    screen = Screen(verbosity=verbosity)
    progress = Progress(on(screen))
    progress.begin("comparing", 8, "replicates")
    for _ in range(3):
        progress.advance()
    assert len(screen.written) == lines
    Progress(None).advance()


def test_it_begins_a_line_of_its_own() -> None:
    """Behind the dots of xdist as well, which belong to no file."""
    screen = Screen(verbosity=1)
    screen.writer.write("....   [100%]")
    progress = Progress(on(screen))
    progress.begin("comparing", 8, "replicates")
    for _ in range(2):
        progress.advance()
        assert screen.writer.width_of_current_line == 0


def test_whoever_polls_finds_the_phase(tmp_path: Path) -> None:
    file, clock = tmp_path / "running.json", Clock()
    progress = Progress(None, file, clock)
    progress.begin("checking", 2)
    progress.started("t.py::test_a")
    clock.now += 4.0
    progress.advance()
    found = json.loads(file.read_text())
    assert {key: found[key] for key in ("phase", "case", "done", "total")} == {
        "phase": "checking",
        "case": "t.py::test_a",
        "done": 1,
        "total": 2,
    }
    progress.begin("comparing", 16, "replicates")
    for _ in range(5):
        progress.advance()
    found = json.loads(file.read_text())
    assert (found["phase"], found["done"], found["case"]) == ("comparing", 5, None)
    progress.begin("deciding")
    assert json.loads(file.read_text())["phase"] == "deciding" in progress.line()
    progress.end(9)
    progress.end(None)
    progress.advance()
    found = json.loads(file.read_text())
    assert (found["phase"], found["exit_code"], found["error"]) == ("ended", 9, None)


def test_a_session_that_waits_is_no_longer_the_one_before(tmp_path: Path) -> None:
    """It may wait an hour for a GPU, and the file said that all was over."""
    file = tmp_path / "running.json"
    running.write(file, phase="ended", exit_code=1, pid=os.getppid())
    progress = Progress(None, file)
    begun = datetime.now().astimezone().replace(microsecond=0)
    progress.begin("starting")
    found = json.loads(file.read_text())
    assert (found["phase"], found["pid"], found["exit_code"]) == ("starting", os.getpid(), None)
    assert begun <= datetime.fromisoformat(found["updated"]) <= datetime.now().astimezone()
    running.write(file, phase="checking", pid=os.getppid())
    progress.begin("starting")
    assert json.loads(file.read_text())["phase"] == "checking", "another session has the campaign"
    progress.begin("checking", 1)
    assert json.loads(file.read_text())["pid"] == os.getpid()
    assert "starting" not in progress.line()


def test_why_a_session_ended_stays_to_be_read(tmp_path: Path) -> None:
    file = tmp_path / "running.json"
    progress = Progress(None, file)
    progress.begin("checking", 2)
    progress.end(1, KernelError("the kernel does not import\nkernels/gemm.py:3: in <module>"))
    found = json.loads(file.read_text())
    assert (found["phase"], found["exit_code"]) == ("ended", 1)
    assert (found["error"]["file"], found["error"]["line"]) == ("kernels/gemm.py", 3)


@pytest.mark.parametrize("phase", ["checking", "ended"])
def test_a_refused_session_leaves_the_file_of_one_that_runs(tmp_path: Path, phase: str) -> None:
    file = tmp_path / "running.json"
    running.write(file, phase=phase, pid=os.getppid())
    with pytest.raises(BadInput), running.refusals_left(file):
        raise BadInput("campaign 'c' is in use by process 1")
    found = json.loads(file.read_text())
    assert (found["phase"], found["pid"]) == (
        ("checking", os.getppid()) if phase == "checking" else ("ended", os.getpid())
    )


def test_another_users_session_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a campaign that several people share nobody takes a process of another's for dead."""

    def refuse(process: int, number: int) -> None:
        raise PermissionError

    assert is_alive(os.getpid()) and not is_alive(1 << 22)
    monkeypatch.setattr(os, "kill", refuse)
    assert running.is_live({"pid": 1, "phase": "check"})


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file, not a directory\n")
    progress = Progress(None, tmp_path / "blocked/running.json")
    progress.begin("checking", 2)
    progress.advance()
    progress.end(0)
    assert (tmp_path / "blocked").read_text() == "a file, not a directory\n"


def test_the_page_has_every_word_of_the_next_action() -> None:
    page = (Path(__file__).parents[1] / "docs/what-next.md").read_text()
    table = page.partition("| `action` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(get_args(ActionWord))


def test_who_holds_the_device_is_said_while_a_session_waits() -> None:
    progress = Progress(None)
    progress.begin("checking", 2)
    progress._in_the_way = "process 7 (pytest, since 12:00) measures on this device"
    assert progress.line().startswith("kopt: checking 1 of 2; process 7 (pytest, since 12:00) ")
    assert "this session waits for its turn" in progress.line()


def test_the_timeline_has_each_phase_and_what_its_processes_did() -> None:
    """A phase that has not ended yet ends where the timeline is read; a failure ends one."""
    clock = Clock()
    progress = Progress(None, clock=clock)
    clock.now = 1.0
    progress.begin("comparing", FINAL_LOOK, "replicates")
    with pytest.raises(KernelError), progress.during("load", "replicate 1"):
        clock.now = 2.5
        raise KernelError("the kernel does not import")
    clock.now = 3.0
    progress.begin("deciding")
    clock.now = 3.25
    assert progress.timeline == [
        Span("configuring", "controller", 0.0, 1.0),
        Span("load", "replicate 1", 1.0, 2.5),
        Span("comparing", "controller", 1.0, 3.0),
        Span("deciding", "controller", 3.0, 3.25),
    ]
