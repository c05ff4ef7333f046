"""The charts of a report as Vega-Lite specifications, each with its data inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_kopt.decide.verdict import Decision
from pytest_kopt.figures import changed_within

Spec = dict[str, Any]

#: Colours that can be told apart in both themes and without red and green.
COLOURS = {
    Decision.BASELINE: "#7f8c9b",
    Decision.ACCEPTED: "#1b9e77",
    Decision.ACCEPTED_WITH_NOTE: "#8fbf3f",
    Decision.ROLLED_BACK: "#d9553b",
    Decision.INCONCLUSIVE: "#e0a52e",
    Decision.SPLIT: "#8d6cc9",
    Decision.REPAIR: "#4a90d9",
    Decision.REJECTED_OVERFIT: "#b8327d",
    Decision.INCOMPLETE: "#a9b2bd",
}
#: From so many times the smallest on, the largest would flatten the rest of a linear axis.
_WIDE = 4.0
_SLOWER, _SAME, _FASTER = "#c8452f", "rgba(140,150,160,0.18)", "#1f6fb4"
_GREY = COLOURS[Decision.BASELINE]


def timeline(rounds: Sequence[Any]) -> Spec:
    """Draw every attempt of every round, coloured by what became of it."""
    values = [{"round": item["number"], **each} for item in rounds for each in item["attempts"]]
    layer = _layer(
        {"type": "square", "size": 90, "opacity": 1},
        x=_round_axis(rounds),
        y=_field("attempt", "ordinal", title="attempt"),
        color=_decision_colour(values),
        tooltip=_tooltip("round", "attempt", "decision", "time", "reason"),
    )
    height = 20 * max(value["attempt"] for value in values)
    return _chart("Verdicts: one mark an attempt", values, height=height, **layer)


def trend(rounds: Sequence[Any], metric: str) -> Spec:
    """Draw each round's gain over the baseline with its interval, and the line of what was kept."""
    values = [
        {
            "round": item["number"],
            "gain": item["over_baseline"],
            "low": item["over_baseline_low"],
            "high": item["over_baseline_high"],
            "change": f"{item['change']} {item['interval']}".strip(),
            **{key: item[key] for key in ("decision", "summary", "keeps")},
        }
        for item in rounds
        if item["over_baseline"] is not None
    ]
    gain = _gain_axis(values, f"{metric} over round 1")
    colour, bounds = _decision_colour(values), {**gain, "field": "low"}
    tooltip = _tooltip("round", "decision", "change", "summary")
    line = {"type": "line", "interpolate": "step-after", "color": COLOURS[Decision.ACCEPTED]}
    point = {"type": "point", "filled": True, "size": 28, "opacity": 1}
    rule = {"type": "rule", "strokeWidth": 2}
    both = "isValid(datum.low) && isValid(datum.high)"
    return _chart(
        "Gain over the baseline",
        values,
        height=260,
        encoding={"x": _round_axis(rounds)},
        layer=[
            _layer(line, "datum.keeps", y=gain),
            _layer(rule, both, y=bounds, y2={"field": "high"}, color=colour),
            _layer(point, y=gain, color=colour, tooltip=tooltip),
        ],
    )


def heat_map(rounds: Sequence[Any]) -> Spec:
    """Draw each case's change against the incumbent in each round, a cross where it failed."""
    values = [
        {
            "round": item["number"],
            "case": shape["label"],
            "change": shape["change_pct"],
            "text": changed_within(*(shape[key] for key in ("change_pct", "low_pct", "high_pct"))),
            "status": shape["status"],
            "check": shape["check"],
        }
        for item in rounds
        for shape in item["shapes"]
    ]
    found = sorted(abs(value["change"]) for value in values if value["change"] is not None)
    # A single outlier would make everything else look the same.
    limit = max(found[int(0.95 * (len(found) - 1))], 0.1) if found else 1.0
    tooltip = _tooltip("round", "case", "text", "status", "check")
    colour = _field(
        "change",
        title="vs incumbent (%)",
        legend={"orient": "top", "gradientLength": 160},
        scale={"domain": [-limit, 0, limit], "range": [_SLOWER, _SAME, _FASTER], "clamp": True},
    )
    cross = {"type": "point", "shape": "cross", "color": _SLOWER, "size": 40}
    return _chart(
        "Every case in every round",
        values,
        height=13 * len({value["case"] for value in values}),
        encoding={
            "x": _field("round", "ordinal", axis={"labelOverlap": True, "labelAngle": 0}),
            "y": _field("case", "nominal", sort=None, title=None),
        },
        layer=[
            _layer({"type": "rect"}, "isValid(datum.change)", color=colour, tooltip=tooltip),
            _layer(cross, "datum.check !== 'PASS'", tooltip=tooltip),
        ],
    )


