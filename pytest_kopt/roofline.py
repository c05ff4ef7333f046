"""Rooflines: what a case can reach on its device, what it reaches, and what bounds it.

The model is that of Williams, Waterman and Patterson (Communications of the ACM 52(4), 2009). Work
of F FLOPs on Q bytes takes at least max(F/P, Q/W) with a FLOP rate P and a bandwidth W. A launch
takes time too, so the floor is max(F/P, Q/W, launch), and its largest term names the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from pytest_kopt.figures import in_unit
from pytest_kopt.models import Document, optional

#: The share of the attainable rate that counts as reached (T2, Stop Conditions).
TARGET_PCT = 90.0
#: Beyond this share of the attainable rate less was done than is declared: no measured ceiling is
#: that far off.
POSSIBLE_PCT = 105.0

Bound = Literal["compute", "memory", "launch", "UNKNOWN"]
Way = Literal["forward", "backward"]
Band = Literal["below 50 %", "50 to 80 %", "80 to 100 %", "above 100 %"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a device for one case.

    `rate` in TFLOPS, `bandwidth` in TB/s, None when UNKNOWN; `launch_us` per launch, 0 when not
    measured. `sources` cite where rate and bandwidth come from.
    """

    rate: float | None
    bandwidth: float | None
    launch_us: float
    sources: tuple[str, str]


class Roofline(Document):
    """One direction of one case.

    `attainable`, `achieved` and `target` are in `unit`: TFLOPS where FLOPs are declared, GB/s else.
    """

    label: str = Field(description="name of the case")
    way: Way = Field(description="direction")
    bound: Bound = Field(description="the limit that binds: arithmetic, bandwidth or launches")
    flops: float | None = optional("floating-point operations of a call")
    nbytes: float | None = optional("bytes that a call has to move")
    intensity: float | None = optional("FLOP per byte")
    ridge: float | None = optional("FLOP per byte where the bounds meet")
    unit: Literal["TFLOPS", "GB/s"] = Field(
        default="TFLOPS", description="unit of attainable, achieved and target"
    )
    attainable: float | None = optional("the highest rate that the device allows for this case")
    achieved: float | None = optional("the candidate's rate, from its own row and not from pairs")
    achieved_pct: float | None = optional("of the attainable rate")
    target: float | None = optional("90 % of the attainable rate")
    sources: list[str] = Field(default=[], description="citations of the ceilings used")
    unknown: list[str] = Field(default=[], description="ceilings that are UNKNOWN and block it")
    over_declared: str = Field(default="", description="why flops or nbytes says too much")

    @property
    def is_impossible(self) -> bool:
        """Whether it is faster than the device can be, and so counts as no efficiency."""
        return self.achieved_pct is not None and self.achieved_pct > POSSIBLE_PCT

    @property
    def target_us(self) -> float | None:
        """The time of a call at the target, in microseconds; None where that is UNKNOWN."""
        work, scale = (self.flops, 1e6) if self.unit == "TFLOPS" else (self.nbytes, 1e3)
        return work / (self.target * scale) if work and self.target else None

    @property
    def targets(self) -> tuple[float | None, float | None, float | None]:
        """The target as TFLOPS, GB/s and microseconds, None where it cannot be told as that."""
        time = self.target_us
        if time is None:
            return None, None, None
        tflops = self.flops / time / 1e6 if self.flops else None
        return tflops, self.nbytes / time / 1e3 if self.nbytes else None, time


def roofline(
    label: str,
    way: Way,
    *,
    flops: float | None,
    nbytes: float | None,
    time_ms: float | None,
    limits: Limits,
) -> Roofline:
    """Return the roofline of a direction that does `flops` on `nbytes` in `time_ms`.

    Without declared FLOPs only bandwidth and launch can bound it. A ceiling that is needed and
    UNKNOWN leaves the bound UNKNOWN: nothing is put in its place.
    """
    needed = [
        (flops, limits.rate, limits.sources[0]),
        (nbytes, limits.bandwidth, limits.sources[1]),
    ]
    unknown = [source for work, ceiling, source in needed if work and ceiling is None]
    sources = [source for work, ceiling, source in needed if work and ceiling is not None]
    work, unit = (flops, "TFLOPS") if flops else (nbytes, "GB/s")
    scale = 1e9 if unit == "TFLOPS" else 1e6  # work per ms in the unit

    def rate(milliseconds: float | None) -> float | None:
        return work / (milliseconds * scale) if work and milliseconds else None

    ridge = None
    if flops and limits.rate and limits.bandwidth:
        ridge = limits.rate / limits.bandwidth
    common: dict[str, Any] = {
        "label": label,
        "way": way,
        "flops": flops,
        "nbytes": nbytes,
        "intensity": flops / nbytes if flops and nbytes else None,
        "ridge": ridge,
        "unit": unit,
        "achieved": rate(time_ms),
        "sources": sources,
        "unknown": unknown,
    }
    if unknown or not work:
        return Roofline(bound="UNKNOWN", **common)
    # The least time in ms that each bound allows.
    floors: dict[Bound, float] = {"launch": limits.launch_us * 1e-3}
    if flops and limits.rate:
        floors["compute"] = flops / (limits.rate * 1e9)
    if nbytes and limits.bandwidth:
        floors["memory"] = nbytes / (limits.bandwidth * 1e9)
    bound = max(floors, key=lambda name: floors[name])
    floor_ms = floors[bound]
    return Roofline(
        bound=bound,
        attainable=rate(floor_ms),
        achieved_pct=floor_ms / time_ms * 100 if time_ms else None,
        target=(rate(floor_ms) or math.nan) * TARGET_PCT / 100,
        **common,
    )


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much of the attainable rate all cases reach together: geometric mean in percent.

    None when a case's roofline is UNKNOWN or impossible, which blocks T2.
    """

    pct: float | None
    why: str

    def reaches(self, wanted_pct: float = TARGET_PCT) -> bool:
        """Say whether it is known to be that much."""
        return self.pct is not None and self.pct >= wanted_pct - 1e-9


def efficiency(rooflines: Sequence[Roofline]) -> Efficiency:
    """Return the hardware efficiency that T2 asks about, over every direction of every case."""
    shares = [line.achieved_pct for line in rooflines]
    measured = [share for share in shares if share is not None and share > 0]
    if not rooflines:
        return Efficiency(None, "no roofline")
    impossible = [line.over_declared for line in rooflines if line.is_impossible]
    if impossible:
        return Efficiency(None, f"UNKNOWN: {impossible[0]}")
    if len(measured) < len(shares):
        blocked = sorted({text for line in rooflines for text in line.unknown})
        why = "; ".join(blocked) or "a case has no time"
        return Efficiency(None, f"UNKNOWN: {why}")
    pct = math.exp(math.fsum(map(math.log, measured)) / len(measured))
    return Efficiency(pct, f"{in_unit(pct, '%')} of the attainable rate, target {TARGET_PCT:g} %")


def band(pct: float) -> Band:
    """Return the band that an efficiency lies in; a threshold belongs to the upper one."""
    if pct < 50 - 1e-9:
        return "below 50 %"
    if pct < 80 - 1e-9:
        return "50 to 80 %"
    return "80 to 100 %" if pct <= 100 + 1e-9 else "above 100 %"
