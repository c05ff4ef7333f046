"""The evidence of a paired verdict: log-ratios of each case, one a fresh process; estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_kopt.decide.case_verdict import FirstCall, Memory, Same
from pytest_kopt.decide.inference import FINAL_LOOK, GATE_LEVEL, SHAPE_LEVEL, Estimate
from pytest_kopt.decide.known_noise import Noise, Prior, Ratios, excess_of, mean_of
from pytest_kopt.decide.operating_points import PointEvidence
from pytest_kopt.decide.policy import Limit, Policy
from pytest_kopt.schema.columns import Better, Scalar
from pytest_kopt.schema.metrics import Metric
from pytest_kopt.schema.table import NO_CLASSES, Classes

#: How a metric's name ends where the group sizes were drawn once more.
UNDER_SKEW = "under skew"


@dataclass(frozen=True, slots=True)
class PairedCase:
    """One case, identified by `name`: log(incumbent / candidate) of one metric, one a replica.

    `placebo` are those of the incumbent against its own copy, from the same replicas. The shape
    gate guards the `core` cases. `values` are the candidate's and the incumbent's metric, for
    display. A case that is the `same` in both versions was not compared. `incumbent_ms` is the time
    of a call that the metric is about, None where it is not known. `limit_pct` and
    `limit_us` are the case's own regression limit; it guards the case, a core one or not.
    """

    name: str
    label: str
    dims: Mapping[str, Scalar]
    ratios: tuple[float, ...]
    placebo: tuple[float, ...] = ()
    device: str | None = None
    core: bool = True
    values: tuple[float, float] | None = None
    same: Same | None = None
    incumbent_ms: float | None = None
    limit_pct: float | None = None
    limit_us: float | None = None
    weight: float = 1.0
    #: What a call takes, and the first one, where both versions were measured.
    memory: Memory | None = None
    first_call_ms: FirstCall | None = None
    #: What was measured at operating points, None on the CPU; and where timed calls find inputs.
    points: PointEvidence | None = None
    cache: str | None = None

    @property
    def second(self) -> Estimate | None:
        """The estimate at the operating point that does not decide, None without one."""
        return self.points.estimate if self.points else None

    @property
    def is_guarded(self) -> bool:
        return self.core or (self.limit_pct, self.limit_us) != (None, None)

    def limit(self, policy: Policy) -> Limit:
        """Return how much longer it may take."""
        return policy.limit(self.limit_pct, self.limit_us, self.incumbent_ms)

    @property
    def is_timed(self) -> bool:
        """Whether the change concerns it, so that there is anything to scatter."""
        return any(self.ratios) or any(self.placebo)


@dataclass(frozen=True, slots=True)
class PairedEvidence:
    """Everything a paired verdict is made from.

    With `gate` "no-regression" the question is only whether a case got slower. With a target among
    the `classes` that class has to improve, not the aggregate.
    """

    metric: str
    cases: tuple[PairedCase, ...]
    gate: Literal["improve", "no-regression"] = "improve"
    flags: tuple[str, ...] = field(default=())
    classes: Classes = NO_CLASSES
    noise: Noise | None = None
    better: Better = "higher"
    #: The sizes of groups were drawn once more: what is kept has to be kept with these, too.
    under_skew: bool = False
    #: No more replicates follow, whatever the look.
    is_last: bool = False

    @property
    def at_end(self) -> bool:
        """Whether this is the last look, which always gives a verdict."""
        return self.is_last or self.replicas == FINAL_LOOK

    @property
    def speed(self) -> str:
        """The quantity that a positive change improves, in words."""
        return Metric(self.metric, self.better).speed

    @property
    def replicas(self) -> int:
        return len(self.cases[0].ratios)

    @property
    def limit_level(self) -> float:
        """The one-sided level at which a case has to be clear of its regression limit."""
        return GATE_LEVEL if self.gate == "no-regression" else SHAPE_LEVEL

    def against_one_copy(self) -> PairedEvidence:
        """Return the evidence against the current best alone: as if its copy never differed."""
        cases = []
        for case in self.cases:
            bias = statistics.fmean(case.placebo or (0.0,))
            cases.append(replace(case, placebo=tuple(a - bias for a in case.placebo)))
        return replace(self, cases=tuple(cases))

    @property
    def excess(self) -> float:
        """How many times its prior today's variance is, all cases together; at least 1."""
        return excess_of(
            (case.ratios, case.placebo, prior)
            for case in self.cases
            if (prior := self.prior([case]))
        )

    @property
    def shares(self) -> Sequence[float]:
        """Each case's share in the incumbent's weighted time, none where a time is not known."""
        times = [case.weight * case.incumbent_ms for case in self.cases if case.incumbent_ms]
        return [ms / math.fsum(times) for ms in times] if len(times) == len(self.cases) else ()

    def prior(self, cases: Sequence[PairedCase], shares: Sequence[float] = ()) -> Prior | None:
        """Return the prior of these cases' mean; a case that is not timed adds nothing to it."""
        shares = shares or [1 / len(cases)] * len(cases)
        timed = {case.name: s for case, s in zip(cases, shares, strict=True) if case.is_timed}
        if self.noise is None or not timed:
            return None
        return self.noise.prior([*timed], [*timed.values()])

    def together(self, cases: Sequence[PairedCase], excess: float) -> Estimate:
        """Return the estimate of the mean of some cases' log-ratios."""
        return _combined(cases, self.prior(cases), excess, mean_of)

    def weighted(self, excess: float) -> Estimate | None:
        """Return the estimate of the weighted time of all cases, None where one is not known."""
        shares = self.shares
        if not shares:
            return None

        def of_time(series: Sequence[Ratios]) -> list[float]:
            # A mean of logarithms by shares would miss how shares move with large changes.
            left = [[math.exp(-ratio) for ratio in ratios] for ratios in series]
            return [-math.log(time) for time in mean_of(left, shares)]

        return _combined(self.cases, self.prior(self.cases, shares), excess, of_time)


def _combined(
    cases: Sequence[PairedCase],
    prior: Prior | None,
    excess: float,
    combine: Callable[[Sequence[Ratios]], list[float]],
) -> Estimate:
    has_control = all(case.placebo for case in cases)
    control = combine([case.placebo for case in cases]) if has_control else ()
    ratios = combine([case.ratios for case in cases])
    return Estimate.of(ratios, control, prior and prior.times(excess))
