"""A candidate that slows down whoever runs beside it, and so seems faster than it is."""

from __future__ import annotations

from pytest_kopt.decide.inference import percent
from pytest_kopt.honesty.finding import Finding

#: A gain of which so much is the incumbent's loss is no gain; less is told.
_SHARE = 0.5


def slowed(slower: float, gain: float) -> list[Finding]:
    """Return the finding that the incumbent is so much slower in company; both are log-ratios."""
    return [
        Finding(
            "incumbent-slowed",
            f"the incumbent is {percent(slower):.1f} % slower beside the candidate than in a "
            "process without it",
            advice="leave the process, its libraries and the machine as they are: only what the "
            "kernel's own calls gain counts",
            rejects=slower >= _SHARE * gain,
        )
    ]
