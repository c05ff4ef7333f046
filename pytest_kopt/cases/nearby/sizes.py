"""Sizes and numbers near those of a case: of its parameters, inputs and numeric arguments."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

import torch

from pytest_kopt.cases.case import Case, is_floating
from pytest_kopt.cases.groups import has_skew, is_integer
from pytest_kopt.cases.nearby.input_values import PLAINLY_RIGHT_DB, as_drawn, tiny
from pytest_kopt.cases.nearby.variant import (
    Change,
    Drawn,
    Variant,
    alone,
    both,
    differ,
    floating,
    kept_leaf,
    replaced,
)
from pytest_kopt.honesty.inputs import SCALABLE, says_twice
from pytest_kopt.honesty.nearby_shapes import Kind
from pytest_kopt.numerics.gates import snr
from pytest_kopt.numerics.nested import flatten, mapped, tensors

#: A smaller extent may be structure (a filter's taps, real and imaginary part): it is made none or
#: one only where it is nothing but rows.
_SMALL = 8
#: The largest step by which a size is moved.
_GRAIN = 256
#: By how much another number differs at least, and twice this at most: within what fractions,
#: probabilities and rates may be. A number below the second is changed by as much, since a small
#: share of an epsilon shows in no result.
_ANOTHER, _SMALL_VALUES = 0.125, 1 / 64
#: By what powers of two a number is moved to an end, until the result shows it.
_OUTWARDS = (4, 20)


def nearby(value: int, kind: Kind, dice: random.Random, *, larger: bool = False) -> int:
    """Return a size a step away from `value`, at least half of it and never `value` itself.

    The grain is the largest power of two, at most 256, that divides the value. An aligned step is
    one grain up or down; an uneven one an odd number below the grain, or 1 for an odd value.
    """
    grain = min(_GRAIN, value & -value)
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
    result: dict[str, Any] = mapped(
        dict(parameters), lambda x: moved.get(x, x) if _is_size(x) else x, (int,)
    )
    return result


def carried(parameters: Mapping[str, Any], dims: Mapping[str, Any]) -> set[int]:
    """Return the integers above 1, wherever in the parameters, that are values of the dims."""
    values = {value for value in flatten(parameters, "").values() if _is_size(value)}
    return values & {value for value in dims.values() if _is_size(value)}


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 1


def longer(drawn: Drawn) -> Iterator[Variant]:
    """Move sizes that no parameter carries upwards, so that places stay within bounds.

    Each alone, to the first of some larger ones that the reference supports; inputs of as many rows
    together, and one after the other where they need not be equal. A batch of one becomes one of
    two. Sizes that are not moved come last, untried: of rows that integers count or name, and those
    for which the reference supports no other.
    """
    dice = random.Random(drawn.seed)
    counted = {n for values in integer_lists(drawn) for n in (sum(values), max(values, default=-1))}
    counted |= {len(x) for x in drawn.inputs if isinstance(x, list | tuple) and _are_integers(x)}
    counted |= {len(x) for x in tensors(drawn.inputs) if _are_slots(x)}
    movable = [size for size in _extents(drawn) if size not in drawn.carried]
    fixed = []
    for size in movable:
        if size in counted:
            continue
        steps = [nearby(size, kind, dice, larger=True) for kind in ("uneven", "aligned")]
        resized = (
            _resized(drawn, size, count, numbers=numbers)
            for numbers in (True, False)
            for count in (*steps, 2 * size)
        )
        if (supported := next(filter(drawn.is_supported, resized), None)) is not None:
            yield Variant(supported)
        else:
            fixed.append(size)
    yield from _one_input_longer(drawn, dice)
    yield from _batch_of_two(drawn)
    for sizes, why in (
        (fixed, "the reference gives no result for more than"),
        (counted.intersection(movable), "integers among the inputs count or name"),
    ):
        if sizes:
            listed = " and ".join(map(str, sorted(sizes)))
            yield Variant(drawn.case, f"size {listed}", untried=f"{why} {listed}")


def of_rows(count: int) -> Callable[[Drawn], Iterator[Variant]]:
    """Return the generator of cases with `count` rows of one size."""

    def cut(drawn: Drawn) -> Iterator[Variant]:
        inputs = tensors(drawn.inputs)
        columns = {x.shape[-1] for x in inputs if x.ndim > 1}
        inner = {n for x in inputs for n in x.shape[x.ndim > 1 :]}
        for size in _extents(drawn):
            # What integers name or count must not lie behind the end.
            is_named = any(values and max(values) <= size for values in integer_lists(drawn))
            if size not in (inner if size < _SMALL else columns) and not is_named:
                yield Variant(_resized(drawn, size, count))

    return cut


def _extents(drawn: Drawn) -> list[int]:
    inputs = tensors(drawn.inputs)
    extents = {n for x in inputs for n in x.shape if n > 1}
    # Half of a table of angles has to stay half of it.
    extents -= {x.shape[-1] for x in inputs if says_twice(x)}
    return [] if has_skew(drawn.case) else sorted(extents)


def integer_lists(drawn: Drawn) -> list[list[int]]:
    """Return the values of all integers that may name places or count: tensors, and lists."""
    from_tensors = [x.flatten().tolist() for x in tensors(drawn.inputs) if is_integer(x)]
    lists = [x for x in drawn.inputs if isinstance(x, list | tuple)]
    # One number alone is a size.
    return from_tensors + [[*x] for x in lists if len(x) > 1 and _are_integers(x)]


def _are_integers(values: Iterable[Any]) -> bool:
    return all(type(value) is int for value in values)


def _are_slots(x: torch.Tensor) -> bool:
    """Say whether integers all differ in no order: rows that are written there hide no other."""
    if not is_integer(x) or x.ndim != 1 or len(x) < 2:
        return False
    return len(x.unique()) == len(x) and bool((x.diff() < 0).any())


def _resized(drawn: Drawn, size: int, count: int, *, numbers: bool = True) -> Case:
    """Return the case with all extents of a size changed to a count, and numbers that say it."""

    def change(x: Any, generator: torch.Generator) -> Any:
        if isinstance(x, torch.Tensor):
            if size not in x.shape:
                return x
            places = [place for place, extent in enumerate(x.shape) if extent == size]
            return kept_leaf(x, lambda plain: _of_extent(plain, count, places))
        return count if numbers and type(x) is int and x == size else x

    dims = {name: count if value == size else value for name, value in drawn.case.dims.items()}
    moved = dims if dims != drawn.case.dims else {**dims, f"size {size}": count}
    return drawn.everywhere(change, weights=True, dims=moved)


def _of_extent(x: torch.Tensor, count: int, dimensions: Iterable[int]) -> torch.Tensor:
    """Return a tensor that holds its elements over and over, or only the first ones."""
    for dimension in dimensions:
        places = torch.arange(count, device=x.device) % x.shape[dimension]
        x = x.index_select(dimension, places)
    return x


def _one_input_longer(drawn: Drawn, dice: random.Random) -> Iterator[Variant]:
    """Give one of several inputs of as many rows more of them, and none."""
    case = drawn.case
    numbers = {x for _, _, x in drawn.leaves() if type(x) is int}
    matrices = [
        (place, number, x)
        for place, number, x in drawn.leaves()
        if isinstance(x, torch.Tensor) and x.ndim > 1 and place not in case.rewritten
    ]
    alike = Counter(len(x) for _, _, x in matrices)
    # What integers say of rows would be said of others.
    if integer_lists(drawn) or has_skew(case):
        return
    for place, number, x in matrices:
        rows = len(x)
        if alike[rows] < 2 or rows < 2 or rows in numbers or rows in drawn.carried:
            continue
        for count in (nearby(rows, "uneven", dice, larger=True), 0):

            def change(leaf: torch.Tensor, _: torch.Generator, count: int = count) -> torch.Tensor:
                return kept_leaf(leaf, lambda plain: _of_extent(plain, count, (0,)))

            dims = {**case.dims, f"rows of input {place}": count}
            longer = drawn.one(place, number, change, dims=dims)
            if drawn.is_supported(longer):
                yield Variant(longer)


def _batch_of_two(drawn: Drawn) -> Iterator[Variant]:
    """Add a second batch, of other content, to the only one."""

    def change(x: Any, generator: torch.Generator) -> Any:
        if not isinstance(x, torch.Tensor) or x.ndim < 2 or len(x) != 1:
            return x
        return kept_leaf(
            x, lambda plain: torch.cat([plain, plain.roll(1, -1) if is_floating(x) else plain])
        )

    case = drawn.everywhere(change, dims={**drawn.case.dims, "size 1": 2})
    batches = (x for _, _, x in drawn.leaves() if isinstance(x, torch.Tensor) and x.ndim > 1)
    if not has_skew(drawn.case) and any(len(x) == 1 for x in batches) and drawn.is_supported(case):
        yield Variant(case)


def _numbers(drawn: Drawn) -> list[tuple[int, int, Any]]:
    """Return the numbers of a case that are no sizes: of an input that holds many, some."""
    sizes = drawn.sizes
    return [
        (place, number, x)
        for place, number, x in drawn.alone(lambda x: _is_number(x, sizes))
        if place not in drawn.case.rewritten
    ]


def _is_number(x: Any, sizes: Container[Any]) -> bool:
    if isinstance(x, torch.Tensor):
        return x.numel() == 1 and x.dtype in SCALABLE
    return isinstance(x, bool | float) or (type(x) is int and x not in sizes)


def of_the_other_sign(drawn: Drawn) -> Iterator[Variant]:
    """Change the sign of numbers: a place then counts from the end, a step goes back."""
    for place, number, x in _numbers(drawn):
        if x and not isinstance(x, bool):
            negated = _of_number(lambda x, _: -x)
            case = drawn.one(place, number, negated, gate=snr(PLAINLY_RIGHT_DB))
            yield Variant(case, f"input {place}")


def absent(drawn: Drawn) -> Iterator[Variant]:
    """Leave out tensors, each alone, that the function or the reference may be called without."""
    case = drawn.case
    for place, x in enumerate(drawn.inputs):
        optional = _is_optional(case, case.function, place) or _is_optional(
            case, case.reference, place
        )
        if isinstance(x, torch.Tensor) and optional and place not in case.rewritten:
            changed = drawn.changed(replaced(place, None))
            if drawn.is_supported(changed):
                yield Variant(changed, f"input {place}")


def _is_optional(case: Case, function: Callable[..., Any], place: int) -> bool:
    """Say whether None is the default of what a function takes at a place."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    names = case.keywords or tuple(parameters)
    parameter = parameters.get(names[place]) if place < len(names) else None
    return parameter is not None and parameter.default is None


