"""Compares the clock of a process that runs kernel code with one that such code cannot reach.

Below Python the clock of a process can be rewritten without a trace that Python sees: every
function that tells the time then tells the same. The process that decides has a clock of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_kopt.honesty.finding import Finding

#: Less than this, in ms, a process may not know of: messages take their time.
_WAITING_MS = 5.0
#: Time that a process does not know of, as a share of what it says that it has spent.
_HIDDEN = 0.5
#: On a crowded machine all messages wait; a clock hides more than twice what waiting ever came to.
_CROWDED = 2.0


@dataclass(frozen=True, slots=True)
class Span:
    """One block as two processes saw it, in ms: the one that ordered it and the one that ran it."""

    outside: float
    inside: float


def slow_clock(spans: Sequence[Span], others: Sequence[Span]) -> Iterator[Finding]:
    """Say when every block took far longer outside than inside of its process.

    `others` are the blocks of the other versions, between which these were run.
    """
    if not spans:
        return
    hidden = min(span.outside - span.inside for span in spans)
    inside = min(span.inside for span in spans)
    waited = max((span.outside - span.inside for span in others), default=0.0)
    if hidden > max(_WAITING_MS, _HIDDEN * inside, _CROWDED * waited):
        yield Finding(
            "tampered-clock",
            f"blocks that took {min(span.outside for span in spans):.1f} ms and more took "
            f"{inside:.1f} ms by the clock of their own process",
            advice="a kernel leaves clocks alone",
        )
