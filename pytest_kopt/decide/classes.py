"""The rule on config classes: one class does not pay for another.

The stored rule and the paired one find out in their own ways which classes moved beyond the noise;
what follows from that is said here once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import ConfigClass
from pytest_kopt.figures import changed
from pytest_kopt.schema.metrics import Metric, aggregate
from pytest_kopt.schema.table import Classes, Table

Status = Literal["improved", "unchanged", "regressed"]


@dataclass(frozen=True, slots=True)
class ClassStanding:
    """How the classes stand: their changes in percent, and which moved beyond the noise.

    `worthwhile` are those that gained enough for a path of their own. A single class is all cases:
    it says nothing that the aggregate does not say.
    """

    changes: Mapping[str, float]
    improved: Set[str]
    regressed: Set[str]
    worthwhile: Set[str]

    @classmethod
    def by_noise(cls, changes: Mapping[str, float], policy: Policy) -> ClassStanding:
        """Return the standing by the numbers of two sessions: beyond is what reaches the noise."""

        def beyond(sign: int) -> frozenset[str]:
            return frozenset(
                name
                for name, change in changes.items()
                if policy.exceeds(sign * change, 0)
                and policy.reaches(sign * change, policy.noise_pct)
            )

        improved = beyond(1)
        return cls(changes, improved, beyond(-1), improved)

    def status(self, name: str) -> Status:
        if name in self.regressed:
            return "regressed"
        return "improved" if name in self.improved else "unchanged"

    @property
    def divergence(self) -> str:
        """Which class gained what another paid for, in words, "" where none did."""
        if not (self.worthwhile and self.regressed):
            return ""
        gained, lost = self._listed(self.worthwhile), self._listed(self.regressed)
        return f"the classes diverge: {gained} improved, {lost} fell"

    @property
    def dispatch(self) -> str:
        """The step after a divergence: a path of its own for what gained."""
        new = _names(sorted(self.worthwhile))
        stay = _names(name for name in self.changes if name not in self.worthwhile)
        return (
            f"specialise and dispatch: give {new} the new path, leave {stay} on the "
            "old one, and name the class in the next round's notes (target_class)"
        )

    @property
    def loss(self) -> str:
        """Which class lost while others were there to hide it, in words, "" for none."""
        is_hidden = bool(self.regressed) and len(self.changes) > 1
        return f"class {self._listed(self.regressed)} fell beyond the noise" if is_hidden else ""

    def _listed(self, names: Iterable[str]) -> str:
        ordered = sorted(names, key=lambda name: (-abs(self.changes[name]), name))
        return " and ".join(f"{name!r} ({changed(self.changes[name])})" for name in ordered)


def measured_classes(
    classes: Classes,
    table: Table,
    metric: Metric,
    compared: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> list[ConfigClass]:
    """Return the classes of a table, with what they came to if it is `compared` with another.

    BadInput for unknown columns.
    """
    rows = table.by_key()
    groups = classes.group({key: row.dims for key, row in rows.items()})
    return [
        ConfigClass(
            name=name,
            dims=classes.common(rows[keys[0]].typed_dims),
            cases=len(keys),
            **compared.get(name) or {"candidate": aggregate([rows[key] for key in keys], metric)},
        )
        for name, keys in groups.items()
    ]


def _names(names: Iterable[str]) -> str:
    return " and ".join(map(repr, names))
