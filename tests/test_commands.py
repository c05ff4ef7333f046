from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from pytest_kopt.campaign import commands
from pytest_kopt.errors import BadInput

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
    assert commands.split(command) == (environment, words)


@pytest.mark.parametrize("command", ["", "   ", "FOO=1", "echo 'open", 'echo "open', "echo \\"])
def test_a_command_that_cannot_be_split_or_names_no_program_is_refused(command: str) -> None:
    with pytest.raises(BadInput) as refusal:
        commands.split(command)
    assert repr(command) in str(refusal.value)


def test_a_command_runs_in_the_project_root_with_the_given_environment(tmp_path: Path) -> None:
    path = script(tmp_path, SHOW)
    done = commands.run(
        f"FOO=word BOTH=command {sys.executable} {path} 'a b' c",
        tmp_path,
        {"BAR": "manifest", "BOTH": "manifest"},
    )
    assert done.returncode == 0
    words, environment, directory = json.loads(done.output)
    assert words == ["a b", "c"]
    assert (environment["FOO"], environment["BAR"]) == ("word", "manifest")
    assert environment["BOTH"] == "command"
    assert environment["PATH"] == os.environ["PATH"]
    assert Path(directory).resolve() == tmp_path.resolve()


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    path = script(tmp_path, SHOW)
    done = commands.run(
        f"{sys.executable} {path} $HOME `id` ; touch made > out * | cat", tmp_path, {}
    )
    words, _, _ = json.loads(done.output)
    assert words == ["$HOME", "`id`", ";", "touch", "made", ">", "out", "*", "|", "cat"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["script.py"]


def test_our_own_environment_stays_as_it_is(tmp_path: Path) -> None:
    before = dict(os.environ)
    commands.run(f"ONLY_THERE=1 {sys.executable} -c pass", tmp_path, {"NOR_HERE": "1"})
    assert dict(os.environ) == before


def test_a_command_that_fails_tells_its_status_and_both_streams(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import sys; print('to stdout', flush=True); print('to stderr', file=sys.stderr); "
        "sys.exit(3)",
    )
    done = commands.run(f"{sys.executable} {path}", tmp_path, {})
    assert done.returncode == 3
    assert "to stdout" in done.output and "to stderr" in done.output


def test_a_command_gets_no_input(tmp_path: Path) -> None:
    path = script(tmp_path, "import sys; print(repr(sys.stdin.read()))")
    assert commands.run(f"{sys.executable} {path}", tmp_path, {}).output == "''\n"


def test_long_and_undecodable_output_is_kept_to_its_end(tmp_path: Path) -> None:
    path = script(tmp_path, r"import sys; sys.stdout.buffer.write(b'x' * 9000 + b'\xff the end')")
    output = commands.run(f"{sys.executable} {path}", tmp_path, {}).output
    assert len(output) == 4000
    assert output.endswith("x\ufffd the end")


@pytest.mark.parametrize("program", ["no-such-program-here", "./plain.txt", "."])
def test_a_program_that_cannot_be_run_is_a_failure_that_names_it(
    tmp_path: Path, program: str
) -> None:
    (tmp_path / "plain.txt").write_text("text")
    done = commands.run(f"{program} --flag", tmp_path, {})
    assert done.returncode == 127
    assert done.output.startswith(f"{program}: ")


def test_a_command_with_a_nul_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="command"):
        commands.run("echo a\0b", tmp_path, {})
