"""Intervals as small bars of text."""

from __future__ import annotations

import math

#: Columns of a bar: an odd number, so that zero has one of its own.
WIDTH = 17


def bar(change: float | None, low: float | None, high: float | None, scale: float) -> str:
    """Return a change and its interval on an axis from −scale to +scale, zero in the middle.

    `·` is the axis, `│` zero, `━` the interval, `●` the change; an end beyond the axis is `◂` or
    `▸`. Without an interval the change stands alone; without a change there is no bar.
    """
    if change is None or math.isnan(change) or not scale > 0:
        return ""
    middle = WIDTH // 2

    def place(value: float) -> int:
        return round(max(-1.0, min(1.0, value / scale)) * middle) + middle

    cells = ["·"] * WIDTH
    cells[middle] = "│"
    if low is not None and high is not None:
        cells[place(low) : place(high) + 1] = "━" * (place(high) + 1 - place(low))
        if low < -scale:
            cells[0] = "◂"
        if high > scale:
            cells[-1] = "▸"
    cells[place(change)] = "●"
    return "".join(cells)


def scale_of(bounds: list[float]) -> float:
    """Return an axis for these bounds: 1, 2 or 5 times a power of ten that holds most of them."""
    found = sorted(abs(bound) for bound in bounds if math.isfinite(bound))
    if not found or found[-1] == 0:
        return 1.0
    # One far outlier would squeeze the others into the middle.
    wanted = found[math.ceil(0.9 * (len(found) - 1))] or found[-1]
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= wanted * (1 - 1e-9))
