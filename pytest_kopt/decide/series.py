"""The table of a paired comparison: series of log-ratios, one ratio a fresh process; estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_kopt.decide.case_verdict import FirstCall, Memory, Same
from pytest_kopt.decide.inference import FINAL_LOOK, Estimate
from pytest_kopt.decide.known_noise import Noise, Prior, Ratios, mean_of, variance_of
from pytest_kopt.decide.operating_points import PointEvidence
from pytest_kopt.decide.policy import Limit, Policy
from pytest_kopt.schema.columns import Scalar
from pytest_kopt.schema.metrics import STEP, Metric
from pytest_kopt.schema.table import NO_CLASSES, Classes

#: The conditions of a series: the declared ones; group sizes that were drawn once more, under which
#: a gain of a grouped GEMM has to hold; and the operating point of a GPU that does not decide.
Kind: TypeAlias = Literal["declared", "under skew", "other point"]
#: How a metric's name ends where the group sizes were drawn once more.
UNDER_SKEW: Kind = "under skew"


@dataclass(frozen=True, slots=True)
class Series:
    """Log-ratios of one case by one metric, one a replicate; `name` identifies the case.

    `new` are of the current best over the candidate, `copy` over its own copy, from the same
    processes.
    """

    name: str
    label: str
    dims: Mapping[str, Scalar]
    new: tuple[float, ...]
    copy: tuple[float, ...] = ()
    metric: Metric = STEP
    kind: Kind = "declared"
    #: The scatter of earlier processes; None: not known.
    noise: Noise | None = None
    #: Whether the policy's regression limit guards the case.
    core: bool = True
    #: Its own regression limit, which guards it whether it is a core one or not.
    limit_pct: float | None = None
    limit_us: float | None = None
    #: The current best's time of a call that the metric is about, None where it is not known.
    incumbent_ms: float | None = None
    weight: float = 1.0
    device: str | None = None
    #: The candidate's and the current best's metric, for display.
    values: tuple[float, float] | None = None
    #: How both versions are known to be the same, if they were not compared for that.
    same: Same | None = None
    #: What a call takes, and the first one, where both versions were measured.
    memory: Memory | None = None
    first_call_ms: FirstCall | None = None
    #: The loads at operating points, None on the CPU; and where timed calls find inputs.
    points: PointEvidence | None = None
    cache: str | None = None

    @property
    def has_own_limit(self) -> bool:
        return (self.limit_pct, self.limit_us) != (None, None)

    @property
    def is_guarded(self) -> bool:
        return self.core or self.has_own_limit

    def limit(self, policy: Policy) -> Limit:
        """Return how much longer it may take."""
        return policy.limit(self.limit_pct, self.limit_us, self.incumbent_ms)


@dataclass(frozen=True, slots=True)
class SeriesTable:
    """All series of a comparison at a look, and what is asked of them.

    With `gate` "no-regression" the question is only whether a case got slower. With a target among
    the `classes` that class has to improve, not all cases.
    """

    series: tuple[Series, ...]
    gate: Literal["improve", "no-regression"] = "improve"
    flags: tuple[str, ...] = ()
    classes: Classes = NO_CLASSES
    #: No more replicates follow, whatever the look.
    is_last: bool = False

    @property
    def replicates(self) -> int:
        return len(self.series[0].new)

    @property
    def is_at_end(self) -> bool:
        """Whether this is the last look, which always gives a verdict."""
        return self.is_last or self.replicates == FINAL_LOOK

    @property
    def target(self) -> str | None:
        """The target class, None without one; BadInput if no case is of it."""
        return self.classes.target_among(self.classes.group({s.name: s.dims for s in self.series}))

    def by_metric(self, kind: Kind) -> list[list[Series]]:
        """Return the series of a kind, those of each metric together."""
        found: dict[Metric, list[Series]] = {}
        for series in self.series:
            if series.kind == kind:
                found.setdefault(series.metric, []).append(series)
        return [*found.values()]


def prior_of(cases: Sequence[Series], shares: Sequence[float] = ()) -> Prior | None:
    """Return the prior of the mean of cases; one that the change does not concern adds nothing."""
    shares = shares or [1 / len(cases)] * len(cases)
    timed = {
        case.name: share
        for case, share in zip(cases, shares, strict=True)
        if any(case.new) or any(case.copy)
    }
    noise = cases[0].noise
    return noise.prior([*timed], [*timed.values()]) if noise and timed else None


def excess_of(cases: Sequence[Series]) -> float:
    """Return how many times their priors the variances of all cases are together, at least 1.

    The comparison's log-ratios alone count as well: a candidate may scatter where the current best
    does not.
    """
    main, with_control = [], []
    for case in cases:
        if prior := prior_of([case]):
            main.append(variance_of(case.new)[0] / prior.variance)
            with_control.append(variance_of(case.new, case.copy)[0] / prior.variance)
    return max(1.0, statistics.fmean(main), statistics.fmean(with_control)) if main else 1.0


def together(cases: Sequence[Series], excess: float = 1.0) -> Estimate:
    """Return the estimate of the mean of some cases' log-ratios."""
    return _combined(cases, prior_of(cases), excess, mean_of)


def weighted_time(cases: Sequence[Series], excess: float) -> Estimate | None:
    """Return the estimate of the weighted time of all cases, None where one is not known."""
    times = [case.weight * case.incumbent_ms for case in cases if case.incumbent_ms]
    if len(times) < len(cases):
        return None
    shares = [ms / math.fsum(times) for ms in times]

    def of_time(series: Sequence[Ratios]) -> list[float]:
        # A mean of logarithms by shares would miss how shares move with large changes.
        left = [[math.exp(-ratio) for ratio in ratios] for ratios in series]
        return [-math.log(time) for time in mean_of(left, shares)]

    return _combined(cases, prior_of(cases, shares), excess, of_time)


def _combined(
    cases: Sequence[Series],
    prior: Prior | None,
    excess: float,
    combine: Callable[[Sequence[Ratios]], list[float]],
) -> Estimate:
    has_control = all(case.copy for case in cases)
    control = combine([case.copy for case in cases]) if has_control else ()
    new = combine([case.new for case in cases])
    return Estimate.of(new, control, prior and prior.times(excess))
