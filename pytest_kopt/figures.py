"""How numbers are written for people, the same in reasons, the terminal, Markdown and commits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NONE = "—"
#: A change in percent and the ends of its interval: fields, or keys, of every record of a change.
CHANGE = ("change_pct", "low_pct", "high_pct")
#: A change in percent from which on it is written as a factor.
_TWICE = 99.95
#: Decimals of units whose figures have as many at any size.
_DECIMALS = {"%": 1, "dB": 2, "MHz": 0, "W": 0, "s": 0}


def changed(pct: float | None) -> str:
    """Return a change in percent as `+3.36 %`, from twice as fast on as `19.6×`, `—` for none."""
    if pct is None or math.isnan(pct):
        return NONE
    return _ratio(pct) if pct >= _TWICE else _percent(pct)


def interval(pct: float | None, low: float | None, high: float | None) -> str:
    """Return a change's interval as the change is written, `[+3.21, +3.50]` or `[18.2×, 21.1×]`.

    Nothing without an interval.
    """
    if low is None or high is None:
        return ""
    if pct is not None and pct >= _TWICE:
        return f"[{_ratio(low)}, {_ratio(high)}]"
    return f"[{_percent(low)}, {_percent(high)}]".replace(" %", "")


def changed_within(pct: float | None, low: float | None, high: float | None) -> str:
    """Return a change with its interval, as far as there is one."""
    return f"{changed(pct)} {interval(pct, low, high)}".rstrip()


def ends(record: Any) -> tuple[float | None, ...]:
    """Return a record's change and the ends of its interval, None for what it does not have."""
    if isinstance(record, Mapping):
        return tuple(record.get(name) for name in CHANGE)
    return tuple(getattr(record, name, None) for name in CHANGE)


def within(record: Any) -> str:
    """Return the change of a record, or of none, with its interval."""
    return changed_within(*ends(record))


def at_level(confidence: float) -> str:
    """Return an interval's two-sided confidence level, a fraction, as `99.2 %`."""
    return f"{f'{confidence:.2%}'.rstrip('%0').rstrip('.')} %"


def thousandths(number: float | None) -> str:
    """Return a number with three decimals, as the trend's columns have it; `-` for none."""
    return "-" if number is None or math.isnan(number) else f"{number:.3f}"


def frozen_change(pct: float | None) -> str:
    """Return a change as the trend's columns have it: `+3.360%`, `—` for none."""
    return NONE if pct is None or math.isnan(pct) else f"{pct:+.3f}%"


def figure(number: float | None) -> str:
    """Return a number with four digits that mean something, `-` where there is none."""
    if number is None or math.isnan(number):
        return "-"
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:#.4g}"


def rounded(number: float) -> str:
    """Return an exact number with four digits at most: `512`, `1.5`."""
    return f"{number:.0f}" if 1000 <= abs(number) < 1e6 else f"{number:.4g}"


def in_unit(number: float | None, unit: str) -> str:
    """Return a number with its unit: `98.0 %`, `12.35 us`; `-` where there is none."""
    if number is None:
        return "-"
    text = f"{number:.{_DECIMALS[unit]}f}" if unit in _DECIMALS else figure(number)
    return f"{text} {unit}"


def before_and_now(before: float | None, now: float | None) -> str:
    """Return two numbers, the current best's first: `111.4 -> 110.1`."""
    return f"{figure(before)} -> {figure(now)}"


def _percent(pct: float) -> str:
    return f"{pct:+.{0 if abs(pct) >= 99.95 else 1 if abs(pct) >= 9.995 else 2}f} %"


def _ratio(pct: float) -> str:
    ratio = max(1 + pct / 100, 0.0)
    return f"{ratio:.{0 if ratio >= 99.95 else 1 if ratio >= 9.995 else 2}f}×"
