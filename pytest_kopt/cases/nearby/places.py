"""Masks, counts and places among the inputs of a case.

Masks that keep nothing or everything, counts and lengths of zero, and integers that name places: in
another order, at the ends, and from behind.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import has_skew, is_integer, said_groups
from pytest_kopt.cases.nearby.variant import Change, Drawn, Rewrite, Variant, alone, ends, kept_leaf
from pytest_kopt.honesty.inputs import SCALABLE
from pytest_kopt.numerics.compare import compute_snr
from pytest_kopt.numerics.nested import mapped, tensors

#: Sums in another order differ by less than this says.
_ALIKE_DB = 60.0


def other_masks(drawn: Drawn) -> Iterator[Variant]:
    """Fill masks, each alone, with either value: the whole of it, and one row."""
    for place, number, mask in drawn.leaves():
        if is_integer(mask) and _mask_values(mask):
            true = 255 if mask.dtype is torch.uint8 else 2

            def all_true(x: torch.Tensor, _: torch.Generator, true: int = true) -> torch.Tensor:
                return x * true

            yield Variant(drawn.one(place, number, all_true), f"input {place}, {true} for 1")
        for value in _mask_values(mask):

            def whole(x: torch.Tensor, _: torch.Generator, value: float = value) -> torch.Tensor:
                return torch.full_like(x, value)

            def row(x: torch.Tensor, dice: torch.Generator, value: float = value) -> torch.Tensor:
                rows = x.reshape(-1, x.shape[-1]).clone()
                rows[int(torch.randint(len(rows), (), generator=dice))] = value
                return rows.view(x.shape)

            where = f"input {place}, {value}"
            yield Variant(drawn.one(place, number, whole), f"all of {where}")
            if mask.ndim > 1:
                yield Variant(drawn.one(place, number, row), f"a row of {where}")


def _mask_values(x: Any) -> tuple[float, ...]:
    """Return what a mask says where it drops and where it keeps; () of what is none."""
    if not isinstance(x, torch.Tensor) or x.numel() < 2 or x.is_complex():
        return ()
    if x.dtype is torch.bool:
        return (False, True)
    if x.dtype in SCALABLE:
        return (-math.inf, 0.0) if bool((x == -math.inf).any()) and not bool((x > 0).any()) else ()
    return (0, 1) if is_integer(x) and bool(((x == 0) | (x == 1)).all()) else ()


def with_no_rows(drawn: Drawn) -> Iterator[Variant]:
    """Make counts of another input's rows, and lengths, zero: the first, the last, one between."""
    extents = {n for x in tensors(drawn.inputs) if x.ndim > 1 for n in x.shape}
    all_groups = said_groups(drawn.inputs, extents)

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

    counted = {place for groups in all_groups for place in groups.layouts}
    for groups in all_groups:
        places = ", ".join(map(str, groups.layouts))
        for nothing in ends(len(groups.sizes)):
            changed = drawn.changed(handed_on(groups.layouts.keys(), nothing))
            yield Variant(changed, f"input {places}, number {nothing}")
    for place, number, x in drawn.leaves():
        if place in counted or not is_integer(x) or x.ndim != 1 or len(x) < 2 or int(x.min()) < 1:
            continue
        for nothing in ends(len(x)):
            changed = drawn.one(place, number, without(nothing))
            yield Variant(changed, f"input {place}, number {nothing}")


def _reordered(x: Any, generator: torch.Generator) -> Any:
    """Return masks with other columns, and integers in another order, but for likely offsets."""
    if not isinstance(x, torch.Tensor) or x.is_floating_point() or x.is_complex():
        return x
    if not x.ndim or x.shape[-1] < 2:
        return x
    if x.dtype is torch.bool:
        return x[..., torch.randperm(x.shape[-1], generator=generator).to(x.device)]
    steps = x.flatten().diff()
    if bool((steps >= 0).all()) and not bool((steps == 1).all()):
        return x
    return _shuffled(x, generator)


