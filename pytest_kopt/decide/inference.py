"""Statistics of a paired comparison: what one fresh process says, and what several say together.

The unit of inference is the fresh process, never the pair: pairs inside a process share its memory
layout. Times are compared as log-ratios, so that a gain of x and a loss of x cancel.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeAlias

from pydantic import Field

from pytest_kopt.decide.known_noise import Prior, Ratios, variance_of
from pytest_kopt.figures import CHANGE

#: The replicates before each interim look, and its one-sided level (alpha spending). The levels add
#: up to the rate at which identical code is accepted by chance; `benchmarks/paired_power.py` shows
#: that recorded replicates, whose tails are heavier than the normal distribution's, stay below it.
LOOKS: Mapping[int, float] = {2: 0.0004, 4: 0.0016, 8: 0.0045}
FINAL_LOOK = max(LOOKS)
#: One-sided level of the bound that keeps a case away from the shape gate.
SHAPE_LEVEL = 0.025
#: The same where a gate says that a case is not slower: nobody looks at that change again.
GATE_LEVEL = 0.003
#: Two separate processes are known to differ by this much for good, whatever the code. A class that
#: is shown slower by less holds: that is also what a kernel that dispatches may cost.
KNOWN_BIAS_PCT = 0.3


#: Processes scatter by this share of a change besides, and by a log-ratio of so much at most, as
#: buffers lie elsewhere in each and the versions differ in what that costs them: twelve known
#: changes on two H100 (docs/operating-points.md).
_SHARE_THAT_SCATTERS, _MOST_SCATTER = 0.1, 0.01
#: An interval in a document: the keys low_pct, high_pct and confidence next to change_pct.
LowEnd: TypeAlias = Annotated[
    float | None,
    Field(description="lower end of the interval of change_pct, in percent; null: no interval"),
]
HighEnd: TypeAlias = Annotated[
    float | None,
    Field(description="upper end of the interval of change_pct, in percent; null: no interval"),
]
Confidence: TypeAlias = Annotated[
    float | None,
    Field(description="confidence level of the interval, 0 to 1; null: no interval"),
]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of replicates' log-ratios with its standard error and degrees of freedom.

    Bounds and p-values cover both copies of the current best: a machine may treat one
    differently, and then only the other shows a gain or a loss.
    """

    mean: float
    error: float
    freedom: float
    #: Mean log-ratio of the current best and its copy: the A/A control.
    copy: float = 0.0

    @classmethod
    def of(cls, values: Ratios, control: Ratios = (), prior: Prior | None = None) -> Estimate:
        """Estimate from at least two replicates.

        Their scatter is weighed with that of `control`, which is measured in the same processes,
        and with a prior. The prior knows how identical code scatters; a change adds a share of it.
        """
        mean, (variance, freedom) = statistics.fmean(values), variance_of(values, control)
        total = float(freedom)
        if prior:
            total += prior.freedom
            known = prior.variance + scatter_of(mean) ** 2
            variance = (freedom * variance + prior.freedom * known) / total
        copy = statistics.fmean(control) if control else 0.0
        return cls(mean, math.sqrt(variance / len(values)), total, copy)

    def lower(self, level: float) -> float:
        """Return the lower bound against the copy that makes the candidate slower."""
        least = min(self.mean, self.mean - self.copy)
        return least - student_quantile(self.freedom, 1 - level) * self.error

    def upper(self, level: float) -> float:
        """Return the upper bound against the copy that makes the candidate faster."""
        return self._most + student_quantile(self.freedom, 1 - level) * self.error

    def figures(self, level: float) -> dict[str, float]:
        """Return it with its bounds as a verdict has them, in percent."""
        figures = (self.mean, self.lower(level), self.upper(level))
        return dict(zip(CHANGE, map(percent, figures), strict=True))

    def p_below(self, limit: float) -> float:
        """Return the one-sided p-value of the hypothesis that the truth is at or above `limit`."""
        if self.error == 0:
            return 0.0 if self._most < limit else 1.0
        from scipy.special import stdtr

        return float(stdtr(self.freedom, (self._most - limit) / self.error))

    def p_above(self, limit: float) -> float:
        """Return the one-sided p-value of the hypothesis that the truth is at or below `limit`."""
        return Estimate(-self.mean, self.error, self.freedom, -self.copy).p_below(-limit)

    @property
    def _most(self) -> float:
        """The mean against the copy that makes the candidate faster."""
        return max(self.mean, self.mean - self.copy)


def scatter_of(change: float) -> float:
    """Return what a change, as a log-ratio, adds to the standard deviation between processes."""
    return min(_SHARE_THAT_SCATTERS * abs(change), _MOST_SCATTER)


def load_student() -> None:
    """Load scipy where somebody is waited for anyway: it takes a quarter of a second, or more."""
    import scipy.special  # noqa: F401


@lru_cache(maxsize=1000)
def student_quantile(freedom: float, probability: float) -> float:
    """Return Student's t with P(T <= t) = `probability` for these degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def replica_ratio(quads: Sequence[Sequence[tuple[str, float]]], first: str, second: str) -> float:
    """Return one process's log-ratio log(time of `second` / time of `first`) for a case.

    `quads` are ABBA or BAAB sequences of (arm, ms). Adjacent blocks form pairs, two a quad, and the
    median of all pairs counts: a clock that steps between two blocks spoils their pair only.
    """
    ratios = []
    for quad in quads:
        for left, right in ((quad[0], quad[1]), (quad[2], quad[3])):
            times = dict([left, right])
            ratios.append(math.log(times[second] / times[first]))
    return statistics.median(ratios)


def holm_rejects(p_values: Mapping[str, float], level: float) -> set[str]:
    """Return the hypotheses that Holm's step-down procedure rejects at a family-wise level."""
    rejected: set[str] = set()
    for i, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        if p_values[name] > level / (len(p_values) - i):
            break
        rejected.add(name)
    return rejected


def percent(log_ratio: float) -> float:
    """Return a log-ratio as a change in percent, positive is better."""
    return math.expm1(log_ratio) * 100


def log_ratio(change_pct: float) -> float:
    """Return a change in percent as a log-ratio."""
    return math.log1p(change_pct / 100)