def other_numbers(drawn: Drawn) -> Iterator[Variant]:
    """Change numbers that are no sizes: each alone, to another, to zero and to its ends."""
    numbers = _numbers(drawn)
    another = _of_number(_another)
    for place, number, x in numbers:
        where = f"input {place}"
        if type(x) is int:
            yield _another_integer(drawn, place, number, x)
        else:
            yield Variant(drawn.one(place, number, another), where)
        if type(x) is not bool and 0 < x < 1:
            above = _of_number(lambda x, _: x + 2)
            case = drawn.one(place, number, above, gate=snr(PLAINLY_RIGHT_DB))
            yield Variant(case, f"{where}, above one")
        if x and x is not True:
            zero = _of_number(lambda x, _: type(x)())
            yield Variant(drawn.one(place, number, zero), f"{where}, zero")
    for place, number, x in numbers:
        if isinstance(x, float | torch.Tensor) and x and math.isfinite(x):
            yield from _at_the_ends(drawn, place, number)
    sizes = drawn.sizes
    if len(numbers) > 1:
        yield Variant(
            drawn.everywhere(lambda x, dice: another(x, dice) if _is_number(x, sizes) else x), "all"
        )


def _another_integer(drawn: Drawn, place: int, number: int, x: int) -> Variant:
    """Change an integer to the first of some others that the reference supports."""
    where = f"input {place}"
    others = (
        drawn.one(place, number, lambda *_, other=other: other)
        for other in dict.fromkeys((x + 1, 2 * x, x // 2, x - 1))
        if other != x
    )
    supported = next(filter(drawn.is_supported, others), None)
    if supported is None:
        untried = f"the reference supports no other number than {x} there"
        return Variant(drawn.case, where, untried=untried)
    return Variant(supported, where)


def _of_number(change: Change) -> Change:
    """Return the change for a number that may be held by a tensor."""

    def changed(x: Any, dice: torch.Generator) -> Any:
        if not isinstance(x, torch.Tensor):
            return change(x, dice)
        return kept_leaf(x, lambda plain: torch.full_like(plain, change(float(plain), dice)))

    return changed


def _at_the_ends(drawn: Drawn, place: int, number: int) -> Iterator[Variant]:
    """Make a number so large, and so small, that the reference's result shows it plainly.

    An epsilon matters with small inputs only. No test requires what no result shows.
    """
    beside = [drawn.each(floating(content)) for content in (as_drawn, tiny)]
    declared = [drawn.results(drawn.changed(content)) for content in beside]
    for end, sign in (("large", 1), ("small", -1)):
        for (content, before), exponent in itertools.product(
            zip(beside, declared, strict=True), _OUTWARDS
        ):
            change = alone(place, number, _of_number(_times(sign * exponent)))
            case = drawn.changed(both(content, change), gate=snr(PLAINLY_RIGHT_DB))
            if differ(before, drawn.results(case), PLAINLY_RIGHT_DB):
                yield Variant(case, f"input {place}, {end}")
                break


def _times(exponent: int) -> Change:
    """Return what multiplies a number by a power of two; a fraction by its odds, and stays one."""

    def change(x: float, _: torch.Generator) -> float:
        factor = 2.0**exponent
        return factor * x / (1 - x + factor * x) if 0 < x < 1 else factor * x

    return change


def _another(x: Any, generator: torch.Generator) -> Any:
    if isinstance(x, bool):
        return not x
    if isinstance(x, int):
        return x + 1
    # Each its own: what serves for one need not for the next.
    share = _ANOTHER * (1 + float(torch.rand((), generator=generator)))
    return x * (1 + share) if abs(x) >= _SMALL_VALUES else x + share
