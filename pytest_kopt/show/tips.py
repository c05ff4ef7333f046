"""Tips of earlier campaigns as text: what is read before round 1."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.campaign import Campaign


def lines(campaign: Campaign) -> Iterator[str]:
    """Yield where the tips lie and each entry with its takeaway; nothing when there are none."""
    path = tips.path_of(campaign.home, campaign.manifest)
    known = tips.entries(path)
    if not known:
        return
    yield f"tips: {path.relative_to(campaign.home)} ({len(known)})"
    for entry in known:
        yield f"  {entry.number}. {entry.title}: {tips.fields(entry.text).get('Takeaway', '')}"
