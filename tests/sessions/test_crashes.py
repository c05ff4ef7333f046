"""Kernels that take their process down: a row and an open round, never a crash of pytest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from .paired import FASTER, PLAIN, cases, traced, write_paired
from .paired import kernel as paired_kernel
from .project import KERNEL, SERIAL, TWO_WORKERS, Project, Run
from .sources import HANG, with_watchdog
from .sources import doubled_kernel as kernel

SEGFAULT = "x.shape[0] == 2 and __import__('ctypes').string_at(0)"
HANGS = f"x.shape[0] == 4 and {HANG}"
LEAVE = "x.shape[0] == 2 and __import__('os')._exit(3)"


def is_a_repair(project: Project, run: Run, version: str) -> None:
    """The round is open, its kernel untouched, and nobody saw a traceback of ours."""
    assert run.code == 1, run.text
    assert "INTERNALERROR" not in run.text
    assert project.verdict(2)["decision"] == "REPAIR"
    assert project.read(KERNEL) == version
    assert [event["event"] for event in project.ledger()][-1] == "decided"


def rows(project: Project) -> list[str]:
    """The lines of the round's CSV."""
    path = project.campaign / "rounds/round-2/artifacts/benchmark.csv"
    return path.read_text().splitlines()[1:]


ERROR_CELLS = "ERROR" + ",nan" * 8


@pytest.mark.parametrize(
    "mode", [SERIAL, pytest.param(TWO_WORKERS, marks=pytest.mark.long)], ids=["serial", "n2"]
)
def test_a_segfault_and_a_hang_are_error_rows(started: Project, mode: tuple[str, ...]) -> None:
    version = kernel(first=f"({SEGFAULT}) or ({HANGS})")
    started.write(KERNEL, version)
    run = started.round(2, *mode, **with_watchdog(started))
    is_a_repair(started, run, version)
    assert rows(started) == [
        f"doubled rows=2 columns=8,2,8,{ERROR_CELLS}",
        f"doubled rows=4 columns=8,4,8,{ERROR_CELLS}",
    ]
    segfault, hang = (result["diagnosis"] for result in started.evidence(2)["results"])
    # The stack begins where the kernel hangs.
    assert re.search(r'kernels/doubled\.py", line \d+ in doubled$', hang, re.MULTILINE), hang
    assert "SIGSEGV" in segfault and segfault.splitlines()[0] in run.out
    assert re.search(r"\(--kopt-timeout\), 0:\d\d:\d\d", hang.splitlines()[0])
    assert hang.splitlines()[0] in run.out


def test_a_kernel_that_ends_its_process_does_not_take_others_along(
    started: Project, mode: tuple[str, ...]
) -> None:
    version = kernel(first=LEAVE)
    started.write(KERNEL, version)
    run = started.round(2, *mode)
    is_a_repair(started, run, version)
    gone, healthy = rows(started)
    assert gone == f"doubled rows=2 columns=8,2,8,{ERROR_CELLS}"
    assert healthy.startswith("doubled rows=4 columns=8,4,8,PASS,16.0,0.0,8.0,0.0,"), (
        "measured all the same"
    )
    assert [shape["check"] for shape in started.verdict(2)["shapes"]] == ["ERROR", "PASS"]


def test_a_kernel_that_cannot_be_imported(started: Project, mode: tuple[str, ...]) -> None:
    """Nothing is measured, no repair is used up, and the message names the line."""
    for text, says in (("def unfinished(:", "SyntaxError"), ("import no_such", "No module named")):
        version = kernel() + f"{text}\n"
        started.write(KERNEL, version)
        before = started.contents()
        run = started.round(2, *mode)
        assert run.code == 1 and "nothing was measured" in run.text, run.text
        line = version.count("\n")
        assert says in run.text and f"{KERNEL}:{line}" in run.text, run.text
        assert started.contents() == before
    left = json.loads((started.campaign / "running.json").read_text())
    assert (left["phase"], left["exit_code"]) == ("ended", 1) and left["error"]["file"].endswith(
        KERNEL
    ), left
    assert left["error"]["line"] == line


def test_a_kernel_that_hangs_when_it_is_imported(started: Project, mode: tuple[str, ...]) -> None:
    version = kernel() + f"{HANG}\n"
    started.write(KERNEL, version)
    run = started.round(2, *mode, **with_watchdog(started))
    is_a_repair(started, run, version)
    assert [row.split(",")[3] for row in rows(started)] == ["ERROR", "ERROR"]
    stack = rf'kernels/doubled\.py", line {version.count(chr(10))} in <module>$'
    assert re.search(stack, run.text, re.MULTILINE), run.text


#: Calls of the candidate up to the second process of the comparison, roughly: it checks with 100.
HANGS_LATE = """
import os


def plain(x, _unharmed=plain):
    with open("measured/calls.log", "a+") as calls:
        calls.write("x")
        calls.flush()
        if calls.tell() > {most}:
            {hang}
    return _unharmed(x)
"""


