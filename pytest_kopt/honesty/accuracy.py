"""The record of how exact a result was; `precision` measures and judges it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How exact one result was: its dtype, its SNR and that of one rounding to it, in dB.

    `is_told` unless the reference computed in no wider a dtype than the result's, as what it got
    wrong itself is unknown then, or the result has too few elements for its SNR to be more than
    luck. `layout` is how it lay in memory, `terms` how many an element of a product may add up;
    None where that was not recorded.
    """

    dtype: str
    snr_db: float
    rounding_db: float
    is_told: bool = True
    layout: str | None = None
    terms: float | None = None
