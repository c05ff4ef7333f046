"""Every command in README.md and docs/ runs, in the order in which a reader meets it.

An HTML comment above a fenced block says what the block is for:

- `file: PATH` writes it into the page's project, `commit` commits everything;
- `run` (or `run: exit N`) runs it, `run on a GPU` does if there is one;
- `not run: WHY` excuses it;
- `shown: NAME round N` quotes a campaign of docs/campaigns.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from .. import nursery
from .project import Project
from .sources import BENCHMARKS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
)
#: Pages whose commands are real rounds, or sessions in Triton's interpreter.
SLOW = {
    *(
        "docs/agent-session.md",
        "docs/campaigns-elsewhere.md",
        "docs/cases.md",
        "docs/compare.md",
        "docs/judge.md",
        "docs/languages.md",
        "docs/laptop.md",
        "docs/many-gpus.md",
        "docs/races.md",
    ),
    "docs/pull-requests.md",
    "docs/unattended.md",
}
_STEP = re.compile(
    r"(?:<!-- (?P<order>[^\n]*?) -->\n)?(?:^```(?P<language>\w*)\n(?P<text>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Step:
    order: str
    language: str
    text: str


def steps(page: str) -> Iterator[Step]:
    for found in _STEP.finditer((ROOT / page).read_text()):
        if found["order"] or found["language"]:
            yield Step(found["order"] or "", found["language"] or "", found["text"] or "")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run_or_excused(page: str) -> None:
    for step in steps(page):
        if step.language in ("sh", "bash", "shell", "console"):
            assert re.fullmatch(r"run( on a GPU)?(: exit \d+)?|not run: \w.*", step.order), step
        if step.order.startswith(("run", "not run")):
            assert step.language == "sh", step
        assert re.match(r"file: |run|not run: |shown: |mcp-name: |commit$|$", step.order), step


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.long] if p in SLOW else []) for p in PAGES]
)
def test_the_commands_of_a_page_run(page: str, empty: Project, tmp_path: Path) -> None:
    found = [step for step in steps(page) if not step.order.startswith("run on a GPU")]
    if not any(step.order.startswith("run") for step in found):
        pytest.skip("no command to run")
    play(found, empty, tmp_path)


@pytest.mark.gpu
def test_the_commands_of_a_page_run_on_a_gpu(empty: Project, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    play(list(steps("README.md")), empty, tmp_path)


def play(found: list[Step], empty: Project, tmp_path: Path) -> None:
    """Write the files of a page into a project and run its commands there."""
    empty.write("pyproject.toml", BENCHMARKS)
    empty.write(".gitignore", "__pycache__/\n")
    if any("docs/campaigns" in step.text for step in found):
        (empty.root / "docs").mkdir()
        (empty.root / "docs" / "campaigns").symlink_to(ROOT / "docs" / "campaigns")
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    (tmp_path / "bin").mkdir()
    for name, text in {
        "pytest": nursery.tool("-m", "pytest"),
        "kopt": nursery.tool("-m", "pytest_kopt.cli"),
        "python": python,
    }.items():
        tool = tmp_path / "bin" / name
        tool.write_text(text)
        tool.chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for place, step in enumerate(found):
        if step.order.startswith("file: "):
            target = step.order.removeprefix("file: ")
            empty.write(target, step.text)
            if target.startswith("kernels/"):
                (empty.root / "kernels" / "__init__.py").touch()
        before = [known.order for known in found[:place]]
        if step.order == "commit" or (
            step.order.startswith("run")
            and not any(order == "commit" or order.startswith("run") for order in before)
        ):
            empty.commit_all()
        if step.order.startswith("run"):
            expected = int(step.order.partition("exit ")[2] or 0)
            run = empty.run("sh", "-e", "-c", step.text, PATH=path)
            assert run.code == expected, f"{step.text}\n{run.text}"
            empty.git("add", ".")
