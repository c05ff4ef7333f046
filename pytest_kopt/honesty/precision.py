"""Measures how exact a result is, against a reference; `accuracy` judges it.

One rounding is computed, not measured. A reference's gradients come back rounded to their inputs'
dtype, and a result that equals them bit for bit is no more exact than one that is an ulp away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.compare import compute_snr, rounding_snr, vector
from pytest_kopt.numerics.nested import tensors

#: Elements below which a result's SNR is a matter of luck: a few sums may all be near zero.
FEW = 64


def narrow_reference() -> Iterator[Finding]:
    yield Finding(
        "narrow-reference",
        "the reference, computed in float64, differs from itself by more than the tolerance: a "
        "result that is right by either passes",
        advice="have the reference compute in float64: x.double()",
        rejects=False,
    )


def accuracy_of(
    ref: torch.Tensor, out: torch.Tensor, computed_in: torch.dtype = torch.float64
) -> Accuracy:
    """Measure a result of the reference's shape; the reference was `computed_in` a dtype."""
    is_finer = torch.finfo(computed_in).eps < torch.finfo(out.dtype).eps
    is_told = is_finer and out.numel() >= FEW
    return Accuracy(str(out.dtype), compute_snr(ref, out), rounding_snr(ref, out.dtype), is_told)


def mostly(ref: torch.Tensor, out: torch.Tensor) -> float:
    """Return the SNR in dB of the better seven eighths of a result's elements.

    Arithmetic in a narrower dtype shows in all of them. If a quantiser rounds one number the other
    way than the reference does, a row or a column is off, of the incumbent as well.
    """
    signal, output = vector(ref), vector(out.to(ref.device))
    noise = (output - signal).abs()
    most = noise.topk(noise.numel() - noise.numel() // 8, largest=False).indices
    return compute_snr(signal[most], output[most])


def least_exact(results: Sequence[Any]) -> torch.dtype:
    """Return the coarsest floating-point dtype among results, float64 where there is none."""
    dtypes = [result.dtype for result in results if isinstance(result, torch.Tensor)]
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def most_terms(inputs: Any, results: Any, flops: float) -> float:
    """Return how many terms an element of a product may add up, of which torch counts `flops`.

    As many as the smallest of the results takes, or as one dimension has: a softmax may follow.
    """
    smallest = min(tensor.numel() for tensor in tensors(results) if tensor.numel())
    longest = max(n for tensor in tensors(inputs) for n in (1, *tensor.shape))
    return float(max(longest, flops / 2 / smallest))
