"""The steps of a campaign in `campaigns/`: what each tries, and how it changes the kernel.

A campaign is a small project with `campaign.yaml` and one file a step. A step's edits are applied
to the version that was kept last, whatever that is: what is tried is written down beforehand, what
becomes of it is measured. Nothing here knows pytest or git.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CAMPAIGNS = Path(__file__).parent / "campaigns"


class NotApplicable(Exception):
    """An edit does not fit the kernel as it is; says which."""


@dataclass(frozen=True, slots=True)
class Step:
    """One hypothesis.

    `attempts` are lists of edits: the candidate, then its repairs, each on top of the one before.
    `needs` are steps that have to have been kept, `resolves` one that has to have ended SPLIT: what
    it gained is dispatched to the cases that have it. `notes` go with the round; `kept` and `lost`
    are added after it, as its outcome is; the lesson and `tip` make the round's tip.
    """

    name: str
    notes: dict[str, Any]
    attempts: tuple[Sequence[Mapping[str, str]], ...]
    needs: tuple[str, ...] = ()
    resolves: str = ""
    kept: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    tip: tuple[str, ...] = ()

    def afterwards(self, kept: bool) -> dict[str, str]:
        """Return the notes to add when the round is over."""
        found = dict(self.kept if kept else self.lost)
        if "lesson" in found and self.tip:
            found["tip"] = f"{found['lesson']} ({'; '.join(self.tip)})"
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """A campaign as it is written down: its project, its settings and its steps in order."""

    name: str
    directory: Path
    settings: dict[str, Any]
    steps: tuple[Step, ...]

    @property
    def kernel(self) -> str:
        """The kernel file's path in the project."""
        return str(self.settings["kernel"])

    def source(self) -> str:
        """Return the baseline's kernel."""
        return (self.directory / self.kernel).read_text()


def names() -> list[str]:
    """Return the campaigns there are."""
    return sorted(path.parent.name for path in CAMPAIGNS.glob("*/campaign.yaml"))


def load(name: str, campaigns: Path = CAMPAIGNS) -> Plan:
    """Read a campaign."""
    directory = campaigns / name
    settings = yaml.safe_load((directory / "campaign.yaml").read_text())
    steps = tuple(_step(path) for path in sorted((directory / "steps").glob("*.yaml")))
    return Plan(name, directory, settings, steps)


def _step(path: Path) -> Step:
    text = yaml.safe_load(path.read_text())
    return Step(
        name=path.stem,
        notes=text["notes"],
        attempts=(text["edits"], *text.get("repairs", ())),
        needs=tuple(text.get("needs", ())),
        resolves=text.get("resolves", ""),
        kept=text.get("kept", {}),
        lost=text.get("lost", {}),
        tip=tuple(text[key] for key in ("context", "applicability") if key in text),
    )


def edited(source: str, edits: Iterable[Mapping[str, str]]) -> str:
    """Return a kernel with edits applied in order.

    `replace` TEXT `with` TEXT: the text stands there exactly once. `define` NAME `as` SOURCE:
    instead of that top-level definition. `insert` SOURCE `before` NAME. `remove` NAME.
    Raises NotApplicable.
    """
    for edit in edits:
        source = _edited(source, edit)
    return source


def _edited(source: str, edit: Mapping[str, str]) -> str:
    if "replace" in edit:
        old = edit["replace"]
        if source.count(old) != 1:
            raise NotApplicable(f"{old!r} stands {source.count(old)} times in the kernel")
        return source.replace(old, edit["with"])
    if "define" in edit:
        start, end = _span(source, edit["define"])
        return source[:start] + edit["as"].rstrip("\n") + "\n" + source[end:]
    if "insert" in edit:
        start, _ = _span(source, edit["before"])
        return source[:start] + edit["insert"].rstrip("\n") + "\n\n\n" + source[start:]
    start, end = _span(source, edit["remove"])
    return source[:start] + source[end:].lstrip("\n")


def _span(source: str, name: str) -> tuple[int, int]:
    """Return where a top-level function, class or constant begins (its decorators) and ends."""
    lines = source.splitlines(keepends=True)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            first = node.lineno
        else:
            continue
        assert node.end_lineno is not None
        return sum(map(len, lines[: first - 1])), sum(map(len, lines[: node.end_lineno]))
    raise NotApplicable(f"{name} is not defined in the kernel")
