"""Estimates of several cases together: their geometric mean, and their weighted time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pytest_kopt.decide.inference import Estimate
from pytest_kopt.decide.known_noise import Prior, Ratios, mean_of
from pytest_kopt.decide.paired_evidence import PairedCase, PairedEvidence


def whole(evidence: PairedEvidence) -> Estimate:
    """Return the estimate that the geometric mean of all cases is judged by."""
    return together(evidence.cases, evidence, evidence.excess)


def together(cases: Sequence[PairedCase], evidence: PairedEvidence, excess: float) -> Estimate:
    """Return the estimate of the mean of some cases' log-ratios."""
    return _combined(cases, evidence.prior(cases), excess, mean_of)


def weighted(evidence: PairedEvidence, excess: float) -> Estimate | None:
    """Return the estimate of the weighted time of all cases, None where one is not known."""
    shares, cases = evidence.shares, evidence.cases
    if not shares:
        return None

    def of_time(series: Sequence[Ratios]) -> list[float]:
        # A mean of logarithms by shares would miss how shares move with large changes.
        left = [[math.exp(-ratio) for ratio in ratios] for ratios in series]
        return [-math.log(time) for time in mean_of(left, shares)]

    return _combined(cases, evidence.prior(cases, shares), excess, of_time)


def _combined(
    cases: Sequence[PairedCase],
    prior: Prior | None,
    excess: float,
    combine: Callable[[Sequence[Ratios]], list[float]],
) -> Estimate:
    common = min(len(case.ratios) for case in cases)
    control: Sequence[float] = ()
    if all(case.placebo for case in cases):
        control = combine([case.placebo[:common] for case in cases])
    ratios = combine([case.ratios[:common] for case in cases])
    return Estimate.of(ratios, control, prior and prior.times(excess))
