"""What is read before a round, as text: the advice, and tips of earlier campaigns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.counters import NEW_DIRECTIONS
from pytest_kopt.roofline import Roofline
from pytest_kopt.show.rooflines import roofline_lines


def lines(document: dict[str, Any]) -> Iterator[str]:
    yield (f"{document['campaign']}: {document['op']} ({document['backend']}) on {document['gpu']}")
    for gap in document["gaps"]:
        yield f"not covered: {gap}"
    yield ""
    yield "read, in this order:"
    if document["project_skill"]:
        yield f"  {document['project_skill']}  (the project's own skill: code, build, tests)"
    if document["tips_file"]:
        yield f"  {document['tips_file']}  (tips of the same GPU, op and backend)"
    for number, item in enumerate(document["reading"], start=1):
        yield f"  {number:2}. knowledge/{item['page']}  ({item['why']})"
    for tip in document["tips"]:
        yield f"tip {tip['number']} ({tip['title']}): {tip.get('Takeaway', '')}"
    if document["reading"]:
        yield f"(knowledge/ is {document['reading'][0]['path'].split('/workflow/')[0]})"
    yield ""
    yield from _roofline_text(document)
    if document["lessons"]:
        yield ""
        yield "the last rounds:"
        yield from (f"  {text}" for text in document["lessons"])
    yield from _stagnation_text(document["stagnation"])
    yield ""
    yield from (f"{name}: {what}" for name, what in document["commands"].items())


def _roofline_text(document: dict[str, Any]) -> Iterator[str]:
    found = [Roofline.model_validate(item) for item in document["rooflines"]]
    if found:
        yield from (line for line in roofline_lines(found) if line)
    else:
        yield "roofline: UNKNOWN until the baseline is measured (round 1)"
    cited = sorted({text for item in found for text in item.sources})
    yield from (f"  {text}" for text in cited)
    if not cited and document["facts"]:
        yield "hardware facts (measured ceilings are preferred)"
        yield from (f"  {text}" for text in document["facts"])
    if document["band"]:
        yield f"band {document['band']}: {document['band_advice']}"


def _stagnation_text(review: dict[str, Any] | None) -> Iterator[str]:
    if review is None:
        return
    yield ""
    lost = review["rollbacks_in_a_row"]
    yield f"stagnation: {lost} rounds in a row were not kept; this does not end the campaign."
    yield f"now: {review['action']}"
    yield "they were:"
    yield from (f"  {text}" for text in review["disproved"])
    left = len(review["untried"])
    yield (
        f"not tried yet: only {left} direction(s) are left in the knowledge base; draw further "
        "ones from the operator's literature"
        if left < NEW_DIRECTIONS
        else "not tried yet (name the id in the round's notes):"
    )
    for item in review["untried"]:
        yield f"  {item['id']} {item['title']}: {item['change']}"
        yield f"      if: {item['symptom']}"


def tip_lines(campaign: Campaign) -> Iterator[str]:
    """Yield the project's skill, where the tips lie, and each entry with its takeaway."""
    if campaign.manifest.project_skill:
        yield f"project skill: {campaign.manifest.project_skill}"
    path = tips.path_of(campaign.home, campaign.manifest)
    known = tips.entries(path)
    if not known:
        return
    yield f"tips: {path.relative_to(campaign.home)} ({len(known)})"
    for entry in known:
        yield f"  {entry.number}. {entry.title}: {tips.fields(entry.text).get('Takeaway', '')}"
