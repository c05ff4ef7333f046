"""A campaign from its baseline to a repaired round, told serially and over two workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from .once import made_once
from .project import CAMPAIGN, KERNEL, SERIAL, TWO_WORKERS, Project, Run, Stage
from .sources import doubled_kernel as kernel

MODES = {"serial": SERIAL, "n2": TWO_WORKERS}
Story = Mapping[str, Stage]

OUTCOMES = {
    "baseline": (1, 0, "BASELINE"),
    "accepted": (2, 0, "ACCEPTED"),
    "rolled_back": (3, 8, "ROLLED_BACK"),
    "repair": (4, 1, "REPAIR"),
    "repaired": (4, 0, "ACCEPTED"),
}

ACCEPTED_NOTES = {
    "summary": "half the tiles",
    "hypothesis": "fewer tiles cost less",
    "change": "tile 64 -> 32",
    "details": "see the profile",
    "bucket": "K2",
    "attribution": "launch overhead is gone",
    "key_finding": "launch bound",
    "next": "a third of the tiles",
}
ROLLED_BACK_NOTES = {"change": "no tiles", "expected": "+5 %", "root_cause": "L2 misses"}


def tell(project: Project, words: tuple[str, ...], directory: Path) -> None:
    """Play the rounds that `story` is about and keep the project after each.

    How they are run shows where cases first run, pass and fail: the others are scripted.
    """

    def keep(name: str, run: Run) -> None:
        Stage(project, run).keep(directory / name)

    def play(name: str, *arguments: str) -> None:
        keep(name, project.pytest(*arguments, *words))

    named = ("--kopt-campaign", CAMPAIGN)
    play("baseline", *named, "--kopt-round", "1")

    project.write("README.md", "An edit that is none of kopt's business.\n")
    project.write("staged.py", "ANSWER = 42\n")
    project.git("add", "staged.py")
    project.write("untracked.txt", "mine\n")
    project.write(KERNEL, kernel(187.5))
    notes = ("--kopt-notes", project.notes(**ACCEPTED_NOTES))
    extra = ("--kopt-verdict", "out/verdict.json", "--summary-csv", "out/rows.csv")
    play("accepted", *named, "--kopt-round", "2", *notes, *extra)

    project.write(KERNEL, kernel(312.5) + "# slower again\n")
    notes = ("--kopt-notes", project.notes(**ROLLED_BACK_NOTES))
    keep("rolled_back", project.play("next", *notes))

    project.write(KERNEL, kernel(125.0, factor=2.1))
    play("repair", *named, "--kopt-round", "4")

    project.write(KERNEL, kernel(125.0))
    keep("repaired", project.play("next"))


def told(factory: pytest.TempPathFactory, fresh: Project, mode: str) -> Story:
    """The project after every round, by what became of the round; played once."""

    def recipe(words: tuple[str, ...]) -> Callable[[Path], None]:
        return lambda directory: tell(fresh.copy(directory / "working"), words, directory)

    recipes = {f"story-{name}": recipe(words) for name, words in MODES.items()}
    made = made_once(factory, f"story-{mode}", recipes)
    return {name: Stage.kept(made / name) for name in OUTCOMES}


def sections(text: str) -> dict[str, str]:
    """The second-level sections of a Markdown text."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def items(section: str) -> dict[str, str]:
    """The `- name: text` lines of a section."""
    return dict(re.findall(r"^- (.+?): (.+)$", section, re.MULTILINE))
