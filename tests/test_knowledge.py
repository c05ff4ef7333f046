"""knowledge/: every value has a source or is UNKNOWN, every citation and every route resolves."""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "knowledge"
PAGES = sorted(ROOT.rglob("*.md"))
SPECS = sorted(ROOT.glob("hardware/*/spec.yaml"))
HEDGES = re.compile(
    r"\b(about|approximately|usually|should be|roughly|typically|around)\b|[~≈]", re.I
)
CITATION = re.compile(
    r"[^:`|\[\]]+: (?P<body>[^`|]+?) <- knowledge/(?P<path>hardware/\w+/spec\.yaml):(?P<key>[\w.]+)"
)
#: What a device was asked, in the derivation of a fact that a document tells.
ASIDE = re.compile(
    r"(?P<value>[\d.]+)( bytes)? <- (?P<file>docs/results/\w+\.json):(?P<key>[\w.]+)"
)
#: The keys of a fact, and where its source lies.
KEYS = {"value", "unit", "source", "checked", "clock_mhz", "derivation", "tried", "read"}
PLACES = {"url": r"https://[^/\s]+/\S*", "file": r"docs/results/\w+\.json"}
BYTES = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
#: A file that is written for agents is no document, and a competitor's page no source.
AGENTS = re.compile(r"\.claude|SKILL\.md|\bskills/", re.I)
COMPETITORS = {
    "gfx": re.compile(
        r"https://(?:[\w.-]+\.)?(?:nvidia\.com|nvdam\.widen\.net|github\.com/nvidia)/", re.I
    ),
    "sm_": re.compile(r"https://(?:[\w.-]+\.)?(?:amd\.com|github\.com/(?:rocm|amd)[\w-]*)/", re.I),
}
DIRECTION = ("Symptom", "Change", "Expected effect", "Verify", "Risk")


@functools.cache
def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def with_documents(part: Any, sources: dict[str, dict[str, str]]) -> Any:
    """Return a part of a spec file, with the document itself in each source that names one."""
    if not isinstance(part, dict):
        return part
    if part.get("of") in sources:
        return sources[part["of"]] | {key: part[key] for key in part if key != "of"}
    return {key: with_documents(each, sources) for key, each in part.items() if key != "sources"}


def entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    document = with_documents(load(path), load(path)["sources"])
    yield from document["specs"].items()
    for platform, block in document["platforms"].items():
        for name, entry in block["specs"].items():
            yield f"{platform}.{name}", entry


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_sourced(entry: dict[str, Any]) -> bool:
    """Whether a fact has a value with a source that leads somewhere, or is UNKNOWN once sought."""
    value, source, checked = entry["value"], entry.get("source"), entry.get("checked")
    if not (entry.keys() <= KEYS and entry["unit"] and isinstance(entry["read"], datetime.date)):
        return False
    if value == "UNKNOWN":
        return source is None and bool(entry.get("tried"))
    place = "file" if checked in ("device", "measured") else "url"
    return (
        isinstance(value, int | float)
        and value > 0
        and checked in ("device", "measured", "document", "quotation")
        and source is not None
        and source.keys() == {"document", "section", place}
        and all(source.values())
        and re.fullmatch(PLACES[place], source[place]) is not None
    )


@pytest.mark.parametrize("path", SPECS, ids=name_of)
def test_every_value_has_a_source_or_is_unknown(path: Path) -> None:
    assert not [key for key, entry in entries(path) if not is_sourced(entry)]


@pytest.mark.parametrize("path", SPECS, ids=name_of)
def test_a_document_is_named_once_and_used(path: Path) -> None:
    named = load(path)["sources"]
    assert len({json.dumps(each) for each in named.values()}) == len(named)
    used = re.findall(r"\{of: (\w+)", path.read_text())
    assert set(used) == set(named) and min((used.count(n) for n in named), default=2) > 1


def results(file: str) -> Any:
    return json.loads((REPOSITORY / file).read_text())


def held(file: str, key: str, unit: str) -> float:
    """Return what a file of results holds at a key; what is in bytes there, in another unit."""
    found = results(file)
    for name in key.split("."):
        found = found[name]
    return float(found / BYTES[unit] if key.endswith("_bytes") else found)


