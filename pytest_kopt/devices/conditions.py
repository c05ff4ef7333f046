"""The state of a device before and after a measurement, and whether it spoils the figures.

A power cap spoils none: the clock that it leaves is the kernel's own under load, a figure of the
operating point (`paired/samples.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import computed_field

from pytest_kopt import models
from pytest_kopt.devices.vendor import Reading

#: A measurement that was throttled is repeated this often before its flag stays.
EXTRA_MEASUREMENTS = 2


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
        return (f"throttled: {', '.join(reasons)}",) if reasons else ()

    def to_document(self) -> dict[str, Any]:
        return models.known(self)


def by_kind(flags: Mapping[str, Sequence[str]]) -> list[str]:
    """Return cases' flags, by label, as lines: one for all cases that share a flag."""
    labels: dict[str, list[str]] = {}
    for label, texts in flags.items():
        for text in texts:
            labels.setdefault(text, []).append(label)
    return [
        f"{of[0]}: {text}" if len(of) == 1 else f"{len(of)} of {len(flags)} cases: {text}"
        for text, of in labels.items()
    ]


class Steadily:
    """Repeats a measurement, the body of a loop over this, while the device is throttled.

    `conditions` are those of the last one.
    """

    conditions: Conditions

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[int]:
        for number in range(1, EXTRA_MEASUREMENTS + 2):
            before = self._read()
            yield number
            self.conditions = Conditions(before, self._read(), number)
            if not self.conditions.flags:
                return
