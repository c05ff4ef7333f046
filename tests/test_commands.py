from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from pytest_kopt.campaign.manifest import split_command
from pytest_kopt.errors import BadInput
from pytest_kopt.processes.isolation import lacking
from pytest_kopt.trials.project_command import ProjectCommand

from .waiting import until

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"


def script(directory: Path, text: str) -> Path:
    path = directory / "script.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("command", "environment", "words"),
    [
        ("make -j 4", {}, ["make", "-j", "4"]),
        ("FOO=1 BAR= make", {"FOO": "1", "BAR": ""}, ["make"]),
        ("FOO='a b' python -c 'x = 1'", {"FOO": "a b"}, ["python", "-c", "x = 1"]),
        ("make CC=gcc", {}, ["make", "CC=gcc"]),
        ("1A=2 make", {}, ["1A=2", "make"]),
        ("A=b=c run", {"A": "b=c"}, ["run"]),
        ("  spaced   out  ", {}, ["spaced", "out"]),
        ("echo $HOME; rm -rf *", {}, ["echo", "$HOME;", "rm", "-rf", "*"]),
        ('say ""', {}, ["say", ""]),
    ],
)
def test_leading_assignments_go_to_the_environment_and_the_rest_is_split_as_a_shell_would(
    command: str, environment: dict[str, str], words: list[str]
) -> None:
    assert split_command(command) == (environment, words)


@pytest.mark.parametrize("command", ["", "   ", "FOO=1", "echo 'open", 'echo "open', "echo \\"])
def test_a_command_that_cannot_be_split_or_names_no_program_is_refused(command: str) -> None:
    with pytest.raises(BadInput) as refusal:
        split_command(command)
    assert repr(command) in str(refusal.value)


def test_a_command_runs_in_the_project_root_with_the_given_environment(tmp_path: Path) -> None:
    path = script(tmp_path, SHOW)
    failure, output = ProjectCommand(
        f"FOO=word BOTH=command {sys.executable} {path} 'a b' c",
        {"BAR": "manifest", "BOTH": "manifest"},
    ).run(tmp_path)
    assert not failure
    words, environment, directory = json.loads(output)
    assert words == ["a b", "c"]
    assert (environment["FOO"], environment["BAR"]) == ("word", "manifest")
    assert environment["BOTH"] == "command"
    assert environment["PATH"] == os.environ["PATH"]
    assert Path(directory).resolve() == tmp_path.resolve()


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    path = script(tmp_path, SHOW)
    _, output = ProjectCommand(
        f"{sys.executable} {path} $HOME `id` ; touch made > out * | cat"
    ).run(tmp_path)
    words, _, _ = json.loads(output)
    assert words == ["$HOME", "`id`", ";", "touch", "made", ">", "out", "*", "|", "cat"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["script.py"]


def test_our_own_environment_stays_as_it_is(tmp_path: Path) -> None:
    before = dict(os.environ)
    ProjectCommand(f"ONLY_THERE=1 {sys.executable} -c pass", {"NOR_HERE": "1"}).run(tmp_path)
    assert dict(os.environ) == before


def test_a_command_that_fails_tells_its_status_and_both_streams(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import sys; print('to stdout', flush=True); print('to stderr', file=sys.stderr); "
        "sys.exit(3)",
    )
    failure, output = ProjectCommand(f"{sys.executable} {path}").run(tmp_path)
    assert "ended with status 3" in failure
    assert "to stdout" in output and "to stderr" in output


def test_a_command_gets_no_input(tmp_path: Path) -> None:
    path = script(tmp_path, "import sys; print(repr(sys.stdin.read()))")
    assert ProjectCommand(f"{sys.executable} {path}").run(tmp_path) == ("", "''\n")


def test_long_and_undecodable_output_is_kept_to_its_end(tmp_path: Path) -> None:
    words = r"import sys; sys.stdout.buffer.write(b'x' * (1 << 20) + b'\xff the end')"
    path = script(tmp_path, words)
    _, output = ProjectCommand(f"{sys.executable} {path}").run(tmp_path)
    assert len(output) == 1 << 20
    assert output.endswith("x\ufffd the end")


def test_a_compilers_errors_come_before_the_end_of_what_a_command_printed(tmp_path: Path) -> None:
    """Setuptools prints a traceback behind them, longer than what is shown."""
    printed = ["k.cpp:1:2: warning: w", "k.cpp:7:25: error: expected ';'", *map(str, range(99))]
    path = script(
        tmp_path,
        f"print({chr(10).join(printed)!r}, flush=True); raise RuntimeError('Error compiling')",
    )
    failure = ProjectCommand(f"{sys.executable} {path}").run(tmp_path)[0].splitlines()
    assert failure[0].endswith("ended with status 1: k.cpp:7:25: error: expected ';'")
    assert failure[-1] == "RuntimeError: Error compiling" and len(failure) < 20
    (log,) = re.findall(r"\S+\.log", "\n".join(failure))
    assert Path(log).read_text().startswith("\n".join(printed))
    Path(log).unlink()


@pytest.mark.parametrize("program", ["no-such-program-here", "./plain.txt", "."])
def test_a_program_that_cannot_be_run_is_a_failure_that_names_it(
    tmp_path: Path, program: str
) -> None:
    (tmp_path / "plain.txt").write_text("text")
    failure, output = ProjectCommand(f"{program} --flag").run(tmp_path)
    assert "ended with status 127" in failure
    assert output.startswith(f"{program}: ")


def test_a_command_with_a_nul_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="command"):
        ProjectCommand("echo a\0b").run(tmp_path)


LINGERS = """
import os, subprocess, sys
subprocess.Popen(["setsid", "sh", "-c", "echo $$ > pid; exec sleep 600"], start_new_session=True)
while not os.path.exists("pid"):
    pass
"""


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """A shell in a session of its own, whose parent is gone, could go on in the other version."""
    path = script(tmp_path, LINGERS)
    assert ProjectCommand(f"{sys.executable} {path}").run(tmp_path)[0] == ""
    stat = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    # Killed, it may wait for a core to end on, and for whoever collects it.
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.skipif(bool(lacking()), reason=lacking() or "-")
def test_a_command_writes_to_its_own_tree_only(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    path = script(tmp_path, "open('mine', 'w'); open('../others', 'w')")
    command = f"{sys.executable} {path}"
    _, output = ProjectCommand(command).run(tmp_path / "tree")
    assert "PermissionError" in output
    assert (tmp_path / "tree/mine").exists() and not (tmp_path / "others").exists()
    assert not ProjectCommand(command, is_confined=False).run(tmp_path / "tree")[0]
