"""How numbers are written for people, the same in reasons, the terminal, Markdown and commits."""

from __future__ import annotations

import math

NONE = "—"


def changed(pct: float | None) -> str:
    """Return a change in percent as `+3.36 %`, from twice as fast on as `×19.6`, `—` for none."""
    if pct is None or math.isnan(pct):
        return NONE
    return _ratio(pct) if pct >= 99.95 else _percent(pct)


def interval(low: float | None, high: float | None, factors: bool | None = None) -> str:
    """Return `[+3.21, +3.50]` in percent, or with `factors` `[×18.2, ×21.1]`.

    These are the default where it reaches beyond twice as fast. Nothing without an interval.
    """
    if low is None or high is None:
        return ""
    if high >= 99.95 if factors is None else factors:
        return f"[{_ratio(low)}, {_ratio(high)}]"
    return f"[{_percent(low)}, {_percent(high)}]".replace(" %", "")


def changed_within(pct: float | None, low: float | None, high: float | None) -> str:
    """Return a change with its interval, as far as there is one, both in percent or as factors."""
    return f"{changed(pct)} {interval(low, high, pct is not None and pct >= 99.95)}".rstrip()


def frozen(number: float | None) -> str:
    """Return a number as the trend's columns have it: three decimals, `-` for none."""
    return "-" if number is None or math.isnan(number) else f"{number:.3f}"


def frozen_change(pct: float | None) -> str:
    """Return a change as the trend's columns have it: `+3.360%`, `—` for none."""
    return NONE if pct is None or math.isnan(pct) else f"{pct:+.3f}%"


def figure(number: float | None, missing: str = "-") -> str:
    """Return a number with four digits that mean something, `missing` where there is none."""
    if number is None or math.isnan(number):
        return missing
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:#.4g}"


def _percent(pct: float) -> str:
    return f"{pct:+.{0 if abs(pct) >= 99.95 else 1 if abs(pct) >= 9.995 else 2}f} %"


def _ratio(pct: float) -> str:
    ratio = max(1 + pct / 100, 0.0)
    return f"×{ratio:.{0 if ratio >= 99.95 else 1 if ratio >= 9.995 else 2}f}"
