"""The drawings of a report: the table of cases and rounds, and the charts.

The table has each case's change in each round, readable without colours. The charts are Vega-Lite
specifications, each with its data inside.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.verdict import Aggregate, Verdict
from pytest_kopt.figures import changed, ends, within
from pytest_kopt.roofline import Roofline

Spec = dict[str, Any]

#: From so many times the smallest on, the largest would flatten the rest of a linear axis.
_WIDE = 4.0
#: Height of a round in the trend, in pixels.
_ROW = 20
#: Width that is left for the text next to the largest gain, in pixels.
_ROOM = 60
#: An axis whose title may be longer than the axis.
_BELOW = {"tickCount": 10, "titleAnchor": "end"}
#: Characters of a name; the widest page shows fewer.
_LONGEST = 100
#: Figures of a tooltip; what else stands there is text.
_NUMBERS = {"gain", "low", "high", "achieved", "attainable", "achieved_pct"}
#: Up to so many rounds are all shown; of more, those that were kept and the last few.
MANY, LAST = 20, 10
#: The first row: every case together.
_ALL = "all cases"
#: The sign of each status of a cell.
_SIGNS = {"faster": "▲", "slower": "▼", "beyond": "▼▼", "neither": "=", "failed": "✕", "": ""}
#: A status in words, where the word alone does not say it.
_WORDS = {
    "beyond": "slower beyond its regression limit",
    "neither": "no change shown",
    "": "no interval",
}


#: A case in a round: its status, which is one of _SIGNS, or "" without an interval. The text is its
#: sign with the change against the current best of that round, the detail has interval and words.
Cell = dict[str, str]
#: What stands where a round did not have the case, or did not compare it.
_NONE: Cell = {"status": "", "text": "", "detail": ""}


def shown(rounds: Sequence[Any]) -> list[Any]:
    """Return all rounds, or of many the kept ones and the last few."""
    if len(rounds) <= MANY:
        return list(rounds)
    return [round for round in rounds[:-LAST] if round["keeps"]] + list(rounds[-LAST:])


def case_table(rounds: Sequence[Any]) -> tuple[list[Any], list[tuple[str, list[Cell]]]]:
    """Return the rounds that are columns, and each row: its case and a cell for each column.

    A round that neither compared a case nor has a failed one, as the baseline, has no column.
    """
    columns = [(round, cells) for round in shown(rounds) if any((cells := _cells(round)).values())]
    names = dict.fromkeys(name for _, cells in columns for name in cells)
    rows = [(name, [cells.get(name) or _NONE for _, cells in columns]) for name in names]
    return [round for round, _ in columns], rows


def _cells(round: Any) -> dict[str, Cell | None]:
    verdict: Verdict = round["verdict"]
    cells = {_ALL: _cell(verdict.aggregate) if verdict.aggregate else None}
    return cells | {shape.label: _cell(shape) for shape in verdict.shapes}


def _cell(figures: Aggregate | Shape) -> Cell | None:
    status = _status(figures)
    if isinstance(figures, Shape) and status == "failed":
        text, detail = f"{_SIGNS[status]} {figures.check}", status
    elif figures.change_pct is None:
        return None
    else:
        text = f"{_SIGNS[status]} {changed(figures.change_pct)}".lstrip()
        detail = f"{within(figures)}, {_WORDS.get(status, status)}"
    return {"status": status, "text": text, "detail": detail}


def _status(figures: Aggregate | Shape) -> str:
    """Return on which side of zero an interval lies; the verdict knows failures and limits."""
    judged = {"failed": "failed", "regressed": "beyond"}.get(getattr(figures, "status", ""))
    _, low, high = ends(figures)
    if judged or low is None or high is None:
        return judged or ""
    return "faster" if low > 0 else "slower" if high < 0 else "neither"


def trend(rounds: Sequence[Any], metric: str) -> Spec | None:
    """Draw a row for each round: its name, its gain over the baseline, and the interval.

    None where the baseline is the only round.
    """
    if len(rounds) < 2:
        return None
    values = [_row(round) for round in shown(rounds)]
    kept = [value for value in values if value["keeps"]]
    if kept and kept[-1] is not values[-1]:
        # Without it the line of what was kept would end above rounds that were rolled back.
        last, level = values[-1], dict.fromkeys(("low", "high"), kept[-1]["gain"])
        place = {"round": last["round"], "name": last["name"], "is_end": True, "text": ""}
        values.append({**kept[-1], **level, **place})
    gain = _gain_axis(values, f"{metric} over round 1")
    names = [*dict.fromkeys(value["name"] for value in values)]
    filling = {"names": names, "height": _ROW * len(names), **_marks(values)}
    axes = {key: {**gain, "field": key} for key in ("gain", "high")}
    room = {"range": [0, {"expr": f"width - {_ROOM}"}]}
    axes["gain"] |= {"scale": {**gain["scale"], **room}, "axis": _BELOW}
    return _chart("trend", values, **axes, **filling)


def _row(round: Any) -> Spec:
    gain, low, high = (round[f"over_baseline{end}"] for end in ("", "_low", "_high"))
    is_baseline = round["decision"] == "BASELINE"
    words = "baseline" if is_baseline else " ".join(round["summary"].split())[:_LONGEST]
    return {
        "round": round["number"],
        "name": f"{round['number']}  {words}".rstrip(),
        "gain": gain,
        # An interval without length is not seen.
        "low": gain if low is None else low,
        "high": gain if high is None else high,
        "text": changed(gain) if round["keeps"] and not is_baseline else "",
        "change": f"{round['change']} {round['interval']}".strip(),
        "decision": round["decision"],
        "keeps": round["keeps"],
    }


def rooflines(lines: Sequence[Roofline]) -> Spec | None:
    """Draw achieved and attainable rates over arithmetic intensity; None without such data."""
    values = [
        line.model_dump()
        for line in lines
        if line.unit == "TFLOPS"
        and all((rate or 0) > 0 for rate in (line.intensity, line.attainable, line.achieved))
    ]
    return _chart("rooflines", values) if values else None


def pairs() -> Spec:
    """Draw the pairs of a case that the reader chooses; the page fills in the data."""
    return _chart("pairs", [])


def comparison(campaigns: Sequence[Any]) -> Spec:
    """Draw the kept gains of several campaigns."""
    values = [
        {"campaign": page["campaign"], "round": round["number"], "gain": round["over_baseline"]}
        for page in campaigns
        for round in page["rounds"]
        if round["keeps"]
    ]
    return _chart("comparison", values, gain=_gain_axis(values, "over round 1"))


@functools.cache
def _specs() -> Spec:
    specs: Spec = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return specs


def _chart(name: str, values: Sequence[Any], **filling: Any) -> Spec:
    spec = _filled(_specs()[name], filling)
    data = {"name": "table", "values": list(values)}
    return {"description": spec.pop("description"), "width": "container", "data": data, **spec}


def _filled(part: Any, filling: Spec) -> Any:
    """Return a part of a specification with what is `given` for its $names."""
    if isinstance(part, dict):
        return {
            key: [_told(name) for name in value] if key == "tooltip" else _filled(value, filling)
            for key, value in part.items()
        }
    if isinstance(part, list):
        return [_filled(element, filling) for element in part]
    is_name = isinstance(part, str) and part.startswith("$")
    return filling[part[1:]] if is_name else part


def _told(name: str) -> Spec:
    if name in _NUMBERS:
        return {"field": name, "type": "quantitative", "format": ".3f"}
    return {"field": name, "type": "nominal"}


def _gain_axis(values: Sequence[Spec], title: str) -> Spec:
    """Return the axis of gains in percent, or of factors, as `values` are then, if far apart."""
    scale: Spec = {"nice": False}
    axis = {"field": "gain", "type": "quantitative", "scale": scale}
    ratios = [1 + (value["gain"] or 0.0) / 100 for value in values]
    if not ratios or not min(ratios) > 0 or max(ratios) < _WIDE * min(ratios):
        return {**axis, "title": f"{title} (%)"}
    for value in values:
        for key in {"gain", "low", "high"} & value.keys():
            if value[key] is not None:
                value[key] = _factor(value[key])
    return {**axis, "title": f"{title} (factor)", "scale": {**scale, "type": "log"}}


def _factor(pct: float | None) -> float | None:
    """Return a change in percent as a factor that a logarithmic scale can hold."""
    return None if pct is None else max(1 + pct / 100, 1e-6)


def _marks(values: Sequence[Spec]) -> Spec:
    """Return the decisions that occur with their colours and shapes."""
    present = {value["decision"] for value in values}
    colours = {name: colour for name, colour in _specs()["colours"].items() if name in present}
    return {
        "decisions": [*colours],
        "colours": [*colours.values()],
        "shapes": [_specs()["shapes"][name] for name in colours],
    }
