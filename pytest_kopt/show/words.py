"""How numbers are written for people, the same in the terminal, Markdown and commits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tabulate import tabulate


def percent(change: float | None) -> str:
    """Return `+1.234%`, or `—` where there is none."""
    return "—" if change is None or math.isnan(change) else f"{change:+.3f}%"


def figure(number: float | None, missing: str = "-") -> str:
    """Return a number with three decimals, `missing` where there is none."""
    return missing if number is None or math.isnan(number) else f"{number:.3f}"


def interval(low: float | None, high: float | None) -> str:
    """Return `[-0.1, +0.2]` in percent, nothing where there is no interval."""
    return "" if low is None or high is None else f"[{low:+.2f}, {high:+.2f}]"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    safe = [[one_line(cell) for cell in row] for row in rows]
    return tabulate(safe, headers=list(header), tablefmt="github", disable_numparse=True)


def one_line(text: str) -> str:
    """Return text that fits a Markdown table cell."""
    return " ".join(text.split()).replace("|", "\\|")
