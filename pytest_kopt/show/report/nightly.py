"""The page on a file of verdicts: how far each case has drifted from one base, night by night."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_kopt.campaign.verdict_log import LoggedVerdict
from pytest_kopt.figures import changed, interval
from pytest_kopt.show.report import charts
from pytest_kopt.show.report.page import filled, packed
from pytest_kopt.show.words import all_visible, outcome

#: The line of all cases together.
_ALL = "all cases"


def nightly_page(name: str, logged: Sequence[LoggedVerdict]) -> str:
    """Return the page as HTML; `name` is the file's."""
    chart = charts.nightly(all_visible([*_points(logged)]))
    bases = dict.fromkeys((entry.verdict.base or "")[:12] for entry in logged)
    return filled(
        "nightly.html.j2",
        title=name,
        lines=all_visible([*map(_line, logged)]),
        bases=all_visible([*bases]),
        live=False,
        data=packed({"rounds": [], "charts": {"nightly": chart}}),
    )


def _points(logged: Sequence[LoggedVerdict]) -> Iterator[dict[str, Any]]:
    """Yield the change of every case, and of all, where a verdict has one."""
    for entry in logged:
        verdict, total = entry.verdict, entry.verdict.aggregate
        at = {"time": entry.time, "outcome": outcome(verdict), "commit": (entry.commit or "")[:12]}
        if total is not None and total.change_pct is not None:
            yield {**at, "case": _ALL, "gain": total.change_pct}
        for shape in verdict.shapes:
            if shape.change_pct is not None:
                yield {**at, "case": shape.label, "gain": shape.change_pct}


def _line(entry: LoggedVerdict) -> dict[str, str]:
    verdict, total = entry.verdict, entry.verdict.aggregate
    return {
        "time": entry.time,
        "commit": (entry.commit or "")[:12],
        "decision": str(verdict.decision),
        "outcome": outcome(verdict),
        "change": changed(total.change_pct) if total else "—",
        "interval": interval(total.change_pct, total.low_pct, total.high_pct) if total else "",
        "reason": verdict.reason,
    }
