"""Metrics of a table: directions, the combined step, geometric means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_kopt.errors import BadInput
from pytest_kopt.schema.columns import Better
from pytest_kopt.schema.table import Row, Table

COMBINED = "Combined Step"
#: The call that a time or rate is about: one direction, or both together.
Way = Literal["forward", "backward", "step"]
RATE_UNITS = ("TFLOPS", "GB/s")


@dataclass(frozen=True, slots=True)
class Metric:
    """A primary metric: a column, or the combined step derived from two of them."""

    name: str
    better: Better

    @property
    def way(self) -> Way:
        if self == STEP or self.name.startswith(f"{COMBINED} "):
            return "step"
        return "backward" if is_backward(self.name) else "forward"

    @property
    def speed(self) -> str:
        """The quantity that a positive change improves: a time that falls is a speed that rises."""
        return self.name if self.better == "higher" else f"speed by {self.name}"


#: What a comparison without a CSV is about: forward and backward together.
STEP = Metric("step speed", "higher")
#: The sum over cases of weight and time of a call.
WEIGHTED_TIME = Metric("Time of all cases together (ms)", "lower")


def direction(column: str, declared: Mapping[str, Better]) -> Better:
    """Say which way a metric improves: as declared, else rates up and times down; or BadInput."""
    if column in declared:
        return declared[column]
    if column.endswith(RATE_UNITS):
        return "higher"
    parts = column.replace("(", " ").replace(")", " ").replace("_", " ").lower().split()
    if {"us", "µs", "ms", "ns", "time"} & set(parts):
        return "lower"
    raise BadInput(
        f"kopt does not know whether more or less of {column!r} is better",
        where="primary metric",
        fix=f"write directions: {{{column}: higher}} into the policy",
    )


def is_backward(column: str) -> bool:
    """Say whether a column is about the backward, as its name in a CSV tells."""
    return column.startswith("Backward ")


def has_backward(row: Row) -> bool:
    rates = [name for name in row.cells if is_backward(name) and name.endswith(RATE_UNITS)]
    return any(row.number(name) is not None for name in rates)


def rate_unit(columns: Sequence[str]) -> str | None:
    return next((unit for unit in RATE_UNITS if f"Forward {unit}" in columns), None)


def default_primary(table: Table) -> str:
    """Return the combined step where every row has a backward, else the forward metric."""
    if unit := rate_unit(table.header):
        column = f"Backward {unit}"
        has_both = column in table.header and table.passed
        combined = has_both and all(row.number(column) is not None for row in table.passed)
        return f"{COMBINED if combined else 'Forward'} {unit}"
    metrics = [name for name in table.metrics if not name.endswith("_stddev")]
    if not metrics:
        raise BadInput("the CSV has no metric column", where="header", legal="a metric column")
    return metrics[0]


def parse_primary(
    text: str | None, table: Table, declared: Mapping[str, Better]
) -> tuple[Metric, ...]:
    """Return the metrics that `text` names, see `primary_names`, or the table's default."""
    names = primary_names(text, table.metrics) or [default_primary(table)]
    return tuple(Metric(name, direction(name, declared)) for name in names)


def primary_names(text: str | None, columns: Sequence[str]) -> list[str]:
    """Return the primary metrics that `text` (comma-separated) names; BadInput for none of them."""
    names = [part.strip() for part in text.split(",")] if text else []
    combined = [
        f"{COMBINED} {unit}"
        for unit in RATE_UNITS
        if f"Forward {unit}" in columns and f"Backward {unit}" in columns
    ]
    legal = [*combined, *(name for name in columns if not name.endswith("_stddev"))]
    for name in names:
        if name not in legal:
            raise BadInput(f"{name!r} is no metric of this CSV", where="primary", legal=legal)
    return names


def value(row: Row, metric: Metric) -> float | None:
    """Return the metric of one row, None where the row has none.

    The combined step is all work over all time, (F·tf + B·tb) / (tf + tb) with rates F and B and
    times tf and tb. For work 1 : 2 it equals 6 / (2/F + 4/B), which is also used where the row has
    no times. Without a backward it is the forward rate.
    """
    if metric.way != "step":
        return row.number(metric.name)
    unit = metric.name.removeprefix(f"{COMBINED} ")
    forward = row.number(f"Forward {unit}")
    backward = row.number(f"Backward {unit}")
    if forward is None or backward is None:
        return forward
    if not (forward > 0 and backward > 0):
        return math.nan
    times = [row.number(f"{way} Time (ms)") for way in ("Forward", "Backward")]
    if all(time is not None and math.isfinite(time) and time > 0 for time in times):
        t_forward, t_backward = (float(time or 0) for time in times)
        return (forward * t_forward + backward * t_backward) / (t_forward + t_backward)
    return 6 / (2 / forward + 4 / backward)


def time_ms(row: Row, metric: Metric) -> float | None:
    """Return the time of the call that a metric is about, None where the row has none.

    The combined step takes forward and backward.
    """
    forward, backward, only = (
        row.number(column) if column in row.cells else None
        for column in ("Forward Time (ms)", "Backward Time (ms)", "Time (ms)")
    )
    if forward is None:
        return only
    if metric.way == "backward":
        return backward
    return forward + (backward or 0.0) if metric.way == "step" else forward


def improvement(candidate: float, incumbent: float, metric: Metric) -> float:
    """Return the gain as a ratio: above 1 is better, whichever way the metric improves."""
    return candidate / incumbent if metric.better == "higher" else incumbent / candidate


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(number) for number in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def aggregate(rows: Iterable[Row], metric: Metric) -> float:
    """Return the geometric mean of the metric over PASS rows that have it."""
    values = [value(row, metric) for row in rows if row.check == "PASS"]
    return geomean(v for v in values if v is not None and v > 0 and math.isfinite(v))
