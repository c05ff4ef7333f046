"""The evidence of a stored verdict: two tables, and how the rows of one changed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_kopt.decide.conclusion import NO_FACTS, VersionFacts
from pytest_kopt.decide.policy import TOLERANCE_PCT, Limit, Policy
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed
from pytest_kopt.schema.metrics import WEIGHTED_TIME, Metric, geomean, improvement, time_ms, value
from pytest_kopt.schema.table import NO_CLASSES, Classes, Key, Row, Table


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
    geomean: Total
    #: In ms, None where a row has no time.
    weighted: Total | None
    by_class: dict[str, Total]
    target: str | None
    is_by_weight: bool

    @property
    def total(self) -> Total:
        """The figure of all cases that decides, of `total_metric`."""
        return self.weighted if self.is_by_weight and self.weighted else self.geomean

    @property
    def total_metric(self) -> Metric:
        return WEIGHTED_TIME if self.is_by_weight else self.metric

    @property
    def speed(self) -> str:
        return self.total_metric.speed

    @property
    def fallen(self) -> str:
        """The note that the figure of all cases fell, if it does not decide, or ""."""
        total, metric = self.weighted, WEIGHTED_TIME
        if self.is_by_weight:
            total, metric = self.geomean, self.metric
        if len(self.by_case) < 2 or total is None or total.change_pct > -TOLERANCE_PCT:
            return ""
        return f"{metric.speed} fell: {changed(total.change_pct)}"

    @property
    def goal_pct(self) -> float:
        return (self.by_class[self.target] if self.target else self.total).change_pct


def compare(
    candidate: Table,
    evidence: StoredEvidence,
    metric: Metric,
    policy: Policy,
) -> Changes:
    """Return how a table's rows changed; BadInput where times are to decide and are not there."""
    incumbent = evidence.incumbent
    groups = evidence.classes.group({row.key: row.dims for row in incumbent.rows})
    is_by_weight = policy.decided_by == "weighted-time"
    rows = candidate.by_key()
    pairs = {
        row.key: (value(rows[row.key], metric) or 0.0, value(row, metric) or 0.0)
        for row in incumbent.rows
    }
    by_case = {key: (improvement(new, old, metric) - 1) * 100 for key, (new, old) in pairs.items()}
    by_class = {
        name: Total.of([pairs[key] for key in keys], metric) for name, keys in groups.items()
    }
    weighted = _weighted([(rows[row.key], row) for row in incumbent.rows], evidence, metric)
    if is_by_weight and weighted is None:
        raise BadInput(
            "decided_by: weighted-time needs a time in every row",
            where=incumbent.source or "incumbent",
            fix="add a column of times in ms, or use a policy with decided_by: geomean",
        )
    total, target = Total.of([*pairs.values()], metric), evidence.classes.target_among(groups)
    return Changes(metric, by_case, total, weighted, by_class, target, is_by_weight)


def _weighted(
    rows: Sequence[tuple[Row, Row]], evidence: StoredEvidence, metric: Metric
) -> Total | None:
    """Return the weighted time of pairs of rows (candidate, incumbent), None without times."""
    weights = evidence.weights
    sums = []
    for side in zip(*rows, strict=True):
        times = [(weights.get(row.key, 1.0), time_ms(row, metric)) for row in side]
        if not all(time is not None and math.isfinite(time) and time > 0 for _, time in times):
            return None
        sums.append(math.fsum(weight * (time or 0.0) for weight, time in times))
    now, before = sums
    return Total(now, before, (before / now - 1) * 100)


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

    `remeasurements` are further tables of the candidate; `facts` are what else is known of it.
    `core` are the cases that the shape gate guards (None: all).
    With a target among the `classes` that class has to improve, not the aggregate. `limits` are the
    regression limits, in percent and in us, of cases that have their own and are guarded so;
    `weights` are those that are not 1.
    """

    candidate: Table
    incumbent: Table
    remeasurements: tuple[Table, ...] = ()
    primary: str | None = None
    failed_repairs: int = -1
    facts: VersionFacts = NO_FACTS
    devices: Mapping[Key, str] | None = None
    core: frozenset[Key] | None = None
    classes: Classes = NO_CLASSES
    limits: Mapping[Key, tuple[float | None, float | None]] = field(default_factory=dict)
    weights: Mapping[Key, float] = field(default_factory=dict)

    def limit(self, row: Row, metric: Metric, policy: Policy) -> Limit | None:
        """Return the regression limit of the incumbent's row, None where nothing guards it."""
        is_core = self.core is None or row.key in self.core
        if not is_core and row.key not in self.limits:
            return None
        return policy.limit(*self.limits.get(row.key, (None, None)), time_ms(row, metric))
