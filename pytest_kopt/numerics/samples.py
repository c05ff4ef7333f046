"""Whether two functions draw from one distribution, by figures of whole calls.

Elements of one call may depend on each other, and calls do not: so each call is reduced to a few
figures, and those of one function's calls are compared with the other's by the two-sample test of
Kolmogorov and Smirnov. Its error rate holds for any distribution, discrete ones too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pytest_kopt.numerics.snr import vector

#: A result of at most so many different values is counted value by value, else between quantiles.
_VALUES, _QUANTILES = 16, 8
#: Elements that say which values there are.
_SAMPLED = 1 << 16
#: Calls of each function, more of them where a result has few elements.
_FEWEST, _MOST, _ELEMENTS = 256, 2048, 1 << 21


def draws_for(elements: int) -> int:
    """Return how many calls of each function are compared for a result of so many elements."""
    return max(_FEWEST, min(_MOST, _ELEMENTS // max(elements, 1)))


class CallFigures:
    """Reduces a call's result, a tensor of any shape and dtype, to figures by name.

    They refer to the mean that some calls of the reference have, which are not compared.
    """

    def __init__(self, pilot: Sequence[torch.Tensor]) -> None:
        self._row = pilot[0].shape[-1] if pilot[0].ndim > 1 else 0
        self._mean = sum((vector(out) for out in pilot[1:]), vector(pilot[0])) / len(pilot)
        first = vector(pilot[0])
        sample = first[:: max(1, first.numel() // _SAMPLED)]
        values = sample.unique()
        if len(values) > _VALUES:
            steps = torch.arange(1, _QUANTILES, dtype=sample.dtype, device=sample.device)
            values = sample.quantile(steps / _QUANTILES).unique()
        self._edges = values

    def __call__(self, out: torch.Tensor) -> dict[str, float]:
        drawn = vector(out).to(self._mean.device)
        rest = drawn - self._mean
        bins = torch.bucketize(drawn, self._edges)
        counts = torch.bincount(bins, minlength=len(self._edges) + 1).tolist()
        figures = {
            "the sum": drawn.sum(),
            "the part along the mean": drawn @ self._mean,
            "the variance": rest @ rest,
            "the product of neighbours": rest[1:] @ rest[:-1],
        }
        if self._row:
            figures["the product of rows"] = rest[self._row :] @ rest[: -self._row]
        by_value = {
            f"the count up to {edge:.4g}": float(count)
            for edge, count in zip([*self._edges.tolist(), math.inf], counts, strict=True)
        }
        return {name: float(figure) for name, figure in figures.items()} | by_value


def difference(
    reference: Mapping[str, Sequence[float]],
    function: Mapping[str, Sequence[float]],
    error_rate: float,
) -> str:
    """Return how the figures of calls differ, "" where that may be chance.

    Both map names to one number a call. `error_rate` is how often functions that draw from one
    distribution are told apart, over all names together.
    """
    from scipy.stats import ks_2samp

    tests: dict[str, Any] = {
        name: ks_2samp(numbers, function[name], method="exact")
        for name, numbers in reference.items()
    }
    name = min(tests, key=lambda name: float(tests[name].pvalue))
    if tests[name].pvalue * len(tests) >= error_rate:
        return ""
    moments = (_moments(numbers[name]) for numbers in (function, reference))
    return (
        f"is drawn from another distribution than the reference's: {name} is {next(moments)} over "
        f"{len(function[name])} calls, the reference's {next(moments)}; Kolmogorov-Smirnov "
        f"distance {tests[name].statistic:.2f}, p = {tests[name].pvalue:.1g}"
    )


def _moments(numbers: Sequence[float]) -> str:
    drawn = torch.tensor(numbers, dtype=torch.float64)
    return f"{drawn.mean():.6g} ± {drawn.std():.2g}"
