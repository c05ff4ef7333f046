"""From a target to what a tuner should read, in order, what is not covered, and what to try."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pytest_kopt.bundled import bundled
from pytest_kopt.documents import load_yaml, sections

_DIRECTIONS = "optimization-directions.md"
_HEADING = re.compile(r"^### (?P<id>[a-z0-9_]+-\d+) — (?P<title>.+)$", re.MULTILINE)
_LINES = ("Symptom", "Change", "Expected effect", "Verify", "Risk")
_LINE = re.compile(rf"^- (?P<name>{'|'.join(_LINES)}): (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Page:
    """A page and why it is read at this place."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Route:
    """The reading order of one target; matched entries of the index, and what is not covered."""

    root: Path
    readings: tuple[Page, ...]
    gaps: tuple[str, ...]
    op: str | None
    architecture: str | None
    backend: str | None

    def untried(self, tried: Iterable[str], count: int) -> list[Direction]:
        """Return up to `count` directions that no text of `tried` names, page after page in turn.

        Taking one of each page in turn mixes algorithm and language: a review changes level.
        """
        named = set(re.findall(r"[a-z0-9_]+-\d+", " ".join(tried).lower()))
        pages = [reading.path for reading in self.readings if reading.path.endswith(_DIRECTIONS)]
        left = [
            [way for way in page if way.id not in named and not way.is_anti_pattern]
            for page in read(self.root, pages)
        ]
        return [direction for row in zip_longest(*left) for direction in row if direction][:count]


def route(op: str, gpu: str, backend: str, lang: str) -> Route:
    """Return the reading order for an op, an architecture, and a backend or else its language."""
    root = bundled("knowledge")
    index = load_yaml(root / "index.yaml")
    area = match(op, index["ops"])
    architecture = gpu if gpu in index["hardware"] else None
    language = _backend(backend, index["backend"]) or _backend(lang, index["backend"])
    gaps = [] if area else [_op_gap(op, index)]
    is_cpu = gpu == "cpu"
    if is_cpu:
        gaps.append("the directions are about GPUs, and none is proposed for a CPU")
    elif not architecture:
        gaps.append(
            f"GPU {gpu!r} is not covered ({', '.join(index['hardware'])} are): its facts are "
            "UNKNOWN; measure its ceilings with `kopt calibrate --ceilings`"
        )
    if not (language or is_cpu):
        gaps.append(
            f"backend {backend!r} ({lang}) is not covered ({', '.join(index['backend'])} are): "
            "draw on the language's own documentation"
        )
    loop, classes, profiling, overfitting = index["workflow"]
    of_op = index["ops"][area]["pages"] if area else []
    of_gpu = index["hardware"][architecture]["pages"] if architecture else []
    of_language = index["backend"][language]["pages"] if language and not is_cpu else []
    plan = {
        "how rounds go, once per campaign": [loop, overfitting],
        f"anatomy and bottleneck model of {area}": of_op[:1],
        "differences between generations, when the kernel comes from another one": (
            index["hardware_common"] if architecture else []
        ),
        f"budgets and matrix units of {architecture}": of_gpu[:1],
        "classify before choosing, with the roofline below": [classes],
        f"what to try on {area}, by symptom": of_op[1:] if not is_cpu else [],
        f"how {language} expresses it": of_language[:1],
        f"what to try in {language}, by symptom": of_language[1:],
        "when the question is an instruction or a layout": of_gpu[1:],
        "when evidence is missing": [profiling],
    }
    readings = tuple(Page(page, why) for why, pages in plan.items() for page in pages)
    return Route(root, readings, tuple(gaps), area, architecture, language)


def match(name: str, areas: Mapping[str, Any]) -> str | None:
    """Return the area whose name or alias is the longest run of words inside an op's name."""
    words = f"_{name.lower()}_"
    matches = [
        (len(alias), area)
        for area, block in areas.items()
        for alias in {area, *block["aliases"]}
        if f"_{alias.lower()}_" in words
    ]
    return max(matches)[1] if matches else None


def _backend(name: str, backends: Mapping[str, Any]) -> str | None:
    names = {alias: backend for backend, block in backends.items() for alias in block["aliases"]}
    return names.get(name.upper())


def _op_gap(op: str, index: Mapping[str, Any]) -> str:
    text = f"op {op!r} is not covered ({', '.join(index['ops'])} are)"
    near = match(op, {area: {"aliases": []} for area in index["nearest"]})
    if near is None:
        return f"{text}, and no area is near it: draw on the operator's own literature"
    return f"{text}; the nearest area is {index['nearest'][near]}, which is another operator"


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


def read(root: Path, pages: Iterable[str]) -> list[list[Direction]]:
    """Return each page's directions below a knowledge folder; sections of another form are none."""
    directions: list[list[Direction]] = []
    for page in pages:
        directions.append([])
        for heading, body in sections(_HEADING, (root / page).read_text(encoding="utf-8")):
            texts = {m["name"]: m["text"] for m in _LINE.finditer(body)}
            lines = {name.lower().replace(" ", "_"): texts.get(name, "") for name in _LINES}
            title = heading["title"].strip()
            directions[-1].append(Direction(id=heading["id"], title=title, path=page, **lines))
    return directions
