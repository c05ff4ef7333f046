"""The decision policy: every threshold of a verdict, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pytest_kopt.errors import BadInput
from pytest_kopt.models import Document
from pytest_kopt.schema.columns import Better, parse_gate

#: Percentages are compared with this tolerance, so that 5 % means 5 % whatever its binary form.
TOLERANCE_PCT = 1e-9

#: What a campaign may change about its policy after the baseline.
STOP_LIMITS = ("max_regressions",)

Percent = Annotated[float, Field(ge=0, le=100, strict=True)]


Microseconds = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


@dataclass(frozen=True, slots=True)
class Limit:
    """The regression limit of a case: a loss has to be larger than `pct` percent and than `us`."""

    pct: float
    us: float
    #: The time of a call of the current best; None, where it is not known, leaves the percentage.
    ms: float | None

    @property
    def time_pct(self) -> float:
        """By how many percent more time both are exceeded."""
        return max(self.pct, self._us_pct)

    @property
    def speed_pct(self) -> float:
        """The same where `pct` is a loss of speed, as by the stored rule."""
        return max(self.pct, 100 * self._us_pct / (100 + self._us_pct))

    @property
    def _us_pct(self) -> float:
        return self.us / 10 / self.ms if self.ms else 0.0

    def __str__(self) -> str:
        return f"{self.pct:g} % and {self.us:g} us" if self.us and self.ms else f"{self.pct:g} %"


class Remeasure(Document):
    """When and how a small stored improvement is measured again.

    `mean-and-spread`: the mean over the re-measurements alone is above `mean_pct` and their sample
    standard deviation below `spread_ratio` of that mean. `same-direction`: every one improves.
    """

    below_pct: Percent = 2.0
    times: Annotated[int, Field(ge=1, le=50)] = 3
    rule: Literal["mean-and-spread", "same-direction"] = "mean-and-spread"
    mean_pct: Percent = 1.0
    spread_ratio: Annotated[float, Field(gt=0, le=10)] = 0.5


class Policy(Document):
    """Thresholds of the decision; percentages are of the primary metric.

    With `performance_log` kopt profiles rounds on a GPU, and lists what it keeps in performance.md.
    A case is beyond its regression limit if it loses more than `shape_gate_pct` and more than
    `shape_gate_us` microseconds. `max_regressions` measured regressions in a row stop the campaign.
    `decided_by` is the figure of all cases that has to improve; where the other one falls, what is
    kept is kept with a note.
    """

    name: str
    shape_gate_pct: Percent = 5.0
    shape_gate_us: Microseconds = 0.0
    decided_by: Literal["geomean", "weighted-time"] = "geomean"
    noise_pct: Percent = 2.0
    minimum_gain_pct: Percent = 0.0
    remeasure: Remeasure = Remeasure()
    max_repairs: Annotated[int, Field(ge=0, le=20)] = 3
    chain_noise_pct: Percent = 1.0
    max_regressions: Annotated[int, Field(ge=1, le=119, strict=True)] = 5
    performance_log: bool = False
    directions: dict[str, Better] = {}
    gates: tuple[str, ...] = ()

    @field_validator("gates")
    @classmethod
    def _readable(cls, gates: tuple[str, ...]) -> tuple[str, ...]:
        for gate in gates:
            try:
                parse_gate(gate)
            except BadInput as error:
                raise ValueError(error.legal) from None
        return gates

    def limit(self, pct: float | None, us: float | None, ms: float | None) -> Limit:
        """Return the limit of a case that declares `pct` and `us`, or leaves them to the policy."""
        return Limit(
            self.shape_gate_pct if pct is None else pct,
            self.shape_gate_us if us is None else us,
            ms,
        )

    def differences(self, recorded: Mapping[str, Any]) -> list[str]:
        """Return what is not as recorded, `key: old -> new`; name and stop limits may differ."""
        old, new = _flat(recorded), _flat(self.model_dump(mode="json"))
        compared = [key for key in old if key in new and key not in ("name", *STOP_LIMITS)]
        return [f"{key}: {old[key]} -> {new[key]}" for key in compared if old[key] != new[key]]

    def below(self, change_pct: float, limit_pct: float) -> bool:
        """Say whether a percentage lies below a threshold by more than the tolerance."""
        return change_pct < limit_pct - TOLERANCE_PCT

    def reaches(self, change_pct: float, limit_pct: float) -> bool:
        """Say whether a percentage reaches a threshold, the threshold itself included."""
        return change_pct >= limit_pct - TOLERANCE_PCT

    def exceeds(self, change_pct: float, limit_pct: float) -> bool:
        """Say whether a percentage lies above a threshold by more than the tolerance."""
        return change_pct > limit_pct + TOLERANCE_PCT


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    again = {f"remeasure.{key}": value for key, value in document.get("remeasure", {}).items()}
    return {key: value for key, value in document.items() if key != "remeasure"} | again
