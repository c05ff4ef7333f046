"""The state of a device before and after a measurement, and whether it spoils the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import computed_field

from pytest_kopt import models
from pytest_kopt.devices.vendor import Reading

_T = TypeVar("_T")
#: A measurement that was throttled or drifted is repeated this often before its flag stays.
EXTRA_MEASUREMENTS = 2
#: Reasons that a heavy kernel lives with; measuring again would find them again.
_LASTING = frozenset({"sw_power_cap", "ppt_pwr"})
MOST_CLOCK_DRIFT_PCT = 3.0
MOST_WARMING_C = 5.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """A device around one measurement, which was the `measurement`-th of its kind."""

    before: Reading
    after: Reading
    measurement: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def flags(self) -> tuple[str, ...]:
        reasons = dict.fromkeys([*self.before.throttled, *self.after.throttled])
        return (*([f"throttled: {', '.join(reasons)}"] if reasons else []), *self._drift)

    @property
    def passing(self) -> bool:
        """Whether a flag may be gone when measured again."""
        reasons = {*self.before.throttled, *self.after.throttled}
        # At its power cap a card moves its clock all the time.
        return bool(reasons - _LASTING) or bool(self._drift and not reasons)

    @property
    def _drift(self) -> tuple[str, ...]:
        drifts = []
        clocks, heat = self._both("sm_mhz"), self._both("temperature_c")
        if clocks and abs(clocks[1] / clocks[0] - 1) * 100 > MOST_CLOCK_DRIFT_PCT:
            drifts.append(f"clock drifted from {clocks[0]:.0f} to {clocks[1]:.0f} MHz")
        if heat and abs(heat[1] - heat[0]) >= MOST_WARMING_C:
            drifts.append(f"temperature drifted from {heat[0]:.0f} to {heat[1]:.0f} °C")
        return tuple(drifts)

    def _both(self, name: str) -> tuple[float, float] | None:
        first, last = getattr(self.before, name), getattr(self.after, name)
        return (first, last) if first and last else None

    def to_document(self) -> dict[str, Any]:
        return models.known(self)


def by_kind(flags: Mapping[str, Sequence[str]]) -> list[str]:
    """Return cases' flags, by label, as lines: one for all cases of a kind, with an example."""
    kinds: dict[str, dict[str, str]] = {}
    for label, texts in flags.items():
        for text in texts:
            kinds.setdefault(text.partition(" from ")[0], {})[label] = text
    lines = []
    for kind, labels in kinds.items():
        label, text = next(iter(labels.items()))
        if len(labels) == 1:
            lines.append(f"{label}: {text}")
            continue
        example = "" if text == kind else f", as at {label}{text.removeprefix(kind)}"
        lines.append(f"{len(labels)} of {len(flags)} cases: {kind}{example}")
    return lines


def steadily(measure: Callable[[], _T], read: Callable[[], Reading]) -> tuple[_T, Conditions]:
    """Measure, and again while conditions promise better; return the last, with its conditions."""
    for number in range(1, EXTRA_MEASUREMENTS + 2):
        before = read()
        result = measure()
        conditions = Conditions(before, read(), number)
        if not conditions.passing:
            break
    return result, conditions
