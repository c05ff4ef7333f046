"""Shapes and inputs that a case does not draw, which the candidate has to support as well.

A test's parameters are moved a step, and inputs drawn from a small grammar of layouts, dtypes and
value patterns. What the incumbent cannot do says nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import has_skew
from pytest_kopt.honesty.heldout import LARGER, PATTERNS, Kind
from pytest_kopt.honesty.inputs import SCALABLE, leaves, says_twice
from pytest_kopt.numerics.gates import snr
from pytest_kopt.numerics.nested import flatten, mapped, tensors

#: A tenth of the result may be error with such content, whatever the dtype.
PLAINLY_RIGHT_DB = 20.0
#: Memory of a wider dtype is never too small for a kernel that takes it for what it expects.
_WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
#: No rounding to a narrow dtype gets there.
_WIDE_DB = 60.0
_GRAIN = 256
#: By how much another number differs at least, and twice this at most: within what fractions,
#: probabilities and rates may be.
_ANOTHER = 0.125
_CHANGEABLE = (torch.Tensor, torch.dtype, bool, int, float)
Change = Callable[[Any, torch.Generator], Any]


def cases_of(case: Case, seed: int) -> Iterator[tuple[Kind, Case]]:
    """Yield the case with other content, layouts and dtypes, but for those that it excludes.

    Numbers, masks and places come first, the others in an order drawn under the seed: where time is
    short not all are tried. Weights keep their content, if they have any but zeros.
    """
    kinds = list(PATTERNS)
    random.Random(seed).shuffle(kinds)
    kinds.sort(key=lambda kind: kind not in ("numbers", "indices"))
    for kind in kinds:
        if PATTERNS[kind].excluded_by in case.domain:
            continue
        if kind == "filled" and all(map(_says_something, tensors(case.arguments()))):
            continue
        if kind == "frozen":
            yield from ((kind, found) for found in _frozen(case))
        elif kind in _CHANGES:
            asked = {"wider": snr(_WIDE_DB), "strided": case.gate}.get(kind, snr(PLAINLY_RIGHT_DB))
            weights = kind in ("wider", "strided", "filled")
            gated = replace(case, gate=asked)
            yield kind, _changed(gated, _CHANGES[kind], seed, weights=weights)
        elif not has_skew(case):
            # Sizes of groups rest on each other, and are drawn anew in the check.
            given = [x for i, x in enumerate(case.arguments()) if i not in case.weights]
            leaves = flatten(given, "").values()
            sizes = {*case.dims.values(), *(n for x in tensors(given) for n in x.shape)}
            change = _reordered if kind == "indices" else _renumbered(sizes)
            if any(change(x, torch.Generator()) is not x for x in leaves):
                yield kind, _changed(case, change, seed)


def nearby(value: int, kind: Kind, dice: random.Random) -> int:
    """Return a size a step away from `value`, at least half of it and never `value` itself.

    The grain is the largest power of two, at most 256, that divides the value. An aligned step is
    one grain up or down; an uneven one an odd number below the grain, or 1 for an odd value.
    """
    grain = min(_GRAIN, value & -value)
    step = grain if kind == "aligned" else dice.randrange(1, max(grain, 2), 2)
    up = value + step
    return up if 2 * step > value or dice.random() < 0.5 else value - step


def perturbed(
    parameters: Mapping[str, Any], dims: Mapping[str, Any], kind: Kind, dice: random.Random
) -> dict[str, Any] | None:
    """Return a test's parameters with some of its sizes moved, None where it has none.

    Sizes are integers above 1, wherever in the parameters, that are values of the case's dims. Each
    is moved with probability 1/2, and one at least; equal ones together, as they may have to be.
    """
    held = {value for value in flatten(parameters, "").values() if _is_size(value)}
    movable = sorted(held & {value for value in dims.values() if _is_size(value)})
    if not movable:
        return None
    chosen = [value for value in movable if dice.random() < 0.5] or [dice.choice(movable)]
    moved = {value: nearby(value, kind, dice) for value in chosen}
    found: dict[str, Any] = mapped(
        dict(parameters), lambda x: moved.get(x, x) if _is_size(x) else x, (int,)
    )
    return found


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 1


def _changed(case: Case, change: Change, seed: int, *, weights: bool = False) -> Case:
    def inputs() -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        return [
            x
            if place in case.weights and not weights
            else mapped(x, lambda leaf: change(leaf, generator), _CHANGEABLE)
            for place, x in enumerate(case.arguments())
        ]

    return replace(case, inputs=inputs)


def _frozen(case: Case) -> Iterator[Case]:
    """Yield a case with a backward with one input after the other that asks for no gradient."""
    asking = leaves(case.arguments()) if case.backward else {}

    def without(place: int) -> Callable[[], list[Any]]:
        return lambda: [x.detach() if i == place else x for i, x in enumerate(case.arguments())]

    # A single one has to ask.
    for place in asking if len(asking) > 1 else ():
        yield replace(case, inputs=without(place))


def _floating(change: Change) -> Change:
    """Return the change for tensors of floating-point numbers, which keeps leaves leaves."""

    def changed(x: Any, generator: torch.Generator) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype not in SCALABLE:
            return x
        plain = x.detach()
        # Tables of angles say everything twice, and kernels read one half.
        if says_twice(plain):
            half = plain[..., : x.shape[-1] // 2]
            found = change(half, generator).repeat(*[1] * (x.ndim - 1), 2)
        else:
            found = change(plain, generator)
        return found.requires_grad_(x.requires_grad)

    return changed


def _renumbered(sizes: Container[Any]) -> Change:
    """Return the change of numbers that are no tensors, and of none that is a size."""

    def changed(x: Any, generator: torch.Generator) -> Any:
        if isinstance(x, bool):
            return not x
        if isinstance(x, float) and x:
            # Each its own: what serves for one need not for the next.
            return x * (1 + _ANOTHER * (1 + float(torch.rand((), generator=generator))))
        return x + 1 if isinstance(x, int) and x not in sizes else x

    return changed


def _reordered(x: Any, generator: torch.Generator) -> Any:
    """Return masks with other columns, and integers in another order, but for likely offsets."""
    if not isinstance(x, torch.Tensor) or x.is_floating_point() or x.is_complex():
        return x
    if not x.ndim or x.shape[-1] < 2:
        return x
    if x.dtype is torch.bool:
        return x[..., torch.randperm(x.shape[-1], generator=generator).to(x.device)]
    flat = x.flatten()
    steps = flat.diff()
    if bool((steps >= 0).all()) and not bool((steps == 1).all()):
        return x
    return flat[torch.randperm(len(flat), generator=generator).to(x.device)].view(x.shape)


def _larger(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # A power of two: exact in every dtype, short of infinity.
    larger = x * LARGER
    if larger.ndim > 1 and len(larger) > 1:
        larger[0] = 0
    return larger


def _outlier(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not x.numel():
        return x
    rows = x.reshape(-1, x.shape[-1]).clone() if x.ndim else x.reshape(1, 1).clone()
    place = torch.randint(rows.shape[1], (len(rows),), generator=generator).to(x.device)
    rows[torch.arange(len(rows), device=x.device), place] = 8 * LARGER
    return rows.reshape(x.shape)


def _masked(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same with -inf from a place of every row on, as masks make it."""
    if not x.ndim or x.shape[-1] < 2:
        return x
    kept = torch.randint(1, x.shape[-1], (*x.shape[:-1], 1), generator=generator).to(x.device)
    places = torch.arange(x.shape[-1], device=x.device)
    return x.masked_fill(places >= kept, float("-inf"))


