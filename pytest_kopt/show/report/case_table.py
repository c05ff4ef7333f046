"""The table of cases and rounds: each case's change in each round, readable without colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_kopt.figures import changed, changed_within

#: Up to so many rounds are all shown; of more, those that were kept and the last few.
MANY, LAST = 20, 10
#: The first row: every case together.
_ALL = "all cases"
_SIGNS = {"improved": "▲", "unchanged": "=", "regressed": "▼", "failed": "✕"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One case in one round."""

    #: `improved`, `unchanged`, `regressed`, `failed`, or "" without a comparison.
    status: str
    #: The status as a sign, then the change against the current best of that round.
    text: str
    #: The change with its interval, and the status in words.
    detail: str


#: What stands where a round did not have the case, or did not compare it.
_NONE = Cell("", "", "")


def shown(rounds: Sequence[Any]) -> list[Any]:
    """Return all rounds, or of many the kept ones and the last few."""
    if len(rounds) <= MANY:
        return list(rounds)
    return [round for round in rounds[:-LAST] if round["keeps"]] + list(rounds[-LAST:])


def case_table(rounds: Sequence[Any]) -> tuple[list[Any], list[tuple[str, list[Cell]]]]:
    """Return the rounds that are columns, and each row: its case and a cell for each column.

    A round without a comparison or a failed case, as the baseline is, has no column.
    """
    columns = [(round, cells) for round in shown(rounds) if any((cells := _cells(round)).values())]
    names = dict.fromkeys(name for _, cells in columns for name in cells)
    rows = [(name, [cells.get(name) or _NONE for _, cells in columns]) for name in names]
    return [round for round, _ in columns], rows


def _cells(round: Any) -> dict[str, Cell | None]:
    total = round["aggregate"]
    cells = {_ALL: _cell(total, _direction(total)) if total else None}
    return cells | {shape["label"]: _cell(shape, shape["status"]) for shape in round["shapes"]}


def _cell(figures: Any, status: str) -> Cell | None:
    if status == "failed":
        return Cell(status, f"{_SIGNS[status]} {figures['check']}", status)
    if figures["change_pct"] is None:
        return None
    within = changed_within(*(figures[key] for key in ("change_pct", "low_pct", "high_pct")))
    text = f"{_SIGNS[status]} {changed(figures['change_pct'])}"
    return Cell(status, text, f"{within}, {status}")


def _direction(total: Any) -> str:
    """Return the status of all cases together: that of an interval that leaves out zero."""
    low, high = total["low_pct"], total["high_pct"]
    if low is not None and low > 0:
        return "improved"
    return "regressed" if high is not None and high < 0 else "unchanged"