def rooflines(found: Sequence[Any]) -> Spec | None:
    """Draw achieved and attainable rates over arithmetic intensity; None without such data."""
    drawn = ("intensity", "attainable", "achieved")
    rates = [item for item in found if item["unit"] == "TFLOPS"]
    values = [item for item in rates if all((item[key] or 0) > 0 for key in drawn)]
    if not values:
        return None
    rate = _field("achieved", title="TFLOPS", scale={"type": "log"})
    line = {"type": "line", "strokeDash": [4, 3], "color": _GREY}
    point = _layer(
        {"type": "point", "filled": True, "size": 60, "opacity": 1},
        y=rate,
        color=_field("bound", "nominal"),
        shape=_field("way", "nominal"),
        tooltip=_tooltip("label", "way", "bound", "achieved", "attainable", "achieved_pct"),
    )
    return _chart(
        "Roofline",
        values,
        height=280,
        encoding={"x": _field("intensity", title="FLOP per byte", scale={"type": "log"})},
        layer=[_layer(line, y={**rate, "field": "attainable"}), point],
    )


def pairs() -> Spec:
    """Draw the pairs of a case that the reader chooses; the page fills in the data."""
    gain = _field("gain", title="gain of a pair (%)")
    point = _layer(
        {"type": "point", "filled": True, "size": 35, "opacity": 0.65},
        y={**gain, "scale": {"zero": False}},
        xOffset={"field": "pair"},
        color=_field("first", "nominal", title="went first"),
        tooltip=_tooltip("process", "pair", "first", "gain"),
    )
    mean = {"type": "tick", "thickness": 2, "color": _GREY}
    x = _field("process", "ordinal", title="fresh process")
    layer = [point, _layer(mean, y={**gain, "aggregate": "mean"})]
    return _chart("Pairs", [], height=220, encoding={"x": x}, layer=layer)


def comparison(campaigns: Sequence[Any]) -> Spec:
    """Draw the kept gains of several campaigns."""
    values = [
        {"campaign": item["campaign"], "round": each["number"], "gain": each["over_baseline"]}
        for item in campaigns
        for each in item["rounds"]
        if each["keeps"]
    ]
    layer = _layer(
        {"type": "line", "interpolate": "step-after", "point": True},
        x=_field("round", axis={"tickMinStep": 1}),
        y=_gain_axis(values, "over round 1"),
        color=_field("campaign", "nominal"),
        tooltip=_tooltip("campaign", "round", "gain"),
    )
    return _chart("Gain over the baseline, by campaign", values, height=240, **layer)


def _gain_axis(values: Sequence[dict[str, Any]], title: str) -> Spec:
    """Return the axis of gains in percent; factors on a logarithmic one where they lie far apart.

    The values' gains and bounds become factors then.
    """
    ratios = [1 + (value["gain"] or 0.0) / 100 for value in values]
    if not ratios or not min(ratios) > 0 or max(ratios) < _WIDE * min(ratios):
        return _field("gain", title=f"{title} (%)")
    for value in values:
        for key in {"gain", "low", "high"} & value.keys():
            if value[key] is not None:
                value[key] = max(1 + value[key] / 100, 1e-6)
    return _field("gain", title=f"{title} (factor)", scale={"type": "log"})


def _chart(description: str, values: Sequence[Any], **parts: Any) -> Spec:
    data = {"name": "table", "values": list(values)}
    return {"description": description, "width": "container", "data": data, **parts}


def _field(name: str, type: str = "quantitative", **more: Any) -> Spec:
    return {"field": name, "type": type, **more}


def _layer(mark: Spec, filter: str = "", **encoding: Any) -> Spec:
    """Return a layer, of the values for which `filter` holds alone where there is one."""
    chosen = {"transform": [{"filter": filter}]} if filter else {}
    return {**chosen, "mark": mark, "encoding": encoding}


def _round_axis(rounds: Sequence[Any]) -> Spec:
    last = max(item["number"] for item in rounds)
    scale = {"domain": [0.5, last + 0.5], "nice": False}
    axis = {"tickMinStep": 1, "format": "d", "grid": False}
    return _field("round", title="round", scale=scale, axis=axis)


def _decision_colour(values: Sequence[Any]) -> Spec:
    """Colours by decision; the legend names the decisions that occur."""
    present = {value["decision"] for value in values}
    shown = {str(decision): colour for decision, colour in COLOURS.items() if decision in present}
    scale = {"domain": [*shown], "range": [*shown.values()]}
    legend = {"orient": "top", "columns": 3}
    return _field("decision", "nominal", title=None, legend=legend, scale=scale)


def _tooltip(*fields: str) -> list[Spec]:
    numbers = {"gain", "achieved", "attainable", "achieved_pct"}
    return [
        _field(name, format=".3f") if name in numbers else _field(name, "nominal")
        for name in fields
    ]
