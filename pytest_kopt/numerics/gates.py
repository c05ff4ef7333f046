"""Gates: what an output has to meet to be called correct."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_kopt.errors import BadInput

if TYPE_CHECKING:
    import torch

#: SNR in dB by number format; reaching it passes.
SNR_THRESHOLDS = {"e4m3": 25.0, "e5m2": 20.0, "fp4": 10.0}
#: rtol = atol by dtype name. fp8 and fp4 exist for diagnosis and never gate.
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
DIAGNOSTIC_TOLERANCES = {"float8": 1e-1, "float4": 0.5}


@dataclass(frozen=True, slots=True)
class Figures:
    """The distances between an output and its reference.

    `snr_db` in dB; `max_abs`, `rms_error` (root mean square) and the worst values in the output's
    unit. `relative` is ‖ref − out‖ / ‖ref‖, `mismatch_share` the share of elements out of
    tolerance.
    """

    snr_db: float
    max_abs: float
    rms_error: float
    relative: float
    cosine: float
    worst_index: tuple[int, ...]
    worst_ref: float
    worst_out: float
    mismatch_share: float
    bitwise_equal: bool


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition on an output; `rtol` and `atol` define which elements count as mismatched.

    That none does (allclose: |out − ref| ≤ atol + rtol·|ref| for every element); or an SNR in dB of
    `threshold`, with the `format` that it was named by, such as "e4m3". An error whose root mean
    square is at most `rms_error` passes as well: the SNR of a sum whose terms cancel says nothing.
    If it `is_exact`, every element has the value of the reference. With an `error_rate` calls are
    compared in distribution, elsewhere (`compare.difference`), and one result passes if it is
    finite.
    """

    rtol: float = 0.0
    atol: float = 0.0
    threshold: float | None = None
    format: str | None = None
    is_exact: bool = False
    error_rate: float | None = None
    rms_error: float = 0.0

    def passes(self, figures: Figures) -> bool:
        if self.error_rate is not None:
            return True
        if self.threshold is not None:
            return figures.snr_db >= self.threshold or figures.rms_error <= self.rms_error
        return figures.bitwise_equal if self.is_exact else figures.mismatch_share == 0

    def implies(self, looser: Gate) -> bool:
        """Say whether all that passes this gate passes another one."""
        if self.error_rate is not None or looser.error_rate is not None:
            return (self.error_rate or 0.0) >= (looser.error_rate or math.inf)
        if self.threshold is None and self.rtol == self.atol == 0:
            return True
        if self.threshold is not None and looser.threshold is not None:
            return self.threshold >= looser.threshold and self.rms_error <= looser.rms_error
        is_alike = self.threshold is looser.threshold and not looser.is_exact
        return is_alike and self.rtol <= looser.rtol and self.atol <= looser.atol

    def wider(self, factor: float) -> Gate:
        """Return the gate for errors that are larger by a factor; an exact one stays."""
        if self.threshold is not None:
            threshold = self.threshold - 20 * math.log10(factor)
            return replace(self, threshold=threshold, rms_error=self.rms_error * factor)
        return replace(self, rtol=self.rtol * factor, atol=self.atol * factor)

    def describe(self) -> str:
        """Return the gate in a few words."""
        if self.error_rate is not None:
            return f"the reference's distribution, error rate {self.error_rate:g}"
        if self.threshold is not None:
            small = f" or RMS error <= {self.rms_error:.2g}" if self.rms_error else ""
            return f"SNR >= {self.threshold:g} dB{small}"
        allclose = f"allclose(rtol={self.rtol:g}, atol={self.atol:g})"
        return "bitwise equal" if self.is_exact else allclose


def tolerance(*, rtol: float, atol: float) -> Gate:
    """Return an allclose gate; BadInput for a negative or NaN tolerance."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not value >= 0:
            raise BadInput(f"{name} is {value!r}", legal="a number >= 0")
    return Gate(float(rtol), float(atol))


def snr(threshold: str | float) -> Gate:
    """Return an SNR gate from a format ("e4m3", "e5m2", "fp4") or a finite number of dB."""
    named = threshold.lower() if isinstance(threshold, str) else None
    least = SNR_THRESHOLDS.get(named) if named is not None else float(threshold)
    if least is None:
        legal = [*SNR_THRESHOLDS, "a number of dB"]
        raise BadInput(f"SNR gate {threshold!r} is unknown", legal=legal)
    if not math.isfinite(least):
        raise BadInput(f"SNR gate is {threshold!r}", legal="a finite number of dB")
    wide = DIAGNOSTIC_TOLERANCES["float8"]
    return Gate(wide, wide, least, named)


def bitwise() -> Gate:
    """Return the gate that asks for equality of every element."""
    return Gate(is_exact=True)


def get_tolerances(dtype: torch.dtype) -> dict[str, float]:
    """Return `{"rtol": …, "atol": …}` for an output dtype.

    float32: 1e-4; float16 and bfloat16: 1e-2; fp8: 1e-1 and fp4: 0.5, for diagnosis only.
    Raises BadInput for any other dtype.
    """
    name = _name(dtype)
    tolerance = TOLERANCES.get(name) or DIAGNOSTIC_TOLERANCES.get(name.partition("_")[0])
    if tolerance is None:
        raise BadInput(
            f"dtype {name} has no tolerance",
            legal=[*TOLERANCES, "fp8/fp4 for diagnosis", "or an explicit gate"],
        )
    return {"rtol": tolerance, "atol": tolerance}


def relative_db(dtype: torch.dtype) -> float | None:
    """Return the SNR in dB of an error as large as a dtype's relative tolerance: 80 for float32."""
    relative = TOLERANCES.get(_name(dtype))
    return None if relative is None else -20 * math.log10(relative)


def default_gate(dtype: torch.dtype) -> Gate:
    """Return a dtype's gate: allclose, the SNR of e4m3, e5m2 and fp4, else equality.

    e8m0 has no significand: its numbers are exponents, and exact like integers.
    """
    name = _name(dtype)
    is_float = dtype.is_floating_point or dtype.is_complex
    if not is_float or name.startswith("float8_e8m0"):
        return bitwise()
    if name.startswith("float4"):
        wide = DIAGNOSTIC_TOLERANCES["float4"]
        return Gate(wide, wide, SNR_THRESHOLDS["fp4"])
    if name.startswith("float8_"):
        return snr(name.removeprefix("float8_")[:4])
    return tolerance(**get_tolerances(dtype))


def encoding(dtype: torch.dtype) -> str | None:
    """Return OCP or FNUZ for an 8-bit float dtype, None for any other."""
    name = _name(dtype)
    if not name.startswith("float8_"):
        return None
    return "FNUZ" if name.endswith("fnuz") else "OCP"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
