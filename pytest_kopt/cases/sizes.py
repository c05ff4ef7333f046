"""Sizes near those of a case: of a test's parameters, and of inputs that no parameter carries."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_kopt.cases.groups import has_skew, is_integer
from pytest_kopt.cases.input_values import GRAIN
from pytest_kopt.cases.variant import Drawn, Variant, kept_leaf
from pytest_kopt.honesty.inputs import says_twice
from pytest_kopt.honesty.nearby_shapes import Kind
from pytest_kopt.numerics.nested import flatten, mapped, tensors

#: A smaller extent is structure (a filter's taps, real and imaginary part), and is not moved.
_LEAST_SIZE = 8


def nearby(value: int, kind: Kind, dice: random.Random, *, larger: bool = False) -> int:
    """Return a size a step away from `value`, at least half of it and never `value` itself.

    The grain is the largest power of two, at most 256, that divides the value. An aligned step is
    one grain up or down; an uneven one an odd number below the grain, or 1 for an odd value.
    """
    grain = min(GRAIN, value & -value)
    step = grain if kind == "aligned" else dice.randrange(1, max(grain, 2), 2)
    up = value + step
    return up if larger or 2 * step > value or dice.random() < 0.5 else value - step


def perturbed(
    parameters: Mapping[str, Any], dims: Mapping[str, Any], kind: Kind, dice: random.Random
) -> dict[str, Any] | None:
    """Return a test's parameters with some of its sizes moved, None where it has none.

    Each is moved with probability 1/2, and one at least; equal ones together, as they may have to
    be.
    """
    movable = sorted(carried(parameters, dims))
    if not movable:
        return None
    chosen = [value for value in movable if dice.random() < 0.5] or [dice.choice(movable)]
    moved = {value: nearby(value, kind, dice) for value in chosen}
    found: dict[str, Any] = mapped(
        dict(parameters), lambda x: moved.get(x, x) if _is_size(x) else x, (int,)
    )
    return found


def carried(parameters: Mapping[str, Any], dims: Mapping[str, Any]) -> set[int]:
    """Return the integers above 1, wherever in the parameters, that are values of the dims."""
    values = {value for value in flatten(parameters, "").values() if _is_size(value)}
    return values & {value for value in dims.values() if _is_size(value)}


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 1


# Sizes


def longer(drawn: Drawn) -> Iterator[Variant]:
    """Move sizes that no parameter carries, each alone and upwards: places stay within bounds."""
    dice = random.Random(drawn.seed)
    counted = {n for values in _integers(drawn) for n in (sum(values), max(values, default=-1))}
    for size in _extents(drawn):
        if size not in drawn.carried and size not in counted:
            yield _resized(drawn, size, nearby(size, "uneven", dice, larger=True))


def of_rows(count: int) -> Callable[[Drawn], Iterator[Variant]]:
    """Return the generator of cases with so many rows of one size."""

    def cut(drawn: Drawn) -> Iterator[Variant]:
        columns = {x.shape[-1] for x in tensors(drawn.given) if x.ndim > 1}
        for size in _extents(drawn):
            # What integers name or count must not lie behind the end.
            named = any(values and max(values) <= size for values in _integers(drawn))
            if size not in columns and not named:
                yield _resized(drawn, size, count)

    return cut


def _extents(drawn: Drawn) -> list[int]:
    given = tensors(drawn.given)
    found = {n for x in given for n in x.shape if n >= _LEAST_SIZE}
    # Half of a table of angles has to stay half of it.
    found -= {x.shape[-1] for x in given if says_twice(x)}
    return [] if has_skew(drawn.case) else sorted(found)


def _integers(drawn: Drawn) -> list[list[int]]:
    """Return the values of all integers that may name places or count: tensors, and lists."""
    found = [x.flatten().tolist() for x in tensors(drawn.given) if is_integer(x)]
    lists = [x for x in drawn.given if isinstance(x, list | tuple)]
    # One number alone is a size.
    return found + [[*x] for x in lists if len(x) > 1 and all(type(n) is int for n in x)]


def _resized(drawn: Drawn, size: int, now: int) -> Variant:
    """Return the case with all extents of a size, and numbers that say it, changed to another."""

    def resize(plain: torch.Tensor) -> torch.Tensor:
        for dimension, extent in enumerate(plain.shape):
            if extent == size:
                places = torch.arange(now, device=plain.device) % size
                plain = plain.index_select(dimension, places)
        return plain

    def change(x: Any, generator: torch.Generator) -> Any:
        if isinstance(x, torch.Tensor):
            return kept_leaf(x, resize) if size in x.shape else x
        return now if type(x) is int and x == size else x

    dims = {name: now if value == size else value for name, value in drawn.case.dims.items()}
    named = dims if dims != drawn.case.dims else {**dims, f"size {size}": now}
    return Variant(drawn.everywhere(change, weights=True, dims=named))
