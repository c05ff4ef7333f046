"""knowledge/: every value has a source or is UNKNOWN, every citation and every route resolves."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1] / "knowledge"
PAGES = sorted(ROOT.rglob("*.md"))
SPECS = sorted(ROOT.glob("hardware/*/spec.yaml"))
HEDGES = re.compile(
    r"\b(about|approximately|usually|should be|roughly|typically|around)\b|[~≈]", re.I
)
CITATION = re.compile(
    r"[^:`|\[\]]+: (?P<body>[^`|]+?) <- knowledge/(?P<path>hardware/\w+/spec\.yaml):(?P<key>[\w.]+)"
)
DIRECTION = ("Symptom", "Change", "Expected effect", "Verify", "Risk")


@functools.cache
def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    document = load(path)
    yield from document["specs"].items()
    for platform, block in document["platforms"].items():
        for name, entry in block["specs"].items():
            yield f"{platform}.{name}", entry


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SPECS, ids=name_of)
def test_every_value_has_a_source_or_is_unknown(path: Path) -> None:
    for key, entry in entries(path):
        assert entry["unit"], key
        assert isinstance(entry["read"], datetime.date), key
        if entry["value"] == "UNKNOWN":
            assert entry["tried"], key
            assert "source" not in entry, key
            continue
        assert entry["value"] > 0, key
        source = entry["source"]
        assert source["document"], key
        assert source["section"], key
        assert source["url"].startswith("https://"), key


@pytest.mark.parametrize("path", SPECS, ids=name_of)
def test_no_value_is_hedged(path: Path) -> None:
    hedged = [line for line in path.read_text().splitlines() if HEDGES.search(line)]
    assert hedged == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_citation_is_what_the_spec_says(path: Path) -> None:
    known = {name_of(spec): dict(entries(spec)) for spec in SPECS}
    for line in path.read_text().splitlines():
        if "/ARCH/" in line:  # the form of a citation, not one
            continue
        found = list(CITATION.finditer(line))
        assert len(found) == line.count("<- knowledge/") - line.count("<- knowledge/<"), line
        for citation in found:
            entry = known[citation["path"]][citation["key"].rstrip(".")]
            said = "UNKNOWN" if entry["value"] == "UNKNOWN" else f"{entry['value']} {entry['unit']}"
            assert citation["body"] == said, line


@pytest.mark.parametrize("path", sorted(ROOT.rglob("optimization-directions.md")), ids=name_of)
def test_every_direction_says_how_to_try_and_how_to_tell(path: Path) -> None:
    directions = path.read_text().split("\n### ")[1:]
    assert directions
    for direction in directions:
        assert [line for line in DIRECTION if f"- {line}: " not in direction] == []


def test_every_page_is_routed_and_every_route_leads_to_a_page() -> None:
    routed = set(_paths(load(ROOT / "index.yaml")))
    present = {name_of(path) for path in ROOT.rglob("*") if path.is_file()} - {"index.yaml"}
    assert routed == present


def _paths(node: Any) -> Iterator[str]:
    members = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for member in members:
        yield from _paths(member)
    if isinstance(node, str) and node.endswith((".md", ".yaml")):
        yield node
