"""What a stored verdict is made from: two tables, and how the rows of one changed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_kopt.schema.metrics import Metric, geomean, improvement, value
from pytest_kopt.schema.table import NO_CLASSES, Classes, Key, Table


@dataclass(frozen=True, slots=True)
class Total:
    """The geometric mean of a metric over some cases; the change in percent, positive is better."""

    candidate: float
    incumbent: float
    change_pct: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]], metric: Metric) -> Total:
        """Return the total of pairs (candidate, incumbent)."""
        ratio = geomean(improvement(new, old, metric) for new, old in pairs)
        return cls(
            geomean(new for new, _ in pairs), geomean(old for _, old in pairs), (ratio - 1) * 100
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """One table against the incumbent on one metric; changes in percent, positive is better."""

    metric: Metric
    by_case: dict[Key, float]
    total: Total
    by_class: dict[str, Total]
    target: str | None

    @property
    def goal_pct(self) -> float:
        return (self.by_class[self.target] if self.target else self.total).change_pct


def compare(
    candidate: Table,
    incumbent: Table,
    metric: Metric,
    groups: Mapping[str, Sequence[Key]],
    target: str | None,
) -> Changes:
    """Return how a table's rows changed; `groups` are the cases of each class, by its name."""
    rows = candidate.by_key()
    pairs = {
        row.key: (value(rows[row.key], metric) or 0.0, value(row, metric) or 0.0)
        for row in incumbent.rows
    }
    by_case = {key: (improvement(new, old, metric) - 1) * 100 for key, (new, old) in pairs.items()}
    by_class = {
        name: Total.of([pairs[key] for key in keys], metric) for name, keys in groups.items()
    }
    return Changes(metric, by_case, Total.of([*pairs.values()], metric), by_class, target)


def class_views(changes: Changes, again: Sequence[Changes]) -> list[dict[str, float]]:
    """Return the classes' changes in the run itself and, if there are, in its repetitions."""
    views = [{name: total.change_pct for name, total in changes.by_class.items()}]
    if again:
        runs = [run.by_class for run in again]
        views.append(
            {name: statistics.fmean(run[name].change_pct for run in runs) for name in views[0]}
        )
    return views


@dataclass(frozen=True, slots=True)
class StoredEvidence:
    """Everything a stored verdict is made from.

    `remeasurements` are further tables of the candidate; `extra_benefit` is what the author claims
    for a round that is equal in speed. `core` are the cases that the shape gate guards (None: all).
    With a target among the `classes` that class has to improve, not the aggregate.
    """

    candidate: Table
    incumbent: Table
    remeasurements: tuple[Table, ...] = ()
    primary: str | None = None
    failed_repairs: int = -1
    extra_benefit: str | None = None
    devices: Mapping[Key, str] | None = None
    core: frozenset[Key] | None = None
    classes: Classes = NO_CLASSES
