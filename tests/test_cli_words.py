"""What the command line says: versions, names that are inferred, and words that differ."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_kopt import policies
from pytest_kopt.campaign.git.worktrees import choose_campaign
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.cli import standalone
from pytest_kopt.cli.demo import _difference
from pytest_kopt.cli.init import _in_short
from pytest_kopt.cli.main import main
from pytest_kopt.documents import validate
from pytest_kopt.errors import BadInput
from pytest_kopt.standalone import two_versions
from tests.builders import manifest_document

DOCS = Path(__file__).parents[1] / "docs"


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"pytest-kopt {version('pytest-kopt')}"


def test_kopt_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "\nwithout a campaign: compare, time, judge," in shown and "--version" in shown


def test_a_word_beside_shapes_is_named_as_tests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a.py", "b.py", "--call", "f", "--shapes", "f32[2,4]", "f32[4]"]) == 4
    shown = capsys.readouterr().err
    assert "'f32[4]' was read as TESTS" in shown
    assert "--shapes 'f32[256,1024] f32[1024]'" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_in_order(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    former = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(standalone, "_cases", lambda *_: signal.raise_signal(number))
    # A session within an earlier test of this process may have left a handler of its own.
    others = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["compare", "a.py", "b.py", "--json"]) == pytest.ExitCode.INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, others)
    shown = capsys.readouterr()
    document = {"exit_code": 2, "reason": "interrupted", "verdict": None}
    assert json.loads(shown.out) == document
    assert shown.err == "interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is former


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("nowhere new.py", "nowhere: there is no such folder"),
        ("--json nowhere new.py", "nowhere: there is no such folder"),
        (". new.py", "pyproject.toml: "),
        (". new.py --seconds soon", "invalid float value: 'soon'"),
        (". new.py --unknown", "unrecognized arguments: --unknown"),
        (".", "required: SUBMISSION"),
    ],
)
def test_a_refusal_of_judge_is_a_line(
    words: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest\n")
    (tmp_path / "new.py").write_text("")
    assert main(["judge", *words.split()]) == 4
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    # The keys in docs/judge.md.
    assert document.keys() == {"outcome", "exit_code", "reason", "seconds", "verdict"}
    assert (document["outcome"], document["exit_code"]) == ("not judged", 4)
    assert reason in document["reason"] and document["reason"] in shown.err


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("a.py b.py", 4, "a.py: there is no such file, folder or git ref"),
        ("a.py b.py --at", 4, "argument --at: expected one argument"),
        ("a.py b.py --bogus", 4, "unrecognized arguments: --bogus"),
        ("", 4, "required: OLD, NEW"),
        ("full.py full.py --at full.py test_full.py", 11, "full.py: No space left on device"),
    ],
)
def test_a_refusal_of_compare_is_a_document(
    words: str,
    code: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "full.py")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(two_versions, "two_with", full)
    (tmp_path / "full.py").write_text("")
    (tmp_path / "test_full.py").write_text("import full\n")
    assert main(["compare", "--json", *words.split()]) == code
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"exit_code", "reason", "verdict"}
    assert document["exit_code"] == code and reason in document["reason"]


def test_what_is_kept_of_made_cases_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: object) -> None:
        raise BadInput("ended here")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(two_versions, "both", ended)
    (tmp_path / "a.py").write_text("def f(x):\n    return x\n")
    words = ("--call", "f", "--shapes", "f32[4]", "--write-test", "tests/test_f.py")
    assert main(["compare", "a.py", "a.py", *words]) == 4
    written, run = capsys.readouterr().out.splitlines()[1:]
    folder = tmp_path.resolve() / "tests"
    assert written == f"written: {folder}/test_f.py and {folder}/reference_f.py"
    assert run == f'plain pytest: set pythonpath = ["."] in {tmp_path.resolve()}'


def test_stop_and_abandon_say_how_they_differ(capsys: pytest.CaptureFixture[str]) -> None:
    stop, abandon = (helped(capsys, word) for word in ("stop", "abandon"))
    assert "may still be compared with the baseline" in stop
    assert "no final comparison" in abandon


def test_kernels_may_be_several_and_folders(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "init")
    assert "file or folder to optimise: kernels/gemm.py" in text
    assert "the only one that tests import); may be repeated" in text


@pytest.mark.parametrize(
    "words",
    [
        "old.py new.py none.py --at new.py",
        "old.py new.py --at new.py none.py",
        "old.py --at new.py new.py --json none.py",
        "--at new.py old.py new.py none.py -- -q",
    ],
)
def test_tests_stand_before_or_after_options(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old.py", "new.py"):
        (tmp_path / name).write_text("")
    assert main(["compare", *words.split()]) == 4
    assert "none.py: there is no such file or folder" in capsys.readouterr().err


@pytest.mark.parametrize("cases", ["test_new.py", "--call f --shapes f32[4]"])
@pytest.mark.parametrize("at", ["../outside.py", "/outside.py", "kernels/../../outside.py"])
def test_versions_have_their_place_inside_of_the_project(
    at: str,
    cases: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Their tree has files at that place: they would lie outside of it as well."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    for name in ("old.py", "new.py", "test_new.py", "../outside.py"):
        (project / name).write_text("def f(x):\n    return x\n")
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    assert main(["compare", "old.py", "new.py", *cases.split(), "--at", at]) == 4
    assert f"--at {at}: lies outside of the project" in capsys.readouterr().err


def test_a_template_has_no_campaign_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "softmax", "--template", "gemm"]) == 4
    assert "begins no campaign" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *[("status",), ("advise",), ("stop",), ("abandon",), ("discard",), ("tips", "show")],
        *[("restore", "3"), ("retry", "3"), ("note", "3", "notes.yaml"), ("tips", "show")],
        *[("tips", "add", "3", "text"), ("report",)],
        ("export", "-o", "out"),
    ],
    ids=" ".join,
)
def test_no_command_needs_the_name_of_the_only_campaign(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where there are two, all say so in the same words."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "notes.yaml").write_text("summary: x\n")
    for name in ("one", "two"):
        manifest = tmp_path / "agent/workspace" / name / "manifest.yaml"
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}")
    assert main(words) == 4
    said = "command names none. Fix: add NAME or --kopt-campaign NAME, one of one, two"
    assert said in capsys.readouterr().err


def test_without_a_campaign_it_says_how_to_begin_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="none exists yet"):
        choose_campaign(None, tmp_path, tmp_path / "agent/workspace")


def test_init_tells_six_lines_of_the_manifest() -> None:
    """Twenty-four, most of them null, hid the few that a campaign is about."""
    given = validate(Manifest, manifest_document(), "manifest.yaml")
    shown = list(_in_short(given))
    assert [line.partition(":")[0] for line in shown] == [
        *("kernel", "op", "gpu", "tests", "metric", "policy"),
    ]
    assert not any(word in line for line in shown for word in ("None", "null"))
    assert sum(": null" in line or ": None" in line for line in given.to_yaml().splitlines()) > 6


def test_nobody_trying_the_demo_reads_of_pip() -> None:
    text = (DOCS.parent / "Makefile").read_text()
    assert "\nexport PIP_DISABLE_PIP_VERSION_CHECK = 1\n" in text
    assert "\nexport PIP_ROOT_USER_ACTION = ignore\n" in text
    recipe = text.partition("$(VENV)/demo-installed:")[2].partition("\n\n")[0]
    lines = [line for line in recipe.splitlines() if "pip install" in line and "#" not in line]
    assert lines and all("--quiet" in line for line in lines)


def test_the_environment_is_asked_for_torch_and_not_the_one_that_made_it() -> None:
    """An active environment has its own: .venv sees the packages of the base interpreter only."""
    words = ["make", "--dry-run", "--always-make", "demo", "PYTHON=active/bin/python"]
    shown = subprocess.run(
        words, cwd=DOCS.parent, capture_output=True, text=True, check=True
    ).stdout
    asked = '.venv/bin/python -c "import torch" 2>/dev/null || '
    assert f'{asked}.venv/bin/pip install --quiet "torch==' in shown
    assert 'active/bin/python -c "import torch"' not in shown


def test_an_unknown_backend_names_the_known_ones() -> None:
    document = manifest_document(target_backend="pytorch")
    document.pop("target_lang", None)
    with pytest.raises(BadInput) as refused:
        validate(Manifest, document, "manifest.yaml")
    assert "key 'target_lang' is missing (it follows from the backends TRITON" in str(refused.value)
    assert "TORCH; any other needs --lang" in str(refused.value)


@pytest.mark.parametrize(("column", "name"), [(2, "primus"), (3, "kernel-opt")])
def test_the_table_of_the_policy_has_every_key_and_its_values(column: int, name: str) -> None:
    text = (DOCS / "verdicts.md").read_text().partition("## The policy")[2]
    text = text.partition("\n## ")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    told = {row[1].strip(" `"): row[column].strip() for row in rows}
    policy = policies.load(name).model_dump(mode="json")
    policy |= {f"remeasure.{key}": value for key, value in policy.pop("remeasure").items()}
    shown = {key: f"{v:g}" if isinstance(v, float) else str(v) for key, v in policy.items()}
    assert told == {key: {"True": "true", "False": "false"}.get(v, v) for key, v in shown.items()}


def test_the_demo_shows_what_a_round_changes_in_three_lines() -> None:
    old = "def f(x):\n    return x\n"
    assert _difference(old, "def f(x):\n    return 2 * x\n") == [
        "-    return x",
        "+    return 2 * x",
    ]
    long = _difference(old, "\n".join(f"line {i}" for i in range(9)))
    assert len(long) == 3 and long[-1] == "… and 9 lines more"


@pytest.mark.parametrize("missing", ["anyio", "mcp"])
def test_a_server_without_its_sdk_names_the_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "pytest_kopt.cli.agent_tools", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["mcp"]) == 4
    assert "Fix: pip install 'pytest-kopt[mcp]'" in capsys.readouterr().err
