"""The figures of a round that a campaign's trend shows."""

from __future__ import annotations

import math

from pytest_kopt.campaign.ledger import Trend
from pytest_kopt.schema.metrics import RATE_UNITS, Metric, aggregate, direction, value
from pytest_kopt.schema.table import Table


def figures(table: Table, metric: Metric | None = None) -> Trend:
    """Return a table's trend figures: geometric means and best single cases of PASS rows.

    For a schema without a rate, forward and combined are the primary `metric`.
    """
    unit = next((unit for unit in RATE_UNITS if f"Forward {unit}" in table.header), None)
    if unit is None:
        name = metric.name if metric else table.metrics[0]
        single = Metric(name, metric.better if metric else direction(name, {}))
        average, peak = _average(table, single), _peak(table, single)
        return Trend(unit=name, forward_average=average, forward_peak=peak, combined=average)
    forward, backward = (Metric(f"{way} {unit}", "higher") for way in ("Forward", "Backward"))
    combined = Metric(f"Combined Step {unit}", "higher")
    return Trend(
        unit=unit,
        forward_average=_average(table, forward),
        forward_peak=_peak(table, forward),
        backward_average=_average(table, backward),
        backward_peak=_peak(table, backward),
        combined=_average(table, combined),
    )


def _average(table: Table, metric: Metric) -> float | None:
    found = aggregate(table.rows, metric)
    return None if math.isnan(found) else found


def _peak(table: Table, metric: Metric) -> float | None:
    values = [value(row, metric) for row in table.rows if row.check == "PASS"]
    usable = [item for item in values if item is not None and math.isfinite(item)]
    if not usable:
        return None
    return max(usable) if metric.better == "higher" else min(usable)
