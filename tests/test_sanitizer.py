"""compute-sanitizer's log, its command line, and sessions that ask for it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.devices import context
from pytest_kopt.processes.profiler import Profiler
from pytest_kopt.profiling import sanitizer
from pytest_kopt.profiling.sanitizer import SanitizerError
from pytest_kopt.trials.measurements import Measurements

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at beyond(const float *, float *, int)+0x70 in /tmp/planted.cu:12
=========     by thread (255,0,0) in block (3,0,0)
=========     Address 0x7f3c4e000400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c4e000000 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel+0x10 in libcuda.so.1
=========
========= Invalid __global__ read of size 4 bytes
=========     at beyond(const float *, float *, int)+0x70 in /tmp/planted.cu:12
=========     by thread (254,0,0) in block (3,0,0)
=========     Address 0x7f3c4e0003fc is out of bounds
=========
========= Invalid __shared__ write of size 2 bytes
=========     at _matmul+0x1f0
=========     by thread (0,0,0) in block (0,0,0)
========= ERROR SUMMARY: 3 errors
"""
MEMCHECK_OF_11 = """\
========= Invalid __global__ write of size 4 bytes
=========     at 0x160 in /home/me/planted.cu:6:beyond(float*)
=========     by thread (63,0,0) in block (0,0,0)
=========     Device Frame:/home/me/planted.cu:9:beyond(float*) [0x30]
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sums(const float *, float *)+0x6c0 in \
planted.cu:16
=========     and Read access at sums(const float *, float *)+0x100 in planted.cu:24 [508 hazards]
=========
========= Warning: Race reported between Write access at same(int *)+0x80 in planted.cu:40
=========     and Write access at same(int *)+0x80 in planted.cu:40 [32 hazards]
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at add(float *)+0x70 in planted.cu:33
=========     by thread (65,0,0) in block (0,0,0)
=========     Address 0x7f3c4e000104
=========
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            MEMCHECK,
            [
                (
                    "Invalid __global__ read of size 4 bytes",
                    "beyond(const float *, float *, int)",
                    "/tmp/planted.cu:12",
                    2,
                ),
                ("Invalid __shared__ write of size 2 bytes", "_matmul", "", 1),
            ],
        ),
        (
            MEMCHECK_OF_11,
            [
                (
                    "Invalid __global__ write of size 4 bytes",
                    "beyond(float*)",
                    "/home/me/planted.cu:6",
                    1,
                )
            ],
        ),
        (
            RACECHECK,
            [
                (
                    "Error: Race reported between Write access",
                    "sums(const float *, float *)",
                    "planted.cu:16 and planted.cu:24",
                    1,
                )
            ],
        ),
        (
            INITCHECK,
            [
                (
                    "Uninitialized __global__ memory read of size 4 bytes",
                    "add(float *)",
                    "planted.cu:33",
                    1,
                )
            ],
        ),
        ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", []),
        ("", []),
    ],
    ids=["memcheck", "memcheck of 11", "racecheck", "initcheck", "clean", "nothing"],
)
def test_errors_have_a_kernel_and_a_line(text: str, expected: list[Any]) -> None:
    assert sanitizer.errors(text) == [SanitizerError(*parts) for parts in expected]


def test_an_error_is_one_line() -> None:
    read, write = map(str, sanitizer.errors(MEMCHECK))
    assert read == (
        "Invalid __global__ read of size 4 bytes in beyond(const float *, float *, int), "
        "/tmp/planted.cu:12 (reported 2 times)"
    )
    assert write.endswith("in _matmul; compile with -lineinfo for the line")


def test_the_command_line_names_the_tool_and_the_log(tmp_path: Path) -> None:
    words = sanitizer.command("racecheck", tmp_path)
    assert words[:3] == ["compute-sanitizer", "--tool", "racecheck"]
    (tmp_path / "sanitizer.log").write_text(RACECHECK)
    assert words[-2] == "--log-file" and Path(words[-1]).read_text() == sanitizer.log(tmp_path)


#: Stands in for the tool: finds its log's name among its words, and runs no worker.
FAKE = """\
#!{python}
import sys
words = sys.argv[1:]
text = {log!r}
if text:
    open(words[words.index("--log-file") + 1], "w").write(text)
print("the last of its output")
"""


def fake(folder: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "bin" / sanitizer.TOOL
    tool.parent.mkdir()
    tool.write_text(FAKE.format(python=sys.executable, log=log))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            INITCHECK,
            "Uninitialized __global__ memory read of size 4 bytes in add(float *), planted",
        ),
        ("========= ERROR SUMMARY: 0 errors\n", "did not run to its end under initcheck: "),
        ("", "the last of its output"),
    ],
)
def test_a_case_that_did_not_run_to_its_end_is_not_clean(
    log: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    fake(tmp_path, log, monkeypatch)
    profiler = Profiler(pytestconfig, WorkerOrders("cuda", "auto", 1, 60.0, "standard"), {})
    assert said in profiler.sanitized("tests/test_it.py::test_it", "initcheck")


CASES = """\
import pytest

@pytest.mark.kopt
@pytest.mark.parametrize("n", [1, 2])
def test_case(kopt, n):
    raise AssertionError("runs in a worker only")

def test_of_the_project():
    raise AssertionError("is not run")
"""


def test_a_case_with_an_error_is_a_failed_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(pytester.path, "", monkeypatch)
    asked = []

    def sanitized(self: Measurements, nodeid: str, tool: str) -> str:
        asked.append((nodeid.rpartition("::")[2], tool))
        return "Invalid read in k, k.cu:3" if asked[-1] == ("test_case[2]", "racecheck") else ""

    monkeypatch.setattr(context, "rouse", lambda device: None)
    monkeypatch.setattr(Measurements, "take_place", lambda *arguments, **words: None)
    monkeypatch.setattr(Measurements, "sanitized", sanitized)
    pytester.makepyfile(CASES)
    tools = "--kopt-sanitize=memcheck,racecheck"
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--kopt-device=cuda", tools)
    run.assert_outcomes(passed=1, failed=1)
    assert run.ret == 1 and len(asked) == 4
    run.stdout.fnmatch_lines(
        ["kopt: cuda, under memcheck, racecheck: *", "racecheck: Invalid read in k, k.cu:3"]
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kopt-sanitize=memcheck"], "compute-sanitizer is not on PATH"),
        (["--kopt-sanitize=memcheck,lint"], "compute-sanitizer has no 'lint'"),
        (["--kopt-sanitize=,"], "names no tool"),
        (["--kopt-sanitize=memcheck", "--kopt-device=cpu"], "the device is cpu"),
        (["--kopt-sanitize=memcheck", "--kopt-round=1"], "excludes --kopt-round"),
        (["--kopt-sanitize=memcheck", "--summary-csv=rows.csv"], "writes no rows"),
    ],
)
def test_what_cannot_be_sanitized_is_refused(
    words: list[str], said: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "PATH" not in said:
        fake(pytester.path, "", monkeypatch)
    elif shutil.which(sanitizer.TOOL):
        pytest.skip("this machine has the tool")
    pytester.makepyfile(CASES)
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider", *words)
    assert run.ret == 4
    assert said in run.stderr.str() + run.stdout.str()
