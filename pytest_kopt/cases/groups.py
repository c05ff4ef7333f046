"""Finds the group sizes among a grouped GEMM's inputs, and draws new ones.

A test that declares uniform sizes is no evidence that a kernel looks at the sizes at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, TypeGuard

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.skew import DISTRIBUTIONS, filled_groups
from pytest_kopt.numerics.nested import tensors

#: The distributions that a gain has to hold under.
SKEWED = tuple(name for name in DISTRIBUTIONS if name != "uniform")
_WAY_ON = (
    "pass G group sizes, G offsets or G + 1 offsets as a tensor or a list of integers; if several "
    "inputs could be that, declare groups=POSITION"
)
_WRITERS: dict[str, Callable[[Sequence[int]], list[int]]] = {
    "sizes": list,
    "offsets": lambda sizes: [0, *accumulate(sizes)],
    "ends": lambda sizes: list(accumulate(sizes)),
    "starts": lambda sizes: [0, *accumulate(sizes)][:-1],
}


@dataclass(frozen=True, slots=True)
class Groups:
    """The group sizes in inputs of a case, and how those at some positions say them (`layouts`)."""

    layouts: dict[int, str]
    sizes: tuple[int, ...]
    multiple: int

    @property
    def are_uniform(self) -> bool:
        return max(self.sizes) - min(self.sizes) <= 1

    def drawn(self, distribution: str) -> tuple[int, ...]:
        """Draw other sizes for the same rows, by torch's generator."""
        units = sum(self.sizes) // self.multiple
        drawn_sizes = filled_groups(len(self.sizes), units, distribution)
        return tuple(self.multiple * size for size in drawn_sizes.tolist())

    def replaced(self, arguments: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        result = list(arguments)
        for place, layout in self.layouts.items():
            result[place] = _like(arguments[place], _WRITERS[layout](sizes))
        return result


def find_groups(case: Case, arguments: Sequence[Any]) -> Groups:
    """Return the group sizes among inputs of a grouped case.

    Raises BadInput, saying what to declare, where there are none, or several that differ.
    """
    count = case.dims.get("G")
    if not isinstance(count, int) or count < 1:
        raise case.refusal(f"the dim G is {count!r}", fix="let G be the number of groups")
    if case.groups is not None and case.groups >= len(arguments):
        raise case.refusal(f"groups is {case.groups}", f"0 to {len(arguments) - 1}")
    # Rows that a router dropped, or a buffer's spare ones, belong to no group.
    extents = {size for tensor in tensors(arguments) if tensor.ndim > 1 for size in tensor.shape}
    most = max([*extents, *(n for n in [case.dims.get("M")] if isinstance(n, int))], default=0)
    for fits in (extents.__contains__, lambda rows: 0 < rows <= most):
        readings = {
            place: reading
            for place, argument in enumerate(arguments)
            if (reading := _read(argument, count, fits, case.dims.get("M"))) is not None
        }
        named = readings if case.groups is None else {case.groups: readings.get(case.groups)}
        if len({reading and reading[1] for reading in named.values()}) > 1:
            places = ", ".join(map(str, readings))
            raise case.refusal(
                f"the inputs {places} can all be group sizes, and differ",
                fix="declare the one that is: groups=POSITION",
            )
        reading = next(iter(named.values()), None)
        if reading is None:
            continue
        sizes = reading[1]
        if odd := [size for size in sizes if size % case.group_multiple]:
            raise case.refusal(
                f"a group has {odd[0]} rows, and group_multiple is {case.group_multiple}",
                fix="declare a number that divides every group's size",
            )
        layouts = {place: layout for place, (layout, s) in readings.items() if s == sizes}
        return Groups(layouts, sizes, case.group_multiple)
    problem = "no input holds" if case.groups is None else f"input {case.groups} does not hold"
    raise case.refusal(
        f"{problem} the sizes of {count} groups, so kopt cannot draw uneven ones",
        fix=_WAY_ON,
    )


def redrawn(case: Case, distribution: str) -> Case:
    def inputs() -> Sequence[Any]:
        arguments = case.arguments()
        groups = find_groups(case, arguments)
        return groups.replaced(arguments, groups.drawn(distribution))

    return replace(case, inputs=inputs)


def with_steady_groups(case: Case) -> Case:
    """Return a grouped case whose inputs keep their sizes, on which a call's time depends."""
    groups = find_groups(case, case.arguments())
    return replace(case, weights=(*case.weights, *groups.layouts))


def uneven_cases(case: Case) -> list[Case]:
    """Return a grouped case with group sizes of skewed distributions, kept between calls.

    Half of them are random: by an empty group a kernel knows the others.
    """
    steady = with_steady_groups(case)
    patterns = [name for name in SKEWED if name != "random"]
    return [redrawn(steady, name) for pattern in patterns for name in ("random", pattern)]


def has_skew(case: Case) -> bool:
    """Say whether there are groups among which rows can be spread unevenly."""
    return case.is_grouped and case.dims.get("G") != 1


def _read(
    argument: Any, count: int, fits: Callable[[int], bool], rows: Any
) -> tuple[str, tuple[int, ...]] | None:
    """Return how an argument states the sizes of `count` groups, and the sizes; or None."""
    values = _integers(argument, count + 1)
    if values is None or min(values, default=-1) < 0:
        return None
    if len(values) == count and fits(sum(values)):
        return "sizes", tuple(values)
    if values != sorted(values) or not any(values):
        return None
    if len(values) == count + 1 and values[0] == 0 and fits(values[-1]):
        return "offsets", _steps(values)
    if len(values) == count and fits(values[-1]):
        return "ends", _steps([0, *values])
    is_start = len(values) == count and values[0] == 0 and isinstance(rows, int)
    if is_start and fits(rows) and values[-1] <= rows:
        return "starts", _steps([*values, rows])
    return None


def is_integer(value: Any) -> TypeGuard[torch.Tensor]:
    """Say whether it is a tensor of integers, such as sizes or places."""
    if not isinstance(value, torch.Tensor) or value.dtype is torch.bool:
        return False
    return not (value.is_floating_point() or value.is_complex())


def _integers(argument: Any, most: int) -> list[int] | None:
    if is_integer(argument):
        return argument.flatten().tolist() if 0 < argument.numel() <= most else None
    is_list = isinstance(argument, list | tuple) and 0 < len(argument) <= most
    return list(argument) if is_list and all(type(value) is int for value in argument) else None


def _steps(ends: Sequence[int]) -> tuple[int, ...]:
    return tuple(right - left for left, right in pairwise(ends))


def _like(original: Any, values: list[int]) -> Any:
    if not isinstance(original, torch.Tensor):
        return type(original)(values)
    return torch.tensor(values, dtype=original.dtype, device=original.device).reshape(
        original.shape
    )
