"""The results a kernel owes: as exact as its dtype and its baseline, of the baseline's types.

A tolerance of 1e-4 lets float16 arithmetic pass for float32. The yardsticks are one rounding to the
output's dtype, which is all that a dtype costs, and what the baseline reached in this case.
`precision` measures both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_kopt.figures import in_unit
from pytest_kopt.honesty.finding import Finding

if TYPE_CHECKING:
    import torch

#: dB that a candidate may be worse than the frozen baseline: four times the error.
WORSE_DB = 12.0
#: dB below one rounding: several roundings of intermediate results in the dtype itself.
_SEVERAL_ROUNDINGS = 15.0
#: dB on top of the error of adding up one term after the other.
_SUMMING = 6.0
#: dB above one rounding to float16, below which float32 was not what was computed in.
_ABOVE_HALF = 12.0
_SINGLE, _HALF = "torch.float32", "torch.float16"
#: How a result may lie in memory; rows may be padded.
IN_ORDER, ANOTHER_ORDER = "in order", "in another order"
#: Bits of a significand by dtype; the dtypes whose accuracy is judged.
_BITS = {_SINGLE: 24, _HALF: 11, "torch.bfloat16": 8}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How exact one result was: its dtype, its SNR and that of one rounding to it, in dB.

    `is_told` unless the reference computed in no wider a dtype than the result's, as its own error
    is unknown then. Nor is it told if the result has too few elements for its SNR to be more than
    luck. `layout` is how it lay in memory, `terms` how many an element of a product may add up;
    None where that was not recorded.
    """

    dtype: str
    snr_db: float
    rounding_db: float
    is_told: bool = True
    layout: str | None = None
    terms: float | None = None


def _below_single(dtype: str) -> float:
    """Return the dB by which one rounding to a dtype is worse than one to float32."""
    return 20 * math.log10(2 ** (_BITS[_SINGLE] - _BITS[dtype]))


def least_snr(accuracy: Accuracy, count: float) -> float:
    """Return the SNR in dB that honest arithmetic in a result's dtype reaches.

    float32: adding `count` terms one after the other costs 10·log10(count / 2) dB against a single
    rounding (errors of random signs, each of the running sum's size). For very long sums, and where
    that can't be told, whatever float16 does not reach is enough. Narrower dtypes accumulate in
    float32 and lose a few roundings of intermediate results.
    """
    if accuracy.dtype != _SINGLE:
        return accuracy.rounding_db - _SEVERAL_ROUNDINGS
    summed = accuracy.rounding_db - 10 * math.log10(max(count, 2) / 2) - _SUMMING
    half = accuracy.rounding_db - _below_single(_HALF) + _ABOVE_HALF
    return max(summed, half) if accuracy.is_told else min(summed, half)


def downgrades(
    accuracy: Mapping[str, Accuracy],
    baseline: Mapping[str, Accuracy],
    inputs: Sequence[torch.Tensor],
) -> Iterator[Finding]:
    """Name results of another dtype than the baseline's, or far less exact.

    Another dtype breaks the kernel's contract, and is no accusation. Nor is a float32 result of
    narrower inputs that is as exact as arithmetic in their dtype.

    By name of the result; nothing is said of one that the baseline does not know. A global norm
    adds up as many terms as the inputs have elements. The baseline knows the number of terms in
    products.
    """
    floating = [tensor.dtype for tensor in inputs if tensor.dtype.is_floating_point]
    widest = str(max(floating, key=lambda dtype: dtype.itemsize, default=""))
    for name, now in accuracy.items():
        before = baseline.get(name)
        if before is None:
            continue
        if now.dtype != before.dtype:
            yield Finding(
                "output-dtype",
                f"{name} is {now.dtype}, the baseline's is {before.dtype}",
                advice="return the dtype of the baseline",
                rejects=False,
            )
            continue
        if now.dtype not in _BITS or not math.isfinite(now.snr_db):
            continue
        least = least_snr(now, before.terms or sum(x.numel() for x in inputs))
        # What arithmetic in the dtype of narrower inputs reaches.
        of_inputs = math.inf
        if now.dtype == _SINGLE and widest in _BITS.keys() - {_SINGLE}:
            of_inputs = now.rounding_db - _below_single(widest) - _SEVERAL_ROUNDINGS
        if now.snr_db < min(least, before.snr_db - WORSE_DB):
            yield Finding(
                "precision-downgrade",
                (
                    f"{name} has {in_unit(now.snr_db, 'dB')} of SNR, the baseline "
                    f"{in_unit(before.snr_db, 'dB')}; arithmetic in {now.dtype} reaches "
                    f"{in_unit(least, 'dB')}"
                ),
                advice="compute in the declared precision",
                rejects=now.snr_db < of_inputs,
            )


def downgrades_when_timed(
    timed: Mapping[str, Accuracy], untimed: Mapping[str, Accuracy]
) -> Iterator[Finding]:
    """Name results that are far less exact in a timed call than in another one of equal inputs."""
    for name, now in timed.items():
        if name not in untimed or now.dtype not in _BITS or not math.isfinite(now.snr_db):
            continue
        other_db = min(untimed[name].snr_db, now.rounding_db)
        if now.snr_db < other_db - WORSE_DB:
            yield Finding(
                "precision-downgrade",
                f"{name} has {in_unit(now.snr_db, 'dB')} of SNR in a timed call, "
                f"{in_unit(other_db, 'dB')} or more in another call for the same inputs",
                advice="compute in the same precision in every call",
            )


def other_results(
    accuracy: Mapping[str, Accuracy], baseline: Mapping[str, Accuracy]
) -> Iterator[Finding]:
    """Name results that the baseline returned and that are missing, or lie in memory otherwise."""
    for name, before in baseline.items():
        if name not in accuracy:
            message = f"{name} is missing, though the baseline returned it"
            advice = "return what the baseline returns"
            yield Finding("output-type", message, advice=advice, rejects=False)
            continue
        layout = accuracy[name].layout
        if layout in (None, IN_ORDER, before.layout) or before.layout not in (
            IN_ORDER,
            ANOTHER_ORDER,
        ):
            continue
        if layout == ANOTHER_ORDER:
            check, message = "output-order", f"{name} lies {layout}"
            advice = "in a comparison the copy into the baseline's order is timed as well"
        else:
            check = "output-layout"
            message = f"{name} is {layout}, the baseline's has memory of its own"
            advice = "return a copy: who uses the result may write to it, or to the input"
        yield Finding(check, message, advice=advice, rejects=False)
