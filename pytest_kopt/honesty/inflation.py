"""Gains that no real step has: from reused tensors, or from slowing down the incumbent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_kopt.decide.inference import percent
from pytest_kopt.honesty.finding import Finding

#: A gap between reuse gain and fresh gain above this is inflation.
ALLOWED_GAP_PCT = 1.0
_CONFIDENCE = 2.58
#: What known addresses are worth to a call that remembers nothing (translation buffers, allocator),
#: as a log-ratio: up to 0.03 was seen. A gap is only proven by what goes beyond it.
_WARMTH = 0.05
#: A gain of which so much is the incumbent's loss is no gain; less is told.
_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Inflation:
    """Gains over the incumbent in percent with known and with fresh tensors, and their gap.

    `low_gap_pct` is the gap's lower 99.5 % bound, less what warm memory may explain.
    """

    reuse_pct: float
    fresh_pct: float
    low_gap_pct: float

    @property
    def gap_pct(self) -> float:
        """The part of the gain, in percentage points, that only reused tensors have."""
        return self.reuse_pct - self.fresh_pct

    @property
    def is_inflated(self) -> bool:
        """Whether the gap is proven to be above what is allowed."""
        return self.low_gap_pct > ALLOWED_GAP_PCT + 1e-9

    @property
    def counts(self) -> bool:
        """Whether there is a gain with fresh tensors: one that only reuse has does not count."""
        return not (self.is_inflated and self.fresh_pct <= 1e-9)


def inflation(
    candidate: Sequence[float], incumbent: Sequence[float], reuse_pct: float
) -> Inflation | None:
    """Return the gap between the gain with reused tensors and that with fresh ones.

    `candidate` and `incumbent` are log-ratios fresh time / reused time of single pairs (less what
    the processor may take for another object, `reuse.Pair.log_gain`), each version in its own
    session: what a version gains by reuse does not depend on the machine's mood.
    `reuse_pct` is the benchmark's gain over the incumbent, where tensors are reused. None where
    either version was not timed both ways.
    """
    if not candidate or not incumbent:
        return None
    gap = statistics.fmean(candidate) - statistics.fmean(incumbent)
    spread = math.sqrt(_squared_error(candidate) + _squared_error(incumbent))
    low = gap - _CONFIDENCE * spread - _WARMTH
    factor = 1 + reuse_pct / 100
    return Inflation(
        reuse_pct, (factor * math.exp(-gap) - 1) * 100, factor * (1 - math.exp(-low)) * 100
    )


def gap_finding(inflation: Inflation) -> Finding:
    """Return the finding that a part of the gain is there with reused tensors only."""
    return Finding(
        "reuse-gain",
        f"{inflation.reuse_pct:+.1f} % with reused tensors, {inflation.fresh_pct:+.1f} % with "
        "fresh ones",
        advice="a training step brings fresh tensors: only the second figure counts",
    )


def slowed(slower: float, gain: float) -> Finding:
    """Return the finding that the incumbent is so much slower in company; both are log-ratios."""
    return Finding(
        "incumbent-slowed",
        f"the incumbent is {percent(slower):.1f} % slower beside the candidate than in a "
        "process without it",
        advice="leave the process, its libraries and the machine as they are: only what the "
        "kernel's own calls gain counts",
        rejects=slower >= _SHARE * gain,
    )


def _squared_error(ratios: Sequence[float]) -> float:
    return statistics.variance(ratios) / len(ratios) if len(ratios) > 1 else 0.0
