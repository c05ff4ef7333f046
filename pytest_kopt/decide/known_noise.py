"""The prior of a comparison: the variance between processes of earlier sessions, or a default.

Two or three processes say little about their own scatter, earlier ones of the same cases say more.
Both are weighed by their degrees of freedom (the moderated t of limma, Smyth 2004). A prior is too
small on a noisier day: it grows by what all of today's cases show together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

#: The source of a prior that sessions of a campaign gave, or `kopt calibrate`.
EARLIER = "earlier processes of these cases"
#: A record with fewer degrees of freedom is no prior yet.
ENOUGH = 6
#: What a record counts for at most: its tails are heavy, and the next session differs.
MOST = 12
#: The share of a default variance that the cases of a session are taken to have in common.
_IN_COMMON = 0.1

Ratios = Sequence[float]


@dataclass(frozen=True, slots=True)
class Prior:
    """A variance of log-ratios between processes, what it counts for, and where it comes from."""

    variance: float
    freedom: float
    source: str

    def times(self, factor: float) -> Prior:
        """Return the prior of a variance `factor` times as large."""
        return replace(self, variance=self.variance * factor)


#: Where nothing was measured before: a case's standard deviation of 0.2 % where the device is
#: timed, 2 % where the host is, with the degrees of freedom that the recorded rounds' variances
#: agree with (`benchmarks/paired_power.py fit`), or fewer: other cards and kernels differ more.
DEVICE_TIMED = Prior(0.002**2, 8, "default: an H200 (docs/paired.md)")
HOST_TIMED = Prior(0.02**2, 5, "default: a busy CPU (docs/paired.md)")
#: The same under load, in which the clock wanders, where each version was timed in turns of so many
#: s: the variance falls with the time (docs/operating-points.md).
UNDER_LOAD, TURN_S = Prior(0.02**2, 6, "default: an H100 (docs/operating-points.md)"), 0.4


@dataclass(frozen=True, slots=True)
class Noise:
    """Earlier processes, and what holds without them, for a case.

    Each of `series` has one arm's log-ratios of one session, by case.
    """

    series: tuple[Mapping[str, Ratios], ...]
    default: Prior

    def prior(self, cases: Collection[str], shares: Sequence[float] | None = None) -> Prior:
        """Return the prior of the mean of these cases (at least one), each with its share in it.

        Without `shares` all have the same, which add up to 1.
        """
        shares = shares or [1 / len(cases)] * len(cases)
        complete = [series for series in self.series if all(case in series for case in cases)]
        means = (mean_of([series[case] for case in cases], shares) for series in complete)
        variance, freedom = variance_of(*means)
        if freedom >= ENOUGH and variance:
            return Prior(variance, min(freedom, MOST), EARLIER)
        own = math.fsum(share**2 for share in shares)
        return self.default.times((1 - _IN_COMMON) * own + _IN_COMMON * math.fsum(shares) ** 2)


def mean_of(cases: Sequence[Ratios], shares: Sequence[float] | None = None) -> list[float]:
    """Return the mean over cases of each replica's log-ratio, all alike or by their shares."""
    shares = shares or [1 / len(cases)] * len(cases)
    return [
        math.fsum(share * ratio for share, ratio in zip(shares, ratios, strict=True))
        for ratios in zip(*cases, strict=True)
    ]


def variance_of(*series: Ratios) -> tuple[float, int]:
    """Return the variance that series with means of their own share, and its freedom (0: none)."""
    freedom = sum(max(0, len(ratios) - 1) for ratios in series)
    return sum(map(_squares, series)) / freedom if freedom else 0.0, freedom


def _squares(ratios: Ratios) -> float:
    mean = math.fsum(ratios) / len(ratios) if ratios else 0.0
    return math.fsum((ratio - mean) ** 2 for ratio in ratios)
