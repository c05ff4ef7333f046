"""From a target to the pages that a tuner should read, in order, and what is left to try."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pytest_kopt.bundled import bundled
from pytest_kopt.documents import sections
from pytest_kopt.knowledge.facts import read_index

_DIRECTIONS = "optimization-directions.md"
_HEADING = re.compile(r"^### (?P<id>[a-z0-9_]+-\d+) — (?P<title>.+)$", re.MULTILINE)
_CHANGE = re.compile(r"^- Change: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a page; `id` is stable, so that a round can name what it tries."""

    id: str
    title: str
    change: str
    page: str

    @property
    def is_anti_pattern(self) -> bool:
        """Whether it stands there to be recognised and refused."""
        return self.title.lower().startswith("anti-pattern")


def untried(pages: Iterable[str], tried: Iterable[str], count: int) -> list[Direction]:
    """Return up to `count` directions that no text of `tried` names, page after page in turn.

    Taking one of each page in turn mixes algorithm and language: a review changes level.
    """
    named = set(re.findall(r"[a-z0-9_]+-\d+", " ".join(tried).lower()))
    left = [
        [way for way in directions if way.id not in named and not way.is_anti_pattern]
        for directions in map(read, pages)
    ]
    return [direction for row in zip_longest(*left) for direction in row if direction][:count]


def route(op: str, gpu: str, backend: str, lang: str) -> tuple[list[str], list[str]]:
    """Return the pages for an op, an architecture, and a backend or else its language, in order.

    They lie below the knowledge folder. The second list says which of the three has none.
    """
    index = read_index()
    backends = index["backend"]
    languages = {alias: name for name, entry in backends.items() for alias in entry["aliases"]}
    language = languages.get(backend.upper()) or languages.get(lang.upper())
    areas = {"op": match(op, index["ops"]), "GPU": gpu, "backend": language}
    tables = {"op": index["ops"], "GPU": index["hardware"], "backend": backends}
    found = {kind: tables[kind].get(name, {}).get("pages", []) for kind, name in areas.items()}
    names = {"op": op, "GPU": gpu, "backend": f"{backend} ({lang})"}
    covered = {
        kind: ", ".join(name for name, entry in table.items() if entry["pages"])
        for kind, table in tables.items()
    }
    gaps = [
        f"{kind} {names[kind]} has no pages ({covered[kind]} have)"
        for kind, pages in found.items()
        if not pages and (gpu != "cpu" or kind == "op")
    ]
    common = index["hardware_common"] if found["GPU"] else []
    pages = [*index["workflow"], *found["op"], *common, *found["GPU"], *found["backend"]]
    if gpu == "cpu":
        gaps.append("the directions are about GPUs, and none is proposed for a CPU")
        pages = [*index["workflow"], *found["op"][:1]]
    return pages, gaps


def match(name: str, areas: Mapping[str, Any]) -> str | None:
    """Return the area whose name or alias is the longest run of words inside an op's name."""
    words = f"_{name.lower()}_"
    matches = [
        (len(alias), area)
        for area, entry in areas.items()
        for alias in {area, *entry["aliases"]}
        if f"_{alias.lower()}_" in words
    ]
    return max(matches)[1] if matches else None


def read(page: str) -> list[Direction]:
    """Return a page's directions; a page of another name has none."""
    if not page.endswith(_DIRECTIONS):
        return []
    text = (bundled("knowledge") / page).read_text(encoding="utf-8")
    return [
        Direction(heading["id"], heading["title"].strip(), "".join(_CHANGE.findall(body)), page)
        for heading, body in sections(_HEADING, text)
    ]
