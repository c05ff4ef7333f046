"""The accuracy a kernel owes: as good as its dtype and its baseline, whatever the gate allows.

A tolerance of 1e-4 lets float16 arithmetic pass for float32. The yardsticks are one rounding to the
output's dtype, which is all that a dtype costs, and what the baseline reached in this case. One
rounding is computed, not measured: a reference's gradients come back rounded to their inputs'
dtype, and a result that equals them bit for bit is no more exact than one that is an ulp away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.nested import tensors
from pytest_kopt.numerics.snr import compute_snr, rounding_snr, vector

#: dB that a candidate may be worse than the frozen baseline: four times the error.
_WORSE_THAN_BASELINE = 12.0
#: dB below one rounding: several roundings of intermediate results in the dtype itself.
_SEVERAL_ROUNDINGS = 15.0
#: dB on top of the error of adding up one term after the other.
_SUMMING = 6.0
#: dB above one rounding to float16, below which float32 was not what was computed in.
_ABOVE_HALF = 12.0
#: dB by which one rounding to float16 is worse than one to float32: 13 bits.
_HALF_BELOW_SINGLE = -20 * math.log10(2**13)
#: Elements below which a result's SNR is a matter of luck: a few sums may all be near zero.
FEW = 64
_CHECKED = (torch.float32, torch.float16, torch.bfloat16)


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

    Arithmetic in a narrower dtype shows in all of them; where a quantiser rounds one number the
    other way than the reference does, a row or a column is off, of the incumbent as well.
    """
    signal, output = vector(ref), vector(out.to(ref.device))
    noise = (output - signal).abs()
    most = noise.topk(noise.numel() - noise.numel() // 8, largest=False).indices
    return compute_snr(signal[most], output[most])


def least_exact(results: Sequence[Any]) -> torch.dtype:
    """Return the coarsest floating-point dtype among results, float64 where there is none."""
    dtypes = [item.dtype for item in results if isinstance(item, torch.Tensor)]
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def most_terms(given: Any, results: Any, flops: float) -> float:
    """Return how many terms an element of a product may add up, of which torch counts `flops`.

    As many as the smallest of the results takes, or as one dimension has: a softmax may follow.
    """
    smallest = min(item.numel() for item in tensors(results) if item.numel())
    longest = max(n for item in tensors(given) for n in (1, *item.shape))
    return float(max(longest, flops / 2 / smallest))


def least_snr(accuracy: Accuracy, dtype: torch.dtype, count: float) -> float:
    """Return the SNR in dB that honest arithmetic in a dtype reaches.

    float32: adding `count` terms one after the other costs 10·log10(count / 2) dB against a single
    rounding (errors of random signs, each of the running sum's size); where that can't be told, and
    of very long sums, whatever float16 does not reach is enough. Narrower dtypes accumulate in
    float32 and lose a few roundings of intermediate results.
    """
    if dtype is not torch.float32:
        return accuracy.rounding_db - _SEVERAL_ROUNDINGS
    summed = accuracy.rounding_db - 10 * math.log10(max(count, 2) / 2) - _SUMMING
    half = accuracy.rounding_db + _HALF_BELOW_SINGLE + _ABOVE_HALF
    return max(summed, half) if accuracy.is_told else min(summed, half)


def downgrades(
    accuracy: Mapping[str, Accuracy],
    baseline: Mapping[str, Accuracy],
    elements: float,
) -> Iterator[Finding]:
    """Name results of another dtype than the baseline's, or far less exact.

    Another dtype breaks the kernel's contract, and is no accusation.

    By name of the result; nothing is said of one that the baseline does not know. `elements` are
    the inputs': as many terms as a global norm adds up. Of products the baseline knows how many.
    """
    for name, now in accuracy.items():
        before = baseline.get(name)
        if before is None:
            continue
        if now.dtype != before.dtype:
            yield Finding(
                "output-dtype",
                f"{name} is {now.dtype}, the baseline's is {before.dtype}",
                advice="keep the dtype: whatever uses the result expects it, and the tolerance "
                "depends on it",
                rejects=False,
            )
            continue
        dtype = getattr(torch, now.dtype.removeprefix("torch."))
        if dtype not in _CHECKED or not math.isfinite(now.snr_db):
            continue
        least = least_snr(now, dtype, before.terms or elements)
        if now.snr_db < min(least, before.snr_db - _WORSE_THAN_BASELINE):
            yield Finding(
                "precision-downgrade",
                f"{name} has {now.snr_db:.1f} dB of SNR where the baseline has "
                f"{before.snr_db:.1f} dB and arithmetic in {dtype} reaches {least:.1f} dB",
                advice="compute in the declared precision; a narrower one is another operation",
            )
