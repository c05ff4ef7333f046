"""Shapes and inputs that a case does not draw, which the candidate has to support as well.

A test's parameters are moved a step. Every axis of the inputs is tried at its ends, and one input
at a time: sizes, layouts, numbers, masks, counts, identity, dtypes and values. What the incumbent
cannot do says nothing.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import has_skew, is_integer, said_groups
from pytest_kopt.cases.input_values import (
    GRAIN,
    all_wider,
    close_together,
    constant,
    exact,
    larger,
    lopsided,
    masked,
    of_numbers,
    outlier,
    takes_masks,
    tiny,
    where_zeros_are,
)
from pytest_kopt.cases.layouts import (
    all_transposed,
    as_one_number,
    as_one_row,
    frozen,
    further_behind,
    into_the_input,
    laid,
    rubbish,
    transposed,
    with_gaps,
)
from pytest_kopt.cases.numbers import other_numbers
from pytest_kopt.cases.places import from_the_end, other_order, other_places
from pytest_kopt.cases.second_order import twice
from pytest_kopt.cases.seeds import seed_everything
from pytest_kopt.cases.variant import (
    Change,
    Drawn,
    Rewrite,
    Variant,
    alone,
    ends,
    floating,
    kept_leaf,
)
from pytest_kopt.honesty.inputs import SCALABLE, says_twice
from pytest_kopt.honesty.nearby_shapes import PATTERNS, Kind
from pytest_kopt.numerics.nested import flatten, mapped, tensors

#: A smaller extent is structure (a filter's taps, real and imaginary part), and is not moved.
_LEAST_SIZE = 8


#: Tried first, however slow the kernel is: what it is told, and how much of its inputs counts.
_FIRST = (
    *("numbers", "indices", "masks", "counts", "none", "one", "aliased"),
    *("behind", "close", "places", "twice"),
)


def variants(case: Case, seed: int, carried: Collection[int] = ()) -> Iterator[Variant]:
    """Yield the case with other content, sizes, layouts and dtypes, but for those it excludes.

    The sizes that are `carried` by a test's parameters are moved there. The order of the patterns
    is drawn under the seed: where time is short not all are tried. Weights keep their content, if
    they have any but zeros, unless a pattern says otherwise.
    """
    seed_everything(seed)
    drawn = Drawn(case, list(case.arguments()), seed, carried)
    kinds = [kind for kind in GENERATORS if PATTERNS[kind].excluded_by not in case.domain]
    random.Random(seed).shuffle(kinds)
    for kind in sorted(kinds, key=lambda kind: kind not in _FIRST):
        told: Counter[tuple[str, str]] = Counter()
        for variant in GENERATORS[kind](drawn):
            named = variant.where, repr(variant.case.dims)
            told[named] += 1
            # Variants of one name would be taken for one, and the last for what became of it.
            where = f"{variant.where}, number {told[named]}" if told[named] > 1 else variant.where
            yield variant._replace(kind=kind, where=where)


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


def _longer(drawn: Drawn) -> Iterator[Variant]:
    """Move sizes that no parameter carries, each alone and upwards: places stay within bounds."""
    dice = random.Random(drawn.seed)
    counted = {n for values in _integers(drawn) for n in (sum(values), max(values, default=-1))}
    for size in _extents(drawn):
        if size not in drawn.carried and size not in counted:
            yield _resized(drawn, size, nearby(size, "uneven", dice, larger=True))


def _of_rows(count: int) -> Callable[[Drawn], Iterator[Variant]]:
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


# Numbers, masks, counts, identity


def _other_masks(drawn: Drawn) -> Iterator[Variant]:
    """Fill masks, each alone, with either value: the whole of it, and one row."""
    for place, number, mask in drawn.leaves():
        for value in _mask_values(mask):

            def whole(x: torch.Tensor, _: torch.Generator, value: float = value) -> torch.Tensor:
                return torch.full_like(x, value)

            def row(x: torch.Tensor, dice: torch.Generator, value: float = value) -> torch.Tensor:
                rows = x.reshape(-1, x.shape[-1]).clone()
                rows[int(torch.randint(len(rows), (), generator=dice))] = value
                return rows.view(x.shape)

            where = f"input {place}, {value}"
            yield Variant(drawn.changed(alone(place, number, whole)), f"all of {where}")
            if mask.ndim > 1:
                yield Variant(drawn.changed(alone(place, number, row)), f"a row of {where}")


def _mask_values(x: Any) -> tuple[float, ...]:
    """Return what a mask says where it drops and where it keeps; () of what is none."""
    if not isinstance(x, torch.Tensor) or x.numel() < 2 or x.is_complex():
        return ()
    if x.dtype is torch.bool:
        return (False, True)
    if x.dtype in SCALABLE:
        return (-math.inf, 0.0) if bool((x == -math.inf).any()) and not bool((x > 0).any()) else ()
    return (0, 1) if is_integer(x) and bool(((x == 0) | (x == 1)).all()) else ()


def _with_no_rows(drawn: Drawn) -> Iterator[Variant]:
    """Make counts of another input's rows, and lengths, zero: the first, the last, one between."""
    extents = {n for x in tensors(drawn.given) if x.ndim > 1 for n in x.shape}
    said = said_groups(drawn.given, extents)

    def handed_on(layouts: Collection[int], nothing: int) -> Rewrite:
        def rewrite(given: list[Any], _: torch.Generator) -> list[Any]:
            for groups in said_groups(given, extents):
                if groups.layouts.keys() == layouts:
                    sizes = [*groups.sizes]
                    sizes[nothing - 1 if nothing else 1] += sizes[nothing]
                    sizes[nothing] = 0
                    return groups.replaced(given, sizes)
            return given

        return rewrite

    def without(nothing: int) -> Change:
        return lambda x, _: x.index_fill(0, torch.tensor(nothing, device=x.device), 0)

    counted = {place for groups in said for place in groups.layouts}
    for groups in said:
        places = ", ".join(map(str, groups.layouts))
        for nothing in ends(len(groups.sizes)):
            changed = drawn.changed(handed_on(groups.layouts.keys(), nothing))
            yield Variant(changed, f"input {places}, number {nothing}")
    for place, number, x in drawn.leaves():
        if place in counted or not is_integer(x) or x.ndim != 1 or len(x) < 2 or int(x.min()) < 1:
            continue
        for nothing in ends(len(x)):
            changed = drawn.changed(alone(place, number, without(nothing)))
            yield Variant(changed, f"input {place}, number {nothing}")


