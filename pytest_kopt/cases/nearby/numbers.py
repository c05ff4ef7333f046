"""The numbers of a case: another, zero, and as large and as small as its result shows."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch

from pytest_kopt.cases.case import Case
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
)
from pytest_kopt.honesty.inputs import SCALABLE
from pytest_kopt.numerics.gates import snr

#: By how much another number differs at least, and twice this at most: within what fractions,
#: probabilities and rates may be. A number below the second is changed by as much, since a small
#: share of an epsilon shows in no result.
_ANOTHER, _SMALL = 0.125, 1 / 64


#: By what powers of two a number is moved to an end, until the result shows it.
_OUTWARDS = (4, 20)


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
            change = alone(place, number, _of_number(lambda x, _: -x))
            case = drawn.changed(change, gate=snr(PLAINLY_RIGHT_DB))
            yield Variant(case, f"input {place}")


def absent(drawn: Drawn) -> Iterator[Variant]:
    """Leave out tensors, each alone, that the function or the reference may be called without."""
    case = drawn.case
    for place, x in enumerate(drawn.inputs):
        optional = _is_optional(case, case.function, place) or _is_optional(
            case, case.reference, place
        )
        if isinstance(x, torch.Tensor) and optional and place not in case.rewritten:

            def without(given: list[Any], _: torch.Generator, place: int = place) -> list[Any]:
                given[place] = None
                return given

            changed = drawn.changed(without)
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
            yield Variant(drawn.changed(alone(place, number, another)), where)
        if type(x) is not bool and 0 < x < 1:
            above = _of_number(lambda x, _: x + 2)
            case = drawn.changed(alone(place, number, above), gate=snr(PLAINLY_RIGHT_DB))
            yield Variant(case, f"{where}, above one")
        if x and x is not True:
            zero = _of_number(lambda x, _: type(x)())
            yield Variant(drawn.changed(alone(place, number, zero)), f"{where}, zero")
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
        drawn.changed(alone(place, number, lambda *_, other=other: other))
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

    An epsilon shows beside small inputs only. What no result shows nobody asks for.
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
    return x * (1 + share) if abs(x) >= _SMALL else x + share