def devices(arch: str, key: str) -> set[str]:
    """Return what the devices that a fact is about call themselves."""
    platforms = load(ROOT / "index.yaml")["hardware"][arch]["platforms"]
    product = key.rpartition(".")[0]
    return {name for known, names in platforms.items() if product in ("", known) for name in names}


def agrees(arch: str, key: str, entry: dict[str, Any]) -> bool:
    """Whether the file that a fact of our own names is about that device and holds the value."""
    source = entry["source"]
    record = results(source["file"])
    assert record["date"] and record["torch"], source["file"]
    right = record["device"] in devices(arch, key)
    return right and held(source["file"], source["section"], entry["unit"]) == entry["value"]


@pytest.mark.parametrize("path", SPECS, ids=name_of)
def test_what_we_read_ourselves_is_in_the_repository(path: Path) -> None:
    arch = path.parent.name
    for key, entry in entries(path):
        assert "file" not in entry.get("source", {}) or agrees(arch, key, entry), key
        for aside in ASIDE.finditer(entry.get("derivation", "")):
            assert held(aside["file"], aside["key"], "bytes") == float(aside["value"]), key
            assert results(aside["file"])["device"] in devices(arch, key), key


def own(value: object, unit: str, section: str, **more: object) -> dict[str, Any]:
    """Return a fact as it is written down once a device was asked."""
    source = {
        "document": "device query, benchmarks/device_facts.py",
        "section": section,
        "file": "docs/results/device_h100.json",
    }
    entry = {"value": value, "unit": unit, "source": source, "checked": "device"}
    return {**entry, "read": datetime.date(2026, 11, 25), **more}


@pytest.mark.parametrize(
    ("key", "entry", "right"),
    [
        ("H100.sm_count", own(132, "SM", "sm_count"), True),
        ("H100.l2_size", own(50, "MiB", "l2_bytes"), True),
        ("shared_memory_per_sm", own(228, "KiB", "shared_memory_per_sm_bytes"), True),
        ("H100.sm_count", own(131, "SM", "sm_count"), False),
        ("H200.sm_count", own(132, "SM", "sm_count"), False),
    ],
    ids=["count", "bytes", "architecture", "other value", "other device"],
)
def test_a_device_fact_is_what_the_device_said(
    key: str, entry: dict[str, Any], right: bool
) -> None:
    assert is_sourced(entry)
    assert agrees("sm_90", key, entry) == right


@pytest.mark.parametrize(
    "more",
    [
        {"checked": "document"},
        {"source": {"document": "d", "section": "s", "url": "https://vendor.example/a"}},
        {"source": {"document": "d", "section": "s"}},
        {"source": {"document": "d", "section": "s", "file": "notes/device.json"}},
        {"source": {"document": "d", "section": "s", "url": "a friend"}, "checked": "document"},
        {"source": None},
        {"checked": None},
        {"value": "UNKNOWN"},
        {"value": "UNKNOWN", "source": None},
        {"value": -1.0},
        {"value": "about 132"},
        {"note": "a key that nobody reads"},
    ],
    ids=str,
)
def test_a_fact_without_a_source_is_told(more: dict[str, Any]) -> None:
    assert not is_sourced(own(132, "SM", "sm_count") | more)


@pytest.mark.parametrize("path", SPECS, ids=name_of)
def test_no_value_is_hedged(path: Path) -> None:
    hedged = [line for line in path.read_text().splitlines() if HEDGES.search(line)]
    assert hedged == []


@pytest.mark.parametrize("path", [*SPECS, *PAGES], ids=name_of)
def test_nothing_cites_a_file_that_is_written_for_agents(path: Path) -> None:
    assert AGENTS.findall(path.read_text()) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("hardware/*/*")), ids=name_of)
def test_an_architecture_is_not_cited_from_its_competitor(path: Path) -> None:
    assert COMPETITORS[path.parent.name[:3]].findall(path.read_text()) == []


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


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_link_leads_to_a_file(path: Path) -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", path.read_text())
    assert [link for link in links if not (path.parent / link).is_file()] == []


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
