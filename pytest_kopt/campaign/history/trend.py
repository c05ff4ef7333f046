"""The figures that a campaign's trend shows, and the product of the accepted rounds' gains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pytest_kopt.campaign.ledger import Decided, PairedChange, Trend
from pytest_kopt.campaign.state import CampaignState
from pytest_kopt.decide.verdict import Decision, Level, Verdict
from pytest_kopt.schema.metrics import COMBINED, Metric, aggregate, direction, rate_unit, value
from pytest_kopt.schema.table import Table


def figures(table: Table, metric: Metric | None = None) -> Trend:
    """Return a table's trend figures: geometric means and best single cases of PASS rows.

    For a schema without a rate, forward and combined are the primary `metric`.
    """
    unit = rate_unit(table.header)
    if unit is None:
        single = metric or Metric(table.metrics[0], direction(table.metrics[0], {}))
        average, peak = _average(table, single), _peak(table, single)
        return Trend(unit=single.name, forward_average=average, forward_peak=peak, combined=average)
    ways = ("Forward", "Backward", COMBINED)
    forward, backward, combined = (Metric(f"{way} {unit}", "higher") for way in ways)
    return Trend(
        unit=unit,
        forward_average=_average(table, forward),
        forward_peak=_peak(table, forward),
        backward_average=_average(table, backward),
        backward_peak=_peak(table, backward),
        combined=_average(table, combined),
    )


def _average(table: Table, metric: Metric) -> float | None:
    average = aggregate(table.rows, metric)
    return None if math.isnan(average) else average


def _peak(table: Table, metric: Metric) -> float | None:
    values = [value(row, metric) for row in table.passed]
    usable = [figure for figure in values if figure is not None and math.isfinite(figure)]
    best = max if metric.better == "higher" else min
    return best(usable) if usable else None


@dataclass(frozen=True, slots=True)
class Chain:
    """A product of paired gains; at the quick level it is over the representative cases."""

    change: PairedChange
    level: Level


def chain_to(state: CampaignState, last: Decided) -> Chain | None:
    """Return the gain over round 1 with this round as the last link.

    A quick round says nothing of the other cases: with one among the links, every link is taken
    over the representative cases. None where a link was not paired over them.
    """
    accepted = (round.verdict for round in state.kept_rounds() if 1 < round.number < last.round)
    links = [*filter(None, accepted), last]
    level: Level = "quick" if any(link.level == "quick" for link in links) else "full"
    changes = [link.paired if link.level == level else link.paired_quick for link in links]
    paired = [change for change in changes if change]
    if len(paired) < len(changes):
        return None

    def compounded(parts: Iterable[float]) -> float:
        return (math.prod(1 + part / 100 for part in parts) - 1) * 100

    backward = [change.backward_pct for change in paired if change.backward_pct is not None]
    product = PairedChange(
        step_pct=compounded(change.step_pct for change in paired),
        forward_pct=compounded(change.forward_pct for change in paired),
        backward_pct=compounded(backward) if len(backward) == len(paired) else None,
    )
    return Chain(product, level)


def chain_of_best(state: CampaignState) -> Chain | None:
    """Return the last accepted round's gain over round 1, None where a link was not paired."""
    best = state.incumbent
    return chain_to(state, best.decided) if best and best.decided else None


@dataclass(frozen=True, slots=True)
class Gain:
    """A gain over round 1 in percent with its interval, None where nothing was compared."""

    change_pct: float | None
    low_pct: float | None = None
    high_pct: float | None = None


def over_baseline(verdicts: Iterable[Verdict | Decided]) -> Iterator[Gain]:
    """Yield each round's gain over round 1: the aggregates' gains of the kept ones before and its.

    The interval is its own verdict's; one that is kept without a comparison adds nothing.
    """
    level = 1.0
    for verdict in verdicts:
        total = verdict.aggregate
        changes = (total.change_pct, total.low_pct, total.high_pct) if total else (None,) * 3
        gain = Gain(*(None if c is None else (level * (1 + c / 100) - 1) * 100 for c in changes))
        if verdict.decision is Decision.BASELINE:
            gain = replace(gain, change_pct=0.0)
        if verdict.decision.keeps:
            if gain.change_pct is None:
                gain = replace(gain, change_pct=(level - 1) * 100)
            level = 1 + (gain.change_pct or 0.0) / 100
        yield gain
