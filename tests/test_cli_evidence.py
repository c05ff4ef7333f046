from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_kopt.cli.command_line import CommandParser
from pytest_kopt.cli.init import init
from pytest_kopt.cli.main import main
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.measure import measured_peaks as measuring
from tests.campaigns import campaign_at, record

COMMANDS = {
    "advise": [],
    "tips": ["show", "add"],
    "memory": ["mask", "unmask", "restart"],
    "calibrate": [],
    "export": [],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    campaign = campaign_at(tmp_path)
    record(campaign, 1, Decision.BASELINE)
    record(campaign, 2, Decision.ROLLED_BACK, change="bigger tiles")
    record(campaign, 3, Decision.ACCEPTED, change="smaller tiles")
    return tmp_path


def out(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        [name, *([action] if action else [])]
        for name in COMMANDS
        for action in ["", *COMMANDS[name]]
    ],
    ids=" ".join,
)
def test_every_command_explains_itself_with_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    assert "example:\n  kopt " in capsys.readouterr().out


def test_every_option_of_init_has_an_example() -> None:
    commands = CommandParser().add_subparsers()
    init.add_to(commands)
    # The template's names and the choices of a mode stand in the help themselves.
    bare = {"help", "verbose", "name", "template", "mode"}
    options = [a for a in commands.choices["init"]._actions if a.dest not in bare]
    assert len(options) > 15
    for option in options:
        assert re.search(r": ['\w.]|, ", option.help or ""), option.dest


@pytest.mark.parametrize("words", [["status"], ["init", "--help"]])
def test_a_reader_who_has_enough_is_no_error(here: Path, words: list[str]) -> None:
    """As in `kopt status | head -1`: no traceback, and the exit code is the command's own."""
    command = [sys.executable, "-m", "pytest_kopt.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


def test_what_is_missing_is_said_before_torch_is_imported(here: Path) -> None:
    words = ["init", "n", "--op", "softmax", "--kernel", "kernels/absent.py", "--tests", "tests"]
    words += ["--backend", "TORCH", "--gpu", "cpu"]
    code = f"import sys; from pytest_kopt.cli.main import main; code = main({words}); "
    code += "print('torch' in sys.modules); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 4 and "'kernels/absent.py' does not exist" in done.stderr
    assert done.stdout == "False\n"


def test_versions_of_the_memory_are_masked_and_unmasked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert out(capsys, "memory", "mask", "c", "v1", "v2") == "masked v1, v2\n"
    kept = here / "agent/workspace/c/memory/v1.json"
    assert json.loads(kept.read_text())["masked"] is True
    assert out(capsys, "memory", "unmask", "c", "v1") == "unmasked v1\n"
    assert json.loads(kept.read_text())["masked"] is False
    for version in ("v9", "1", "three", "v-1"):
        assert main(["memory", "mask", "c", version]) == 4
        refusal = capsys.readouterr().err
        assert f"{version} does not exist" in refusal and "allowed: v0, v1, v2" in refusal


def test_a_restart_records_its_seed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "memory", "restart", "c", "--seed", "7") == "masked v1\n"
    assert '"seed": 7' in (here / "agent/workspace/c/ledger.jsonl").read_text().splitlines()[-1]


def test_tips_are_added_and_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no tips yet" in out(capsys, "tips", "show", "c")
    assert main(["tips", "add", "c", "2", "256 rows spill"]) == 4
    assert "the key tip needs the key bucket. Fix: add bucket: K1" in capsys.readouterr().err
    added = ("c", "2", "256 rows spill", "--bucket", "K1")
    assert "appended to" in out(capsys, "tips", "add", *added)
    text = out(capsys, "tips", "show", "c")
    assert "256 rows spill" in text
    assert main(["tips", "add", "c", "9", "x", "--bucket", "K1"]) == 4
    assert out(capsys, "tips", "show", "c") == text


def test_calibrate_keeps_the_ceilings_in_the_workspace(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(measuring._COPIES, "cpu", [1 << 16])
    monkeypatch.setitem(measuring._BEYOND, "cpu", 1 << 16)
    monkeypatch.setitem(measuring._SIZES, "cpu", [64])
    monkeypatch.setitem(measuring._DTYPES, "cpu", ["float32"])
    text = out(capsys, "calibrate", "--ceilings", "--device", "cpu")
    assert "copy bandwidth: " in text and "matrix rate float32: " in text
    (path,) = (here / "agent/workspace/ceilings").glob("*.yaml")
    assert f"written to {path}" in text
    assert main(["calibrate", "--ceilings", "--noise"]) == 4
