"""Config classes: cases with the same values in the columns that the manifest's `classes` names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pytest_kopt.errors import BadInput
from pytest_kopt.schema.profile import Scalar
from pytest_kopt.schema.table import cell

Case = TypeVar("Case")


@dataclass(frozen=True, slots=True)
class Classes:
    """What tells the classes apart, and the one a round is about (`target`; None: all cases).

    `columns` are dims of the CSV: what a case was measured at does not say what it is. Without
    columns there are no classes. A class is named `num_kv_heads=16` or `head_dim=64, causal=True`.
    """

    columns: tuple[str, ...] = ()
    target: str | None = None

    def check_columns(self, dims: Iterable[str]) -> None:
        """Raise BadInput, naming the dims, for a column that is none of them."""
        legal = list(dims)
        for column in self.columns:
            if column not in legal:
                raise BadInput(
                    f"{column!r} is no dim of the cases", where="classes", legal=legal or "no dim"
                )

    def group(self, cases: Mapping[Case, Mapping[str, Scalar]]) -> dict[str, list[Case]]:
        """Return the cases of each class by its name, in the order in which classes appear.

        Takes each case's dims; BadInput when a column is none of them.
        """
        found: dict[str, list[Case]] = {}
        if not self.columns:
            return found
        for case, dims in cases.items():
            self.check_columns(dims)
            name = ", ".join(f"{column}={cell(dims[column])}" for column in self.columns)
            found.setdefault(name, []).append(case)
        return found

    def common(self, dims: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return of a case's dims those that its whole class has."""
        return {column: dims[column] for column in self.columns}

    def target_among(self, names: Iterable[str]) -> str | None:
        """Return the target by its full name, None without one; its columns may come in any order.

        Raises BadInput, naming the classes there are, for a class that is none of them.
        """
        if self.target is None:
            return None
        legal = list(names)
        wanted = _parts(self.target)
        for name in legal:
            if _parts(name) == wanted:
                return name
        raise BadInput(
            f"{self.target!r} is no class",
            where="target_class",
            legal=legal or "classes of the baseline, by the columns that the key `classes` names",
        )


NO_CLASSES = Classes()


def _parts(name: str) -> set[str]:
    return {part.strip() for part in name.split(",")}
