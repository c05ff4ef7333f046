"""Masks of a case that keep nothing or everything, and counts and lengths of zero."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import torch

from pytest_kopt.cases.groups import is_integer, said_groups
from pytest_kopt.cases.nearby.variant import Change, Drawn, Rewrite, Variant, alone, ends
from pytest_kopt.honesty.inputs import SCALABLE
from pytest_kopt.numerics.nested import tensors


def other_masks(drawn: Drawn) -> Iterator[Variant]:
    """Fill masks, each alone, with either value: the whole of it, and one row."""
    for place, number, mask in drawn.leaves():
        if is_integer(mask) and _mask_values(mask):
            true = 255 if mask.dtype is torch.uint8 else 2

            def all_true(x: torch.Tensor, _: torch.Generator, true: int = true) -> torch.Tensor:
                return x * true

            yield Variant(
                drawn.changed(alone(place, number, all_true)), f"input {place}, {true} for 1"
            )
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
            changed = drawn.changed(alone(place, number, without(nothing)))
            yield Variant(changed, f"input {place}, number {nothing}")