def _lopsided(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return rows of different size, one larger than all together, and every n-th element large."""
    if not x.ndim or not x.numel():
        return x
    rows = x[..., :1].numel()
    steps = torch.randint(-2, 3, (rows,), generator=generator)
    # A sum of squares over half of the rows, doubled, is then another sum; two inputs differ.
    place, more = (int(torch.randint(n, (), generator=generator)) for n in (rows, 3))
    steps[place] = 2 + math.ceil(math.log2(rows) / 2) + more
    found = x * torch.exp2(steps.view(*x.shape[:-1], 1).float()).to(x)
    found[..., :: 2 ** int(torch.randint(1, 7, (), generator=generator))] *= 16
    return found


def _says_something(x: torch.Tensor) -> bool:
    return x.dtype not in SCALABLE or not x.numel() or bool(x.any())


def _filled(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if _says_something(x):
        return x
    return torch.randn(x.shape, generator=generator).to(x)


def strided_like(gradient: torch.Tensor) -> torch.Tensor:
    """Return memory for an incoming gradient that is not contiguous: transposed, or with gaps."""
    return _transposed(torch.stack([gradient] * 2, -1)[..., 0])


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.ndim > 1 else x


_widened = _floating(lambda x, _: x.to(_WIDER.get(x.dtype, x.dtype)))


def _wider(x: Any, generator: torch.Generator) -> Any:
    """Widen tensors, and a dtype among the arguments."""
    return _WIDER.get(x, x) if isinstance(x, torch.dtype) else _widened(x, generator)


_OF_NUMBERS: dict[Kind, Change] = {
    "large": _larger,
    "outlier": _outlier,
    "lopsided": _lopsided,
    "masked": _masked,
    "constant": lambda x, _: x[..., :1].expand_as(x).clone() if x.ndim else x,
    "tiny": lambda x, _: x / 2**12,
    "filled": _filled,
    "negated": lambda x, _: -x,
    "sorted": lambda x, _: x.sort(-1, descending=True).values if x.ndim else x,
    "strided": lambda x, _: _transposed(x),
}
_CHANGES = {kind: _floating(change) for kind, change in _OF_NUMBERS.items()} | {"wider": _wider}
