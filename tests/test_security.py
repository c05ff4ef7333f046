"""Nothing gets in: no shell, no code out of data, no way out of the roots, no markup out of text.

What runs is what a project's author wrote to be run: tests, kernels, and the manifest's commands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytest_kopt
from pytest_kopt.campaign.layout import check_name
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.documents import MAX_BYTES, parse_yaml
from pytest_kopt.errors import BadInput
from pytest_kopt.show import terminal
from pytest_kopt.show.exports.comment import comment
from pytest_kopt.show.exports.github import annotation_lines
from pytest_kopt.show.lines import write
from pytest_kopt.show.words import printed, visible
from tests.builders import few_examples
from tests.test_publishing import ON_GITHUB, a_result, a_verdict
from tests.waiting import no_hang

PACKAGE = Path(pytest_kopt.__file__).parent

#: What runs text as code or hands it to a shell.
BUILTINS = {"eval", "exec", "compile", "__import__", "input", "breakpoint"}
IMPORTS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "pty", "commands", "imp", "code"}
CALLS = {
    *("os.system", "os.popen", "os.startfile", "subprocess.getoutput", "tempfile.mktemp"),
    *("subprocess.getstatusoutput", "torch.load", "yaml.unsafe_load", "yaml.full_load"),
    *("numpy.load", "runpy.run_path", "runpy.run_module", "importlib.util.spec_from_file_location"),
}
CALL_STARTS = ("os.exec", "os.spawn", "os.posix_spawn")
#: Each exception with its reason.
EXCEPTIONS = {
    ("documents.py", "yaml.load"): "its loader is a SafeLoader without tags and aliases",
    ("campaign/prerequisites.py", "compile"): "sees whether a kernel parses, and runs nothing",
    ("versions/twin.py", "importlib.util.spec_from_file_location"): "loads that snapshot",
    (
        "show/templates/__init__.py",
        "jinja2.Environment(autoescape=jinja2.select_autoescape(['html.j2']))",
    ): "HTML is escaped; text and Markdown have their own way to make text safe",
    ("recording/recorder.py", "runpy.run_path"): "the program that the user's command names",
    ("recording/recorder.py", "runpy.run_module"): "the same, as a module",
    ("trials/project_command.py", "os.execvpe"): "a command of the manifest, without a shell",
    ("versions/twin.py", "builtins.__import__"): "an import statement of the user's kernel",
}


def suspects(tree: ast.Module) -> Iterator[str]:
    """What a module does that reads data as code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in IMPORTS)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in IMPORTS:
            yield str(node.module)
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name.removeprefix("builtins.") in BUILTINS or name in CALLS or name == "yaml.load":
            yield name
        if name.startswith(CALL_STARTS):
            yield name
        for keyword in node.keywords:
            # `shell=`, and `autoescape=`, are either constant and safe or not there.
            given = ast.unparse(keyword.value)
            if (keyword.arg, given) in (("shell", "False"), ("autoescape", "True")):
                continue
            if keyword.arg in ("shell", "autoescape", "executable"):
                yield f"{name}({keyword.arg}={given})"


def test_no_data_is_code_and_no_shell_is_asked() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), what)
        for path in PACKAGE.rglob("*.py")
        for what in suspects(ast.parse(path.read_text()))
    }
    assert found - EXCEPTIONS.keys() == set()
    assert EXCEPTIONS.keys() - found == set(), "an exception that is none any more"


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.system('x')",
        "subprocess.run('x', shell=True)",
        "subprocess.run('x', shell=flag)",
        "from pickle import loads",
        "import marshal",
        "eval('1')",
        "yaml.load(text)",
        "os.execvp('sh', [])",
        "Environment(autoescape=False)",
    ],
)
def test_the_search_above_would_find_it(text: str) -> None:
    assert list(suspects(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 50_000,
        "a: " + "{b: " * 20_000,
        "\n".join(" " * i + "a:" for i in range(500)),
        "a: !!python/object/apply:os.system ['touch hacked']",
        "a: !!python/name:os.system",
        "a: !new {b: 1}",
        "a: &a [x]\nb: [*a, *a, *a]",
        'a: "half \\ud800"',
        'a: "a NUL \\0"',
        'a: ["nested \\0"]',
    ],
)
def test_hostile_yaml_is_refused(text: str) -> None:
    assert len(text) < MAX_BYTES
    with no_hang(), pytest.raises(BadInput, match=r"hostile\.yaml"):
        parse_yaml(text, "hostile.yaml")


