"""Compares the clock of a process that runs kernel code with one that such code cannot reach.

Below Python the clock of a process can be rewritten without a trace that Python sees: every
function that tells the time then tells the same. The process that decides has a clock of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_kopt.honesty.finding import Finding

#: Less than this, in ms, a process may not know of: messages take their time.
_WAITING_MS = 5.0
#: Time that a process does not know of, as a share of what it says that it has spent.
_HIDDEN = 0.5
#: On a crowded machine all messages wait; a clock hides more than twice what waiting ever came to.
_CROWDED = 2.0
#: What passes between calls longer than between other versions', as a share of that, and of what a
#: call takes or has gained: content and caches make it differ by a tenth.
_LONGER, _MOVED = 0.25, 0.5
#: A gain from this share on is worth the trouble.
_WORTH = 0.1


@dataclass(frozen=True, slots=True)
class Span:
    """One block as two processes saw it, in ms: the one that ordered it and the one that ran it.

    Of that one also what it says a `call` took, and the CPU time that passed `between` two calls.
    """

    outside: float
    inside: float
    call: float = 0.0
    between: float = 0.0


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


def work_between(spans: Sequence[Span], others: Sequence[Span]) -> Iterator[Finding]:
    """Say when work of the calls passes between them instead, in every block.

    Finalizers, hooks and signals run there, while the clock stands still. `others` are the blocks
    of the other versions, for which the same is done between calls.
    """
    if not spans or not others:
        return
    mine, theirs = (statistics.median(s.between for s in group) for group in (spans, others))
    call, other = (statistics.median(s.call for s in group) for group in (spans, others))
    gained = other - call
    always = min(s.between for s in spans) > max(s.between for s in others)
    much = max(_MOVED * min(gained, call), _LONGER * theirs)
    if always and gained > _WORTH * other and mine - theirs > much:
        yield Finding(
            "late-result",
            f"calls take {call:.3g} ms instead of the other version's {other:.3g}, and {mine:.3g} "
            f"pass between two of them instead of {theirs:.3g}",
            advice="do all the work within the timed call, nothing in finalizers, hooks or signals",
        )
