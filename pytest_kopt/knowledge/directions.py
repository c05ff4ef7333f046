"""Directions of the knowledge base: what to try, for which symptom, and how to tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.documents import sections

_HEADING = re.compile(r"^### (?P<id>[a-z0-9_]+-\d+) — (?P<title>.+)$", re.MULTILINE)
_LINES = ("Symptom", "Change", "Expected effect", "Verify", "Risk")
_LINE = re.compile(rf"^- (?P<name>{'|'.join(_LINES)}): (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction with its lines; `id` is stable, so that a round can name what it tries."""

    id: str
    title: str
    symptom: str
    change: str
    expected_effect: str
    verify: str
    risk: str
    path: str

    @property
    def is_anti_pattern(self) -> bool:
        """Whether it stands there to be recognised and refused."""
        return self.title.lower().startswith("anti-pattern")


def parse(text: str, path: str) -> list[Direction]:
    """Return the directions of a page; sections of another form are none."""
    found = []
    for heading, body in sections(_HEADING, text):
        told = {m["name"]: m["text"] for m in _LINE.finditer(body)}
        lines = {name.lower().replace(" ", "_"): told.get(name, "") for name in _LINES}
        title = heading["title"].strip()
        found.append(Direction(id=heading["id"], title=title, path=path, **lines))
    return found


def read(root: Path, pages: Iterable[str]) -> list[list[Direction]]:
    """Return the directions of each page below a knowledge folder that has any."""
    found = [parse((root / page).read_text(), page) for page in pages]
    return [directions for directions in found if directions]


def untried(
    pages: Sequence[Sequence[Direction]], tried: Iterable[str], count: int
) -> list[Direction]:
    """Return up to `count` directions that no text of `tried` names, page after page in turn.

    Taking one of each page in turn mixes algorithm and language, so that a review changes level.
    """
    named = set(re.findall(r"[a-z0-9_]+-\d+", " ".join(tried).lower()))
    left = [[d for d in page if d.id not in named and not d.is_anti_pattern] for page in pages]
    found: list[Direction] = []
    for place in range(max(map(len, left), default=0)):
        found += [page[place] for page in left if place < len(page)]
    return found[:count]
