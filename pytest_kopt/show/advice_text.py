"""The texts to read before a round: the advice, and tips of earlier campaigns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.counters import NEW_DIRECTIONS
from pytest_kopt.roofline import Roofline
from pytest_kopt.show.rooflines import roofline_lines
from pytest_kopt.show.templates import rendered


def lines(document: dict[str, Any]) -> list[str]:
    rooflines = [Roofline.model_validate(line) for line in document["rooflines"]]
    text = rendered(
        "advice.txt.j2",
        **document,
        roofline_table=[line for line in roofline_lines(rooflines) if line],
        cited=sorted({source for line in rooflines for source in line.sources}),
        enough=NEW_DIRECTIONS,
    )
    return text.rstrip("\n").split("\n")


def tip_lines(campaign: Campaign) -> Iterator[str]:
    """Yield the project's skill, where the tips lie, and each entry with its takeaway."""
    if campaign.manifest.project_skill:
        yield f"project skill: {campaign.manifest.project_skill}"
    path = tips.path_of(campaign.home, campaign.manifest)
    entries = tips.entries(path)
    if not entries:
        return
    yield f"tips: {path.relative_to(campaign.home)} ({len(entries)})"
    for entry in entries:
        yield f"  {entry.number}. {entry.title}: {tips.fields(entry.text).get('Takeaway', '')}"