def _shuffled(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    flat = x.flatten()
    return flat[torch.randperm(len(flat), generator=generator).to(x.device)].view(x.shape)


def other_order(drawn: Drawn) -> Iterator[Variant]:
    probe = torch.Generator()
    # Sizes of groups rest on each other, and are drawn anew in the check.
    if not has_skew(drawn.case) and any(
        _reordered(x, probe) is not x for _, _, x in drawn.leaves()
    ):
        yield Variant(drawn.everywhere(_reordered))


def of_another_width(drawn: Drawn) -> Iterator[Variant]:
    """Have integers come in 32 bits for 64, and in 64 for 32, each alone.

    There is as much memory behind narrower ones as who takes them for the wider would read.
    """
    widths = (torch.int32, torch.int64)
    for place, number, _ in drawn.alone(lambda x: getattr(x, "dtype", None) in widths):
        if place in drawn.case.rewritten or has_skew(drawn.case):
            continue
        case = drawn.one(
            place, number, lambda x, _: x.int() if x.dtype is torch.int64 else x.long()
        )
        if drawn.is_supported(case):
            with_room = alone(place, number, _with_room)
            yield Variant(
                case,
                f"input {place}",
                lay=lambda given, lay=with_room: lay(given, torch.Generator()),  # type: ignore[misc]
            )


def _with_room(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same at the beginning of memory for twice as many, the others zeros."""
    memory = x.new_zeros(2 * x.numel())
    memory[: x.numel()] = x.flatten()
    return memory[: x.numel()].view(x.shape)


def _places(drawn: Drawn) -> Iterator[tuple[int, int, torch.Tensor, list[int]]]:
    """Yield integers that may name places, and the sizes of what they may name them in."""
    if has_skew(drawn.case):
        return
    numbers = {x for x in drawn.inputs if type(x) is int}
    extents = {n for x in tensors(drawn.inputs) for n in x.shape}
    for place, number, x in drawn.leaves():
        if not (is_integer(x) and x.ndim and x.numel()) or place in drawn.case.rewritten:
            continue
        # Offsets rise to a size, and group sizes add up to one.
        sizes = sorted(n for n in extents | numbers if n > int(x.max()))
        rises = bool((x.diff() >= 0).all()) and int(x.max()) in extents
        names = int(x.min()) >= 0 and int(x.max()) > 1 and int(x.sum()) not in extents
        if names and not rises:
            yield place, number, x, sizes


def other_places(drawn: Drawn) -> Iterator[Variant]:
    """Have all integers name the first place, and the last; two the same; and all in order.

    Places that differ in a row, as slots do, go on differing. If sorted places name one for every
    row of another input, as segments do, they are shuffled.
    """
    rows = {len(x) for x in tensors(drawn.inputs) if x.ndim > 1}
    for place, number, x, sizes in _places(drawn):
        changes: dict[str, Change] = {}
        repeats = bool((x.sort(-1).values.diff() == 0).any())
        if sizes and repeats:
            changes["first"] = lambda x, _: torch.zeros_like(x)
            changes["last"] = lambda x, _, size=sizes[0]: torch.full_like(x, size - 1)  # type: ignore[misc]
            if x.ndim == 1 and len(x) in rows and bool((x.diff() >= 0).all()):
                changes["shuffled"] = _shuffled
        if sizes and int(x.max()) < sizes[0] - 1:
            changes["one at the end"] = functools.partial(_with_one_at, sizes[0] - 1)
        if sizes and bool((x.diff() < 0).any()):
            changes["rising"] = lambda x, _: x.sort(-1).values
            changes["falling"] = lambda x, _: x.sort(-1, descending=True).values
        for where, change in changes.items():
            yield Variant(drawn.one(place, number, change), f"input {place}, {where}")
        if x.ndim == 1 and not repeats and not _is_permutation(x):
            case = drawn.one(place, number, lambda x, _: torch.cat([x[:1], x[:1], x[2:]]))
            if is_orderless(drawn, case, len(x)):
                yield Variant(case, f"input {place}, two alike")


def _with_one_at(end: int, x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    """Return integers the largest of which names the end."""
    flat = x.flatten().clone()
    flat[flat.argmax()] = end
    return flat.view(x.shape)


def _is_permutation(x: torch.Tensor) -> bool:
    return bool((x.sort().values == torch.arange(len(x), device=x.device)).all())


def is_orderless(drawn: Drawn, case: Case, rows: int) -> bool:
    """Say whether a reference does not depend on the order of rows: none hides another."""

    def reversed_rows(leaf: Any) -> Any:
        has_rows = isinstance(leaf, torch.Tensor) and leaf.ndim > 0 and len(leaf) == rows
        return kept_leaf(leaf, _reversed) if has_rows else leaf

    turned = replace(case, inputs=lambda: [mapped(x, reversed_rows) for x in case.arguments()])
    before, after = drawn.results(case), drawn.results(turned)
    if before is None or after is None:
        return False
    return all(
        any(
            one.shape == other.shape and (one.numel() == 0 or compute_snr(one, other) > _ALIKE_DB)
            for other in (result, _reversed(result) if result.ndim else result)
        )
        for one, result in zip(before, after, strict=True)
    )


def _reversed(x: torch.Tensor) -> torch.Tensor:
    # By an index: torch cannot flip uint16 to uint64, nor float8.
    return x[torch.arange(len(x) - 1, -1, -1, device=x.device)]


def from_the_end(drawn: Drawn) -> Iterator[Variant]:
    """Count half of the places from the end, where that makes no difference to the reference."""
    places = [*_places(drawn)]
    declared = drawn.results(drawn.case) if places else None
    for place, number, _, sizes in places:
        for size in sizes:

            def change(x: torch.Tensor, dice: torch.Generator, size: int = size) -> torch.Tensor:
                return x - size * torch.randint(2, x.shape, generator=dice).to(x)

            case = drawn.one(place, number, change)
            same = drawn.results(case)
            if declared and same and all(map(torch.equal, declared, same)):
                yield Variant(case, f"input {place}")
                break
