"""What is read before round 1, as text: the project's skill and tips of earlier campaigns."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.campaign import Campaign


def lines(campaign: Campaign) -> Iterator[str]:
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
