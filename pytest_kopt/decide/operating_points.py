"""A case at the operating points of its GPU: what it gains at the one that does not decide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from pytest_kopt.decide.inference import SHAPE_LEVEL, Estimate, HighEnd, LowEnd, percent
from pytest_kopt.devices.states import SUSTAINED
from pytest_kopt.figures import changed
from pytest_kopt.models import Document, optional

PointName = Literal["boost", "sustained"]


class Load(Document):
    """How a version loads its GPU at an operating point: medians over its blocks."""

    mhz: float | None = optional("SM clock in MHz")
    watts: float | None = optional("power in watts")
    joules: float | None = optional("energy of a call in joules, at the sustained point")


class OperatingPoint(Document):
    """A case's change at an operating point, with an interval of 95 %."""

    name: PointName = Field(description="name of the operating point")
    change_pct: float | None = optional("change of speed in percent, paired; positive is better")
    low_pct: LowEnd = None
    high_pct: HighEnd = None
    cycles_pct: float | None = optional(
        "change in clock cycles of a call: without the clock's part"
    )
    joules_pct: float | None = optional("change in energy of a call, positive is less")
    candidate: Load = Field(default=Load(), description="load of the candidate")
    incumbent: Load = Field(default=Load(), description="load of the current best")


@dataclass(frozen=True, slots=True)
class PointEvidence:
    """The measurements of a case at operating points; `decides` is the one that its change is at.

    `loads` are the candidate's and the incumbent's, by point.
    """

    decides: PointName
    #: The highest clock that a block of the case had, None where the device tells none.
    top_mhz: float | None = None
    #: Whether the clock does not fall under load: one figure holds at both points. None: not known.
    is_steady: bool | None = None
    loads: Mapping[str, tuple[Load, Load]] = field(default_factory=dict)
    #: Whether the device's owner has set the clock, and that held it.
    is_locked: bool = False

    @property
    def other(self) -> PointName:
        return "boost" if self.decides == SUSTAINED else "sustained"

    def document(self, first: Estimate, second: Estimate | None) -> dict[str, Any]:
        """Return what a verdict's shape says of the points; `first` is the deciding estimate."""
        estimates = {self.decides: first, self.other: second}
        return {
            "operating_point": self.decides,
            "is_steady": self.is_steady,
            "clock_is_locked": self.is_locked,
            "points_differ": _differ(first, second),
            "operating_points": [
                self._point(name, estimate) for name, estimate in estimates.items() if estimate
            ],
        }

    def opposite(self, first: Estimate, second: Estimate | None) -> str:
        """Return how the signs of both changes differ, as far as they are shown; "" if not."""
        if second is None or not any(
            up.lower(SHAPE_LEVEL) > 0 > down.upper(SHAPE_LEVEL)
            for up, down in ((first, second), (second, first))
        ):
            return ""
        return (
            f"{changed(percent(first.mean))} at the operating point {self.decides}, which decides, "
            f"but {changed(percent(second.mean))} at {self.other}"
        )

    def _point(self, name: PointName, estimate: Estimate) -> OperatingPoint:
        candidate, incumbent = self.loads.get(name, (Load(), Load()))

        def beyond(figure: str) -> float | None:
            """Return the change of a call's time and of a figure of the load, taken together."""
            new, old = getattr(candidate, figure), getattr(incumbent, figure)
            return percent(estimate.mean + math.log(old / new)) if new and old else None

        return OperatingPoint(
            name=name,
            **estimate.figures(SHAPE_LEVEL),
            cycles_pct=beyond("mhz"),
            joules_pct=beyond("watts") if name == SUSTAINED else None,
            candidate=candidate,
            incumbent=incumbent,
        )


def _differ(first: Estimate, second: Estimate | None) -> bool:
    if second is None:
        return False
    halves = (e.upper(SHAPE_LEVEL) - e.mean for e in (first, second))
    return abs(first.mean - second.mean) > math.hypot(*halves)
