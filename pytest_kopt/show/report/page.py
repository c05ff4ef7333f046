"""Report data as HTML: templates with autoescape, charts by Vega-Lite, all packed in one file."""

from __future__ import annotations

import base64
import csv
import functools
import gzip
import hashlib
import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.errors import BadInput
from pytest_kopt.show.report import charts
from pytest_kopt.show.report.document import document
from pytest_kopt.show.templates import rendered
from pytest_kopt.show.words import all_visible, visible

#: A report stays below this many bytes; the pairs of the oldest rounds go first.
LIMIT = 2_000_000


def campaign_page(campaign: Campaign, *, live: bool = False) -> str:
    """Return a campaign's report; a live one reloads itself every few seconds."""
    page = all_visible(document(campaign))
    rounds = page["rounds"]
    specs = {
        "timeline": charts.timeline(rounds),
        "trend": charts.trend(rounds, page["metric"]),
        "heat": charts.heat_map(rounds),
        "roofline": charts.rooflines(page["rooflines"]),
        "pairs": charts.pairs(),
    }
    numbers = [round["number"] for round in rounds]
    values = {
        "page": page,
        "live": live,
        "data": packed({"rounds": rounds, "charts": specs}),
        "kernels": packed(all_visible(kernels(campaign, numbers))),
    }
    frame = _page("campaign.html.j2", **values, pairs={}, left_out=[])
    room = LIMIT - len(frame.encode()) - 10_000
    packed_pairs: dict[int, str] = {}
    left_out: list[int] = []
    for number in reversed(numbers):
        measured = {visible(case): rows for case, rows in pairs(campaign, number).items()}
        text = packed(measured) if measured else ""
        room -= len(text) + 100 if text else 0
        if text and room < 0:
            left_out.append(number)
        elif text:
            packed_pairs[number] = text
    return _page("campaign.html.j2", **values, pairs=packed_pairs, left_out=sorted(left_out))


def index_page(campaigns: Sequence[Campaign], files: Sequence[str], *, live: bool = False) -> str:
    """Return the page over several campaigns, each with a link to its own file."""
    pages = [all_visible(document(campaign)) for campaign in campaigns]
    chart = {"comparison": charts.comparison(pages)}
    return _page(
        "index.html.j2",
        pages=list(zip(pages, files, strict=True)),
        live=live,
        data=packed({"rounds": [], "charts": chart}),
    )


def _page(name: str, **values: Any) -> str:
    return rendered(name, bundle=_bundle(), **values)


@functools.cache
def _bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed, packed, as one script that sets `vegaEmbed`."""
    vega = _needed("vl_convert", "vl-convert-python")
    return packed_text(vega.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _needed(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        legal = "pip install 'pytest-kopt[report]'"
        raise BadInput(f"the report needs {package}", where="kopt report", legal=legal) from None


def packed(data: Any) -> str:
    """Return data as JSON, gzip and base64: text that cannot end a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return packed_text(text)


def packed_text(text: str) -> str:
    """Return text as gzip and base64; the same text gives the same result."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def pairs(campaign: Campaign, number: int) -> dict[str, list[list[int]]]:
    """Return a round's pairs: by case, and for each process a list of whole numbers.

    A number is 2·g + o with the pair's gain g = incumbent / candidate − 1 in 0.01 % and o = 1 where
    the incumbent went first. Pairs of the A/A control are left out. Empty without a comparison.
    """
    path = campaign.layout.artifacts(number) / "pairs.csv"
    cases: dict[str, dict[str, list[int]]] = {}
    try:
        with open(path, newline="") as stream:
            for row in csv.DictReader(stream):
                if row["comparison"] == "candidate":
                    ratio = float(row["incumbent_ms"]) / float(row["candidate_ms"])
                    value = 2 * round((ratio - 1) * 1e4) + (row["position"] == "BA")
                    case = cases.setdefault(row["label"], {})
                    case.setdefault(row["round_of_inference"], []).append(value)
    except (OSError, KeyError, ValueError, TypeError, ZeroDivisionError, OverflowError):
        # Evidence that cannot be read is missing from the picture; the verdict stands by itself.
        return {}
    return {name: list(processes.values()) for name, processes in cases.items()}


def kernels(campaign: Campaign, numbers: Sequence[int]) -> dict[str, Any]:
    """Return the kernel files of rounds: texts by hash, and for each round the hash by path."""
    texts: dict[str, str] = {}
    rounds: dict[str, dict[str, str]] = {str(number): {} for number in numbers}
    for number in numbers:
        directory = campaign.layout.snapshot(number)
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            content = path.read_bytes()
            key = hashlib.sha256(content).hexdigest()[:16]
            texts.setdefault(key, content.decode(errors="replace"))
            rounds[str(number)][path.relative_to(directory).as_posix()] = key
    return {"texts": texts, "rounds": rounds}