@pytest.mark.long
@pytest.mark.parametrize("most", [130])
def test_a_candidate_that_hangs_while_it_is_compared(tmp_path: Path, most: int) -> None:
    """Once beside the incumbent, once more in a process of its own: its case is an ERROR row."""
    project = Project(tmp_path / "paired")
    project.root.mkdir()
    write_paired(project)
    project.write("kernels/other.py", paired_kernel(name="other"))
    project.write(
        "tests/test_plain.py", cases(("kernels.plain", "plain"), ("kernels.other", "other"))
    )
    project.commit_all()
    sources = ("--kernel", PLAIN, "--kernel", "kernels/other.py")
    done = project.kopt(
        "init", "c", "--op", "plain", *sources, "--backend", "TORCH", "--gpu", "cpu"
    )
    assert done.code == 0, done.text
    variables = traced(tmp_path) | with_watchdog(project)
    assert project.pytest("--kopt-round", "1", **variables).code == 0
    version = paired_kernel(FASTER, "new") + HANGS_LATE.format(most=most, hang=HANG)
    project.write(PLAIN, version)
    run = project.pytest("--kopt-round", "2", **variables)
    assert run.code == 1 and "REPAIR" in run.out, run.text
    assert re.search(r'kernels/plain\.py", line \d+ in plain$', run.out, re.MULTILINE), run.out
    assert project.read(PLAIN) == version
    csv = project.read("agent/workspace/c/rounds/round-2/artifacts/benchmark.csv")
    assert [line.split(",")[2] for line in csv.splitlines()[1:]] == ["ERROR", "PASS"]


KILLED_ONCE = """
import os
import signal
from pathlib import Path

_mark = Path("measured/killed.log")
_unharmed = doubled


def doubled(x):
    if x.shape[0] == 4 and not _mark.exists():
        _mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _unharmed(x)
"""


def test_a_worker_that_was_killed_decides_nothing(started: Project, mode: tuple[str, ...]) -> None:
    """The gain is clear and the case goes through when run again; it may be anybody's doing."""
    version = kernel(125.0) + KILLED_ONCE
    started.write(KERNEL, version)
    head = started.head()
    run = started.round(2, *mode)
    assert (started.root / "measured/killed.log").exists(), "the worker did die"
    assert run.code == 11, run.text
    verdict = started.verdict(2)
    assert verdict["decision"] == "INCOMPLETE"
    assert "worker" in verdict["reason"] and "test_doubled[4]" in verdict["reason"]
    assert started.read(KERNEL) == version and started.head() == head
    kept = {result["label"]: result["check"] for result in started.evidence(2)["results"]}
    assert kept["doubled rows=2 columns=8"] == "PASS", "the rows that had arrived are kept"
    status = started.kopt("status", "--json")
    assert '"next_round": 2' in status.out and '"open": true' in status.out


@pytest.mark.parametrize(
    "version",
    [kernel() + "def unfinished(:\n", kernel(first=LEAVE)],
    ids=["import", "exit"],
)
def test_a_baseline_that_breaks_freezes_nothing(fresh: Project, version: str) -> None:
    fresh.write(KERNEL, version)
    fresh.commit_all("Break it")
    run = fresh.round(1)
    assert run.code in (1, 11), run.text
    assert "INTERNALERROR" not in run.text
    decided = [event["decision"] for event in fresh.ledger() if event["event"] == "decided"]
    assert decided in ([], ["REPAIR"], ["INCOMPLETE"])
    manifest = yaml.safe_load((fresh.campaign / "manifest.yaml").read_text())
    assert manifest["schema"] is None
    assert fresh.round(2).code == 4, "there is no baseline yet"


#: The forked process waits, then ends; it must never return into the session that it is a copy of.
FORK = (
    "x.shape[0] == 2 and (__import__('os').fork() and __import__('os')._exit(3) "
    "or __import__('time').sleep(3600) or __import__('os')._exit(0))"
)


def test_what_a_dead_case_has_forked_holds_nothing_up(started: Project) -> None:
    """A process that the kernel leaves behind would keep the channel open, and us waiting."""
    version = kernel(first=FORK)
    started.write(KERNEL, version)
    run = started.round(2)
    assert run.code == 1 and started.verdict(2)["decision"] == "REPAIR", run.text
    assert [row.split(",")[3] for row in rows(started)] == ["ERROR", "PASS"]


@pytest.mark.long
def test_a_flood_of_output_and_a_greedy_kernel(started: Project) -> None:
    started.write(KERNEL, kernel(first="print('x' * 100_000)"))
    run = started.round(2)
    assert run.code == 8 and len(run.text) < 10_000, run.text[:2000]

    version = kernel(first="x.shape[0] == 2 and bytearray(1 << 50)")
    started.write(KERNEL, version)
    run = started.round(3)
    assert run.code == 1 and "MemoryError" in run.out and "INTERNALERROR" not in run.text
    assert started.verdict(3)["decision"] == "REPAIR"
