"""Report data as HTML: templates with autoescape, charts by Vega-Lite, all in one file."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed
from pytest_kopt.show.report import charts
from pytest_kopt.show.report.document import document
from pytest_kopt.show.report.evidence import kernels, packed, packed_text, pairs
from pytest_kopt.show.words import all_visible, visible

if TYPE_CHECKING:
    from jinja2 import Environment

#: A report stays below this many bytes; the pairs of the oldest rounds go first.
LIMIT = 2_000_000
_HERE = Path(__file__).parent


def campaign_page(campaign: Campaign, *, live: bool = False) -> str:
    """Return a campaign's report; a live one loads itself anew every few seconds."""
    found = all_visible(document(campaign))
    rounds = found["rounds"]
    specs = {
        "timeline": charts.timeline(rounds),
        "trend": charts.trend(rounds, found["metric"]),
        "heat": charts.heat_map(rounds),
        "roofline": charts.rooflines(found["rooflines"]),
        "pairs": charts.pairs(),
    }
    numbers = [item["number"] for item in rounds]
    given = {
        "page": found,
        "live": live,
        "data": packed({"rounds": rounds, "charts": specs}),
        "kernels": packed(all_visible(kernels(campaign, numbers))),
    }
    frame = _render("campaign.html.j2", **given, pairs={}, left_out=[])
    room = LIMIT - len(frame.encode()) - 10_000
    kept: dict[int, str] = {}
    left_out: list[int] = []
    for number in reversed(numbers):
        measured = {visible(name): found for name, found in pairs(campaign, number).items()}
        if not measured:
            continue
        text = packed(measured)
        room -= len(text) + 100
        if room < 0:
            left_out.append(number)
        else:
            kept[number] = text
    return _render("campaign.html.j2", **given, pairs=kept, left_out=sorted(left_out))


def index_page(campaigns: Sequence[Campaign], files: Sequence[str], *, live: bool = False) -> str:
    """Return the page over several campaigns, each with a link to its own file."""
    found = [all_visible(document(campaign)) for campaign in campaigns]
    chart = {"comparison": charts.comparison(found)}
    return _render(
        "index.html.j2",
        pages=list(zip(found, files, strict=True)),
        live=live,
        data=packed({"rounds": [], "charts": chart}),
    )


def _render(name: str, **values: Any) -> str:
    return _environment().get_template(name).render(bundle=_bundle(), **values)


@functools.cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise _missing("jinja2") from None
    found = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["changed"] = changed
    return found


@functools.cache
def _bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed, packed, as one script that sets `vegaEmbed`."""
    try:
        import vl_convert
    except ImportError:
        raise _missing("vl-convert-python") from None
    return packed_text(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _missing(package: str) -> BadInput:
    return BadInput(
        f"the report needs {package}",
        where="kopt report",
        legal="pip install 'pytest-kopt[report]'",
    )