@pytest.mark.parametrize(
    "name",
    ["..", "a/..", "a/b", "/a", "a\\b", "", ".a", "-a", "a\n", "a\0", "a..b", "ａ", "a\u202eb"],
)
def test_no_campaign_lies_outside_the_workspace(name: str) -> None:
    with pytest.raises(BadInput, match="letters, digits"):
        check_name(name)


ESC, RTL = "\x1b", "\u202e"
EVIL = (
    f'<script>alert(1)</script>"onload="alert(1) </script><img src=x onerror=alert(1)> {RTL}gnp.x '
    f"{ESC}[2J{ESC}]0;title\x07 \r\n::error::forged\n::stop-commands::x\n@team "
    "[a](javascript:x) %0A"
)
UNSEEN = [
    chr(n) for n in (*range(9), *range(11, 32), 127, *range(128, 160), 0x200E, 0x202A, 0x2069)
]


@few_examples
@given(st.text(st.characters() | st.sampled_from([*UNSEEN, "\n", ":", " "]), max_size=60))
def test_what_is_printed_does_nothing(text: str) -> None:
    lines = printed(text)
    assert lines
    for line in lines:
        assert not set(line) & {*UNSEEN, "\n"}
        # What a runner of GitHub trims before it looks for a command.
        assert not line.strip().startswith("::")
    assert visible(visible(text)) == visible(text)


def test_plain_text_is_printed_as_it_is() -> None:
    text = "tile 64 → 32, ядро «x» 核 🔥\t+3.2 % :: [a](b)"
    assert printed(text) == [text]


class Written:
    """A terminal reporter that keeps what it was given."""

    isatty = False

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_line(self, line: str, **markup: bool) -> None:
        self.lines.append(line)


def hostile_verdict(**more: Any) -> Any:
    shape = Shape(label=EVIL, dims={"M": 64}, check="FAIL", status="regressed")
    texts = {"reason": EVIL, "next_step": EVIL, "campaign": EVIL, "engine": EVIL, "policy": EVIL}
    return a_verdict(Decision.ROLLED_BACK, flags=[EVIL], shapes=[shape], **texts, **more)


def test_labels_notes_and_reasons_do_nothing_to_a_terminal() -> None:
    reporter: Any = Written()
    write(reporter, terminal.verdict_lines(hostile_verdict()))
    assert any("\\u001b[2J" in line for line in reporter.lines), "they are shown all the same"
    for line in reporter.lines:
        assert not set(line) & {*UNSEEN, "\n"}
        assert not line.strip().startswith("::")


def test_a_comment_and_a_summary_hold_no_markup_of_others() -> None:
    text = comment(hostile_verdict())
    assert "<script" not in text and "<img" not in text and "@team" not in text
    assert "](javascript" not in text.replace("\\]", "")
    assert not set(text) & set(UNSEEN)
    assert not any(line.strip().startswith("::") for line in text.splitlines())


def test_an_annotation_is_one_command() -> None:
    failed = a_result(EVIL, check="ERROR", diagnosis=EVIL)
    flag = f"{EVIL} (kernels/a,line=1.py:3)"
    verdict = hostile_verdict().model_copy(update={"flags": [flag]})
    lines = list(annotation_lines(ON_GITHUB, verdict, [failed]))
    assert len(lines) == 3
    for line in lines:
        level, properties, message = (
            line.removeprefix("::").replace("::", " \0", 1).partition(" \0")
        )
        assert line.count("\n") == 0 and not set(line) & set(UNSEEN), (level, properties, message)
        assert "%250A" in line, "an escape of the text is no escape of ours"


def test_a_report_shows_direction_and_control_characters(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    from pytest_kopt.show.report import page
    from tests.whole_campaign import a_campaign

    line = EVIL.replace("\r", "").replace("\n", " ").replace("\x07", "")
    campaign = a_campaign(
        tmp_path, rounds=2, shapes=2, label="{size}" + line, summary=line, kernel=f"# {line}\n"
    )
    for html in (page.campaign_page(campaign), page.index_page([campaign], ["a.html"])):
        assert "<script>alert" not in html and "<img" not in html and '"onload=' not in html
        assert not set(html) & set(UNSEEN)


@pytest.mark.parametrize("name", ["manifest.yaml", "ledger.jsonl", "kernel.py", "report"])
def test_a_report_is_written_over_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pytest_kopt.cli.main import main

    (tmp_path / name).write_text("mine\n")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "any", "-o", name]) == 4
    assert name in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "mine\n"
