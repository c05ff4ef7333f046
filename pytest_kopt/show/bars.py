"""Intervals as small bars of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pytest_kopt.decide.verdict import Shape

#: Columns of a bar: an odd number, so that zero has one of its own.
WIDTH = 17
#: Changes up to so many percent are drawn in proportion on a logarithmic axis.
_LINEAR_PCT = 1.0
#: From so many times the smallest change on, the largest would flatten it.
_FAR_APART = 8.0


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from a slow-down to as large a gain, zero in its middle, for all bars of a table.

    `limit` is the log-ratio at its ends. With `bent` it is logarithmic beyond 1 %.
    """

    MARK: ClassVar[str] = "±"

    limit: float
    bent: bool = False

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> Axis:
        """Return the axis for these cases' changes and intervals."""
        bounds = [
            abs(_log(bound))
            for shape in shapes
            for bound in (shape.change_pct, shape.low_pct, shape.high_pct)
            if bound is not None and math.isfinite(bound)
        ]
        largest = max(bounds, default=0.0)
        changes = [abs(_log(s.change_pct)) for s in shapes if s.change_pct is not None]
        smallest = max(min(changes, default=0.0), _log(_LINEAR_PCT))
        return cls(_round_up(largest), bent=largest > _FAR_APART * smallest)

    @property
    def title(self) -> str:
        pct = math.expm1(self.limit) * 100
        end = f"×{pct / 100 + 1:.3g}" if pct >= 99.5 else f"{pct:.2g} %"
        return f"{self.MARK} {end}{', log' if self.bent else ''}"

    def bar(self, shape: Shape) -> str:
        """Return a case's change and interval.

        `·` is the axis, `│` zero, `━` the interval, `●` the change. Without an interval the change
        stands alone; without a change there is no bar.
        """
        change, low, high = shape.change_pct, shape.low_pct, shape.high_pct
        if change is None or math.isnan(change):
            return ""
        cells = ["·"] * WIDTH
        cells[WIDTH // 2] = "│"
        if low is not None and high is not None:
            first, last = self._place(low), self._place(high)
            cells[first : last + 1] = "━" * (last + 1 - first)
        cells[self._place(change)] = "●"
        return "".join(cells)

    def _place(self, pct: float) -> int:
        share = self._height(_log(pct)) / self._height(self.limit)
        return round(max(-1.0, min(1.0, share)) * (WIDTH // 2)) + WIDTH // 2

    def _height(self, ratio: float) -> float:
        if not self.bent:
            return ratio
        return math.copysign(math.log1p(abs(ratio) / _log(_LINEAR_PCT)), ratio)


def _log(pct: float) -> float:
    """Return a change in percent as a log-ratio, the slowest as slow as can be drawn."""
    return math.log(max(1 + pct / 100, 1e-9))


def _round_up(ratio: float) -> float:
    """Return the next round end of an axis: 1, 2 or 5 times a power of ten percent, or a factor."""
    if ratio <= 0:
        return _log(1.0)
    wanted = math.expm1(ratio) * 100
    factor = wanted / 100 + 1 if wanted > 100 else wanted
    power = 10.0 ** math.floor(math.log10(factor))
    found = next(power * step for step in (1, 2, 5, 10) if power * step >= factor * (1 - 1e-9))
    return math.log(found) if wanted > 100 else _log(found)
