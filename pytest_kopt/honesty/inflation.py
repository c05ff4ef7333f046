"""The gain that only reused tensors have: reported, and not counted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: S1: a gap between reuse gain and fresh gain above this is inflation.
ALLOWED_GAP_PCT = 1.0
_CONFIDENCE = 2.58


@dataclass(frozen=True, slots=True)
class Inflation:
    """Gains over the incumbent in percent with known and with fresh tensors, and their gap.

    `low_gap_pct` is the gap's lower 99.5 % bound; without an incumbent the gains are against the
    candidate's own fresh call.
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
        """Whether the gap is proven to be above what S1 allows."""
        return self.low_gap_pct > ALLOWED_GAP_PCT + 1e-9

    @property
    def counts(self) -> bool:
        """Whether there is a gain with fresh tensors: one that only reuse has does not count."""
        return not (self.is_inflated and self.fresh_pct <= 1e-9)


def inflation(
    candidate: Sequence[float], incumbent: Sequence[float] = (), reuse_pct: float | None = None
) -> Inflation:
    """Return the gap between the gain with reused tensors and that with fresh ones.

    `candidate` and `incumbent` are log-ratios fresh time / reused time of single pairs, each
    version in its own session: what a version gains by reuse does not depend on the machine's mood.
    `reuse_pct` is the benchmark's gain over the incumbent, where tensors are reused (default: the
    candidate's reused call against its own fresh one).
    """
    own, other = statistics.fmean(candidate), statistics.fmean(incumbent or [0.0])
    spread = math.sqrt(_squared_error(candidate) + _squared_error(incumbent))
    gap = own - other
    if reuse_pct is None:
        reuse_pct = _percent(gap)
    factor = 1 + reuse_pct / 100
    return Inflation(
        reuse_pct,
        (factor * math.exp(-gap) - 1) * 100,
        factor * (1 - math.exp(-(gap - _CONFIDENCE * spread))) * 100,
    )


def _squared_error(ratios: Sequence[float]) -> float:
    return statistics.variance(ratios) / len(ratios) if len(ratios) > 1 else 0.0


def _percent(log_ratio: float) -> float:
    return (math.exp(log_ratio) - 1) * 100