#: By kind of `PATTERNS`: what yields the case with such inputs, as often as there are inputs to
#: change alone.
GENERATORS: dict[Kind, Callable[[Drawn], Iterator[Variant]]] = {
    "uneven": _longer,
    "none": _of_rows(0),
    "one": _of_rows(1),
    "numbers": other_numbers,
    "indices": other_order,
    "places": other_places,
    "behind": from_the_end,
    "close": close_together,
    "twice": twice,
    "masks": _other_masks,
    "counts": _with_no_rows,
    "aliased": into_the_input,
    "padded": rubbish,
    "strided": all_transposed,
    "turned": laid(transposed),
    "pitched": laid(with_gaps, with_gaps),
    "shifted": laid(further_behind, least=1),
    "expanded": laid(
        as_one_row, as_one_number, content=floating(lambda x, _: as_one_row(x).clone())
    ),
    "frozen": frozen,
    "wider": all_wider,
    "exact": exact,
    "filled": where_zeros_are,
    "large": of_numbers(larger),
    "outlier": of_numbers(outlier),
    "lopsided": of_numbers(lopsided),
    "masked": of_numbers(masked, takes_masks),
    "constant": of_numbers(constant),
    "tiny": of_numbers(tiny),
    "negated": of_numbers(lambda x, _: -x),
    "sorted": of_numbers(lambda x, _: x.sort(-1, descending=True).values if x.ndim else x),
}
