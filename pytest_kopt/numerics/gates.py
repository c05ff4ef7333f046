"""Gates: what an output has to meet to be called correct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.snr import SNR_THRESHOLDS, snr_threshold

#: rtol = atol by dtype name. fp8 and fp4 exist for diagnosis and never gate.
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
DIAGNOSTIC_TOLERANCES = {"float8": 1e-1, "float4": 0.5}


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured between an output and its reference.

    `snr_db` in dB; `max_abs` and the worst values in the output's unit; `relative` is
    ‖ref − out‖ / ‖ref‖; `mismatch_share` the share of elements out of tolerance.
    """

    snr_db: float
    max_abs: float
    relative: float
    cosine: float
    worst_index: tuple[int, ...]
    worst_ref: float
    worst_out: float
    mismatch_share: float
    bitwise_equal: bool


class Gate(Protocol):
    """A condition on an output; `rtol` and `atol` define which elements count as mismatched."""

    @property
    def rtol(self) -> float: ...

    @property
    def atol(self) -> float: ...

    def passes(self, figures: Figures) -> bool:
        """Say whether the figures meet the gate."""

    def describe(self) -> str:
        """Return the gate in a few words."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """allclose: |out − ref| ≤ atol + rtol·|ref| for every element."""

    rtol: float
    atol: float

    def passes(self, figures: Figures) -> bool:
        return figures.mismatch_share == 0

    def describe(self) -> str:
        return f"allclose(rtol={self.rtol:g}, atol={self.atol:g})"


@dataclass(frozen=True, slots=True)
class Snr:
    """SNR in dB at or above a threshold; `format` is the one it was named by, such as "e4m3"."""

    threshold: float
    rtol: float = DIAGNOSTIC_TOLERANCES["float8"]
    atol: float = DIAGNOSTIC_TOLERANCES["float8"]
    format: str | None = None

    def passes(self, figures: Figures) -> bool:
        return figures.snr_db >= self.threshold

    def describe(self) -> str:
        return f"SNR >= {self.threshold:g} dB"


@dataclass(frozen=True, slots=True)
class Bitwise:
    """Every element has the same bits' value as the reference (rtol = atol = 0)."""

    rtol: float = 0.0
    atol: float = 0.0

    def passes(self, figures: Figures) -> bool:
        return figures.bitwise_equal

    def describe(self) -> str:
        return "bitwise equal"


def tolerance(*, rtol: float, atol: float) -> Tolerance:
    """Return an allclose gate; BadInput for a negative or NaN tolerance."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not value >= 0:
            raise BadInput(f"{name} is {value!r}", legal="a number >= 0")
    return Tolerance(float(rtol), float(atol))


def snr(threshold: str | float) -> Snr:
    """Return an SNR gate from a format ("e4m3", "e5m2", "fp4") or a number of dB."""
    named = threshold.lower() if isinstance(threshold, str) else None
    return Snr(snr_threshold(threshold), format=named)


def bitwise() -> Bitwise:
    """Return the gate that asks for equality of every element."""
    return Bitwise()


def get_tolerances(dtype: torch.dtype) -> dict[str, float]:
    """Return `{"rtol": …, "atol": …}` for an output dtype.

    float32: 1e-4; float16 and bfloat16: 1e-2; fp8: 1e-1 and fp4: 0.5, for diagnosis only.
    Raises BadInput for any other dtype.
    """
    name = _name(dtype)
    found = TOLERANCES.get(name) or DIAGNOSTIC_TOLERANCES.get(name.partition("_")[0])
    if found is None:
        raise BadInput(
            f"dtype {name} has no tolerance",
            legal=[*TOLERANCES, "fp8/fp4 for diagnosis", "or an explicit gate"],
        )
    return {"rtol": found, "atol": found}


def default_gate(dtype: torch.dtype) -> Gate:
    """Return a dtype's gate: allclose, the format's SNR for fp8 and fp4, equality for integers."""
    if not dtype.is_floating_point and not dtype.is_complex:
        return Bitwise()
    name = _name(dtype)
    if name.startswith("float4"):
        wide = DIAGNOSTIC_TOLERANCES["float4"]
        return Snr(SNR_THRESHOLDS["fp4"], rtol=wide, atol=wide)
    if name.startswith("float8_"):
        return snr(name.removeprefix("float8_")[:4])
    return Tolerance(**get_tolerances(dtype))


def encoding(dtype: torch.dtype) -> str | None:
    """Return OCP or FNUZ for an 8-bit float dtype, None for any other."""
    name = _name(dtype)
    if not name.startswith("float8_"):
        return None
    return "FNUZ" if name.endswith("fnuz") else "OCP"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
