"""The charts of a report as Vega-Lite specifications, each with its data inside."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_kopt.figures import changed_within

Spec = dict[str, Any]

#: From so many times the smallest on, the largest would flatten the rest of a linear axis.
_WIDE = 4.0
#: Figures of a tooltip; what else stands there is text.
_NUMBERS = {"gain", "achieved", "attainable", "achieved_pct"}


def timeline(rounds: Sequence[Any]) -> Spec:
    """Draw every attempt of every round, coloured by what became of it."""
    values = [
        {"round": round["number"], **attempt} for round in rounds for attempt in round["attempts"]
    ]
    height = 20 * max(value["attempt"] for value in values)
    return _chart("timeline", values, height=height, **_by_decision(rounds, values))


def trend(rounds: Sequence[Any], metric: str) -> Spec:
    """Draw each round's gain over the baseline with its interval, and the line of what was kept."""
    values = [
        {
            "round": round["number"],
            "gain": round["over_baseline"],
            "low": round["over_baseline_low"],
            "high": round["over_baseline_high"],
            "change": f"{round['change']} {round['interval']}".strip(),
            **{key: round[key] for key in ("decision", "summary", "keeps")},
        }
        for round in rounds
        if round["over_baseline"] is not None
    ]
    kept, last = [value for value in values if value["keeps"]], rounds[-1]["number"]
    if kept and kept[-1]["round"] < last:
        # Without it the line of what was kept would end before rounds that were rolled back.
        values.append({**kept[-1], "round": last, "is_end": True, "low": None, "high": None})
    gain = _gain_axis(values, f"{metric} over round 1")
    ends = {"gain": gain, "low": {**gain, "field": "low"}}
    return _chart("trend", values, **ends, **_by_decision(rounds, values))


def heat_map(rounds: Sequence[Any]) -> Spec:
    """Draw each case's change against the incumbent in each round, a cross where it failed."""
    values = [
        {
            "round": round["number"],
            "case": shape["label"],
            "factor": _factor(shape["change_pct"]),
            "text": changed_within(*(shape[key] for key in ("change_pct", "low_pct", "high_pct"))),
            "status": shape["status"],
            "check": shape["check"],
        }
        for round in rounds
        for shape in round["shapes"]
    ]
    factors = sorted(max(f, 1 / f) for value in values if (f := value["factor"]) is not None)
    # A single outlier would make everything else look the same.
    limit = max(factors[int(0.95 * (len(factors) - 1))], 1.001) if factors else 1.01
    height = 13 * len({value["case"] for value in values})
    return _chart("heat_map", values, height=height, limits=[1 / limit, 1, limit])


def rooflines(lines: Sequence[Any]) -> Spec | None:
    """Draw achieved and attainable rates over arithmetic intensity; None without such data."""
    drawn = ("intensity", "attainable", "achieved")
    rates = [line for line in lines if line["unit"] == "TFLOPS"]
    values = [line for line in rates if all((line[key] or 0) > 0 for key in drawn)]
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


def nightly(points: Sequence[Spec]) -> Spec:
    """Draw each case's change against one base, by the time of the verdict."""
    return _chart("nightly", points, gain=_gain_axis(points, "against the base"))


@functools.cache
def _specs() -> Spec:
    specs: Spec = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
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
    axis = {"field": "gain", "type": "quantitative"}
    ratios = [1 + (value["gain"] or 0.0) / 100 for value in values]
    if not ratios or not min(ratios) > 0 or max(ratios) < _WIDE * min(ratios):
        return {**axis, "title": f"{title} (%)"}
    for value in values:
        for key in {"gain", "low", "high"} & value.keys():
            if value[key] is not None:
                value[key] = _factor(value[key])
    return {**axis, "title": f"{title} (factor)", "scale": {"type": "log"}}


def _factor(pct: float | None) -> float | None:
    """Return a change in percent as a factor that a logarithmic scale can hold."""
    return None if pct is None else max(1 + pct / 100, 1e-6)


def _by_decision(rounds: Sequence[Any], values: Sequence[Spec]) -> Spec:
    """Return the ends of an axis of rounds, and the decisions that occur with their marks."""
    present = {value["decision"] for value in values}
    colours = {name: colour for name, colour in _specs()["colours"].items() if name in present}
    last = max(round["number"] for round in rounds)
    return {
        "rounds": [0.5, last + 0.5],
        "decisions": [*colours],
        "colours": [*colours.values()],
        "shapes": [_specs()["shapes"][name] for name in colours],
    }
