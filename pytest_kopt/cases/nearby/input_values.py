"""The inputs of a case with other values: numbers, masks and integers among them.

Each function yields the variants of one axis; `near_inputs.py` has the table.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import has_skew, is_integer
from pytest_kopt.cases.nearby.variant import (
    LOOSE,
    Change,
    Drawn,
    Judged,
    Leaf,
    Variant,
    beside,
    ends,
    floating,
    in_order,
    is_float,
    kept_leaf,
    leafwise,
    replaced,
    same,
    signs_like,
)
from pytest_kopt.honesty.inputs import SCALABLE
from pytest_kopt.numerics.gates import snr, tolerance
from pytest_kopt.numerics.nested import bits, fresh_copies, tensors

#: No rounding to a narrow dtype gets there.
WIDE = snr(60.0)
#: Another integer than one below 192 misses it, and what bfloat16 makes of a larger one meets it.
_NEAREST_INTEGER = tolerance(rtol=2.0**-8, atol=0.25)
#: Standard normal inputs then reach beyond 88, where exp overflows in float32.
_LARGER = 32.0
#: A mask that fills with a finite number is wrong for values that lie as far on its side.
_SHIFTS = (1e2, -1e2, 1e5, -1e5)
#: What of a sparse tensor of integers is not zero.
_DENSE = 0.25
_FP8 = (
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    *(torch.float8_e5m2, torch.float8_e5m2fnuz),
)
#: Results that name places; narrower integers are numbers that were rounded.
_PLACES = (torch.int64, torch.int32)
#: By what powers of two a number is moved to its ends; an epsilon shows with small inputs only.
_OUTWARDS = (4, -4, 20, -20)


def _larger(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    # A power of two: exact in every dtype, short of infinity.
    larger = x * _LARGER
    if larger.ndim > 1 and len(larger) > 1:
        larger[0] = 0
    return larger


def _outlier(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    place = torch.randint(x.shape[-1], (*x.shape[:-1], 1), generator=generator).to(x.device)
    return x.scatter(-1, place, 8 * _LARGER)


def _dominant(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same with one row of several 2**24 times as large, or less in float16."""
    rows = x.reshape(-1, x.shape[-1]).clone()
    if len(rows) < 2:
        return x
    room = torch.finfo(x.dtype).max / (64 * max(1.0, float(x.abs().max())))
    # What runs over all rows carries it on to those that follow.
    place = torch.randint(len(rows) // 2, (), generator=generator)
    rows[place] *= 2.0 ** min(24, math.floor(math.log2(room)))
    return rows.reshape(x.shape)


def _shifted(x: torch.Tensor, _: torch.Generator, by: float = 0.0) -> torch.Tensor:
    return x + math.copysign(min(abs(by), torch.finfo(x.dtype).max / 4), by)


def _in_a_row(x: torch.Tensor, _: torch.Generator, least: float = 1.0) -> torch.Tensor:
    """Return numbers of either sign, the next of its format for every one, in the tensor's order.

    They keep their order over the whole tensor, so that it does not matter along which dimension
    they are compared.
    """
    integers = bits(x).dtype
    # Zero has two signs, and is left out.
    first = max(1, int(x.new_full((), least).view(integers)))
    if first + x.numel() > int(x.new_full((), torch.finfo(x.dtype).max).view(integers)):
        return x
    rank = x.flatten().argsort().argsort() - x.numel() // 2
    size = (first + torch.where(rank < 0, -1 - rank, rank)).to(integers).view(x.dtype)
    return torch.where(rank < 0, -size, size).view(x.shape)


def _small_integers(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return -1, 0 and 1, mostly zeros: every format holds them, and every sum of a few of them."""
    dice = beside(x, generator)
    signs = torch.randint(2, x.shape, generator=dice, device=x.device) * 2 - 1
    integers = signs * (torch.rand(x.shape, generator=dice, device=x.device) < _DENSE)
    # No row is zeros, of which a scale cannot be made, and the last element of each counts.
    integers[..., -1:] = 1
    return integers.to(x)


def _exactly(x: Any, generator: torch.Generator) -> Any:
    """Return integers for all floating-point tensors, single numbers and those of 8 bits too."""
    if is_float(x) and not x.ndim:
        return kept_leaf(x, torch.ones_like)
    is_fp8 = isinstance(x, torch.Tensor) and x.dtype in _FP8
    return (_small_integers if is_fp8 else floating(_small_integers))(x, generator)


def _are_integers(inputs: Sequence[Any], expected: Sequence[Any]) -> bool:
    return all(torch.equal(x, x.round()) for x in tensors(expected) if x.dtype in SCALABLE)


def _name_places(inputs: Sequence[Any], expected: Sequence[Any]) -> bool:
    return any(x.dtype in _PLACES for x in tensors(expected))


def other_values(drawn: Drawn) -> Iterator[Variant]:
    """Change all values together: in size, in their mean, and to neighbours."""
    changes: tuple[tuple[str, Change, Judged], ...] = (
        (f"{_LARGER:g} times as large, the first row zeros", _larger, "no indices"),
        ("4096 times smaller", _tiny, "no indices"),
        ("rows of one value", lambda x, _: x[..., :1].expand_as(x).clone(), "no indices"),
        ("one outlier in every row", _outlier, "all"),
        ("one row far larger than the others", _dominant, "each row"),
    )
    for where, change, judged in changes:
        yield Variant(drawn.loose(change), where, judged=judged)
    for by in _SHIFTS:
        case = drawn.loose(functools.partial(_shifted, by=by))
        yield Variant(case, f"a mean of {by:g}", judged="no indices")
    for where, least in (("values that differ in the last bit", 1.0), ("denormal values", 0.0)):
        change = floating(functools.partial(_in_a_row, least=least))
        case = drawn.changed(change, backward=False)
        yield Variant(case, where, judged="indices", counts=_name_places)


def small_integers(drawn: Drawn) -> Iterator[Variant]:
    """Require exact results of -1, 0 and 1: what a coarse tolerance hides shows there.

    Many elements that err a little show in the SNR, and one that is another integer shows alone.
    """
    for where, gate in (("as a whole", WIDE), ("each element", _NEAREST_INTEGER)):
        case = drawn.changed(_exactly, weights=True, gate=gate, backward=False)
        yield Variant(case, where, judged="no indices", counts=_are_integers)


def _tiny(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return x / 2**12


def _masked(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same with -inf from a place of every row on, as masks make it."""
    ends = torch.randint(1, max(x.shape[-1], 2), (*x.shape[:-1], 1), generator=generator)
    places = torch.arange(x.shape[-1], device=x.device)
    return x.masked_fill(places >= ends.to(x.device), -math.inf)


def _masked_row(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    """Return the same with -inf alone in one row of several."""
    has_rows = x.ndim > 1 and len(x) > 1
    return torch.cat([torch.full_like(x[:1], -math.inf), x[1:]]) if has_rows else x


def _takes_infinities(inputs: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Say whether infinities stay where an input has them, if anywhere: else none is a mask.

    A blur spreads it, and an average of two tensors has it where either does.
    """
    masks = [x.isinf() for x in tensors(inputs) if x.dtype in SCALABLE]
    results = [x for x in tensors(expected) if x.is_floating_point()]
    return all(
        any(torch.equal(mask, ~x.isfinite()) for mask in masks)
        for x in results
        if not x.isfinite().all()
    )


def infinities(drawn: Drawn) -> Iterator[Variant]:
    for where, change in (("-inf at the end of rows", _masked), ("a row of -inf", _masked_row)):
        yield Variant(drawn.loose(change), where, judged="no indices", counts=_takes_infinities)


def nan_in_unread_elements(drawn: Drawn) -> Iterator[Variant]:
    """Put NaN into the elements of an input on which the reference's result does not depend.

    Those have a gradient of zero, and another value there leaves the result as it is.
    """
    places = [at for at, _ in drawn.some(lambda x: is_float(x) and x.numel() > 1)]
    masks = dict(zip(places, _without_gradient(drawn, places), strict=False))
    unread = {at: mask for at, mask in masks.items() if bool(mask.any())}
    expected = drawn.results(drawn.case) if unread else []
    for at, mask in unread.items():

        def fill(x: Any, _: torch.Generator, value: float, mask: torch.Tensor = mask) -> Any:
            return kept_leaf(x, lambda plain: plain.masked_fill(mask, value))

        numbers, rubbish = (
            drawn.changed(functools.partial(fill, value=value), at, backward=False)
            for value in (-1e4, math.nan)
        )
        if all(same(expected, drawn.results(case)) for case in (numbers, rubbish)):
            yield Variant(rubbish, f"input {at[0]}")


def _without_gradient(drawn: Drawn, places: Sequence[Leaf]) -> list[torch.Tensor]:
    """Return where the reference's result has a gradient of zero for leaves of the inputs."""
    case, inputs = drawn.case, fresh_copies(drawn.inputs)
    leaves = {at: in_order(inputs[at[0]])[at[1]].detach().requires_grad_() for at in places}
    with suppress(Exception), torch.enable_grad():
        for at, leaf in leaves.items():
            inputs = leafwise(lambda _, __, leaf=leaf: leaf, at)(inputs, torch.Generator())  # type: ignore[misc]
        roots = [x for x in tensors(case.positional(case.reference)(*inputs)) if x.requires_grad]
        # With incoming gradients torch would import sympy, for seconds.
        total = torch.stack([(x * signs_like(x)).sum().double() for x in roots]).sum()
        gradients = torch.autograd.grad(total, [*leaves.values()], allow_unused=True)
        pairs = zip(leaves.values(), gradients, strict=True)
        return [torch.zeros_like(x).bool() if g is None else g == 0 for x, g in pairs]
    return []


def filled(drawn: Drawn) -> Iterator[Variant]:
    """Draw values for tensors of one value, each alone: a kernel may leave them out."""

    def is_constant(x: Any) -> bool:
        return is_float(x) and x.numel() > 1 and bool((x == x.flatten()[0]).all())

    for at, _ in drawn.some(is_constant, weights=True):
        yield Variant(drawn.changed(floating(_random), at, gate=LOOSE), f"input {at[0]}")


def _random(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(x.shape, generator=beside(x, generator), device=x.device).to(x)


# Numbers


def _is_number(x: Any) -> bool:
    is_tensor = isinstance(x, torch.Tensor)
    return (is_float(x) and x.numel() == 1) if is_tensor else isinstance(x, bool | int | float)


def _put(value: float, x: Any, _: torch.Generator) -> Any:
    """Put a number in the place of another, which may be in a tensor."""
    return kept_leaf(x, lambda p: torch.full_like(p, value)) if is_float(x) else value


def _other_numbers(x: Any, drawn: Drawn) -> list[float]:
    """Return others for a number; for a size smaller ones, as nothing may lie behind it."""
    if isinstance(x, bool):
        return [not x]
    if type(x) is int:
        more = [] if x in drawn.extents else [x + 1, 2 * x, 16 * x, 0, 1]
        return [n for n in dict.fromkeys((*more, x // 2, x - 1)) if n != x]
    value, share = float(x), (1 + random.Random(drawn.seed).random()) / 8
    # A small share of an epsilon shows in no result.
    another = value * (1 + share) if abs(value) >= 1 / 64 else value + share
    outwards = [value * 2.0**exponent for exponent in _OUTWARDS]
    return [n for n in dict.fromkeys((0.0, 1.0, another, *outwards)) if n != value]


def other_numbers(drawn: Drawn) -> Iterator[Variant]:
    """Change numbers, each alone, with large and with small inputs; put them into the integers."""
    small = drawn._replace(case=drawn.loose(_tiny))
    for at, x in drawn.some(_is_number):
        where = f"input {at[0]}"
        inputs = (drawn,) if type(x) in (bool, int) else (drawn, small)
        for value, content in itertools.product(_other_numbers(x, drawn), inputs):
            text = f"{where} is {value:.4g}" + ", small inputs" * (content is small)
            change = functools.partial(_put, value)
            gate = drawn.case.gate if content is drawn and abs(value) <= 2 else LOOSE
            yield Variant(content.changed(change, at, gate=gate), text, part=where)
        if type(x) is int:
            reason = f"the reference supports no other number than {x} as {where}"
            yield Variant(drawn.case, where, part=where, untried=reason)
            for vector, _, changed in drawn.integers():
                yield Variant(changed(functools.partial(_with_some, x)), f"{x} in {vector}")


def _with_some(value: int, x: torch.Tensor, dice: torch.Generator) -> torch.Tensor:
    """Return integers with a value in some places, in one place if all of them differ."""
    flat = x.flatten().clone()
    count = 1 if len(flat.unique()) == len(flat) else max(1, len(flat) // 4)
    flat[torch.randperm(len(flat), generator=dice)[:count].to(x.device)] = value
    return flat.view(x.shape)


def other_signs(drawn: Drawn) -> Iterator[Variant]:
    """Change the sign of values and numbers; count integers from the end, if that is the same."""
    yield Variant(drawn.loose(_negated), "all values")
    # The sign of a product stays where those of both factors change.
    several = [at for at, _ in drawn.some(is_float)]
    for at in several if len(several) > 1 else ():
        yield Variant(drawn.changed(floating(_negated), at, gate=LOOSE), f"values of input {at[0]}")
    for at, x in drawn.some(_is_number):
        if not isinstance(x, bool):
            value = -(x if type(x) is int else float(x)) or -1
            case = drawn.changed(functools.partial(_put, value), at, gate=LOOSE)
            yield Variant(case, f"input {at[0]} is {value:.4g}")
    integers = [*drawn.integers()]
    expected = drawn.results(drawn.case) if integers else []
    for where, x, changed in integers:
        cases = (changed(functools.partial(_from_the_end, n)) for n in drawn.beyond(x))
        alike = [case for case in cases if same(expected, drawn.results(case))]
        if alike:
            yield Variant(alike[0], f"{where}, from the end")


def _negated(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return x.where(x.isinf(), -x)


def _from_the_end(size: int, x: torch.Tensor, dice: torch.Generator) -> torch.Tensor:
    """Return the same places, half of them counted from the end."""
    return x - size * torch.randint(2, x.shape, generator=dice).to(x)


def absent(drawn: Drawn) -> Iterator[Variant]:
    """Leave out tensors, each alone, that the function or the reference has None as default of."""
    case = drawn.case
    for place, x in enumerate(drawn.inputs):
        functions = (case.function, case.reference)
        is_optional = any(_has_none(function, case.keywords, place) for function in functions)
        if isinstance(x, torch.Tensor) and is_optional and place not in case.rewritten:
            yield Variant(drawn.rewritten(replaced(place, None)), f"input {place}")


def _has_none(function: Callable[..., Any], keywords: Sequence[str], place: int) -> bool:
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(function).parameters
    name = [*(keywords or parameters), *[""] * (place + 1)][place]
    return name in parameters and parameters[name].default is None


# Masks and integers


def _divides(x: torch.Tensor, extents: Collection[int]) -> bool:
    """Say whether integers divide rows, as sizes and offsets do: they sum or rise to an extent."""
    rises = bool((x.flatten().diff() >= 0).all())
    return int(x.sum()) in extents or (rises and int(x.max()) in extents)


def _reordered(x: Any, generator: torch.Generator) -> Any:
    """Return masks with other columns, and integers in another order, but for likely offsets."""
    is_mask = isinstance(x, torch.Tensor) and x.dtype is torch.bool
    if not (is_mask or is_integer(x)) or not x.ndim or x.shape[-1] < 2:
        return x
    if is_mask:
        return x[..., torch.randperm(x.shape[-1], generator=generator).to(x.device)]
    flat = x.flatten()
    steps = flat.diff()
    if bool((steps >= 0).all()) and not bool((steps == 1).all()):
        return x
    return flat[torch.randperm(len(flat), generator=generator).to(x.device)].view(x.shape)


def _sorted(x: torch.Tensor, _: torch.Generator, *, is_falling: bool) -> torch.Tensor:
    return x.sort(-1, descending=is_falling).values


def other_order(drawn: Drawn) -> Iterator[Variant]:
    for where, is_falling in (("rows that rise", False), ("rows that fall", True)):
        change = functools.partial(_sorted, is_falling=is_falling)
        yield Variant(drawn.loose(change), where)
    probe = torch.Generator()
    if not has_skew(drawn.case) and any(_reordered(x, probe) is not x for _, x in drawn.leaves()):
        yield Variant(drawn.changed(_reordered), "masks and integers")
    for where, x, changed in drawn.integers():
        for order in ("rising", "falling") if not _divides(x, drawn.extents) else ():
            change = functools.partial(_sorted, is_falling=order == "falling")
            yield Variant(changed(change), f"{where}, {order}")


def integers_at_their_ends(drawn: Drawn) -> Iterator[Variant]:
    """Have integers all name the first place or the last, and one name the last.

    Rows that are written to one place twice have no order: where places all differ they are made
    the same only if the reference adds such rows up.
    """
    for where, x, changed in drawn.integers():
        if int(x.min()) < 0 or _divides(x, drawn.extents):
            continue
        all_differ, lasts = len(x.unique()) == x.numel(), [n - 1 for n in drawn.beyond(x)[:1]]
        for value in (0,) if all_differ else (0, *lasts):
            every = changed(lambda x, _, value=value: torch.full_like(x, value))  # type: ignore[misc]
            if not (all_differ and _has_order(drawn, every, len(x))):
                yield Variant(every, f"{where}, all {value}")
        for last in lasts:
            largest = changed(lambda x, _, last=last: x.where(x < x.max(), last))  # type: ignore[misc]
            yield Variant(largest, f"{where}, the largest {last}")


def _has_order(drawn: Drawn, case: Case, count: int) -> bool:
    """Say whether results depend on the order of `count` rows, all of which name the first place.

    The first row keeps its place: it may be that of a table.
    """

    def turn(x: Any) -> Any:
        has_rows = isinstance(x, torch.Tensor) and x.ndim and len(x) == count
        return torch.cat([x[:1], x[1:].flip(0)]) if has_rows else x

    def turned(x: Any, _: torch.Generator) -> Any:
        return kept_leaf(x, turn)

    with_other_order = drawn._replace(case=case).changed(turned, weights=True)
    results = zip(drawn.results(case), drawn.results(with_other_order), strict=False)
    return not all(
        any(x.shape == y.shape and torch.allclose(x, y) for x in (a, turn(a))) for a, y in results
    )


def other_masks(drawn: Drawn) -> Iterator[Variant]:
    """Fill tensors of two values, each alone, with either: the whole of it, and one row."""
    for at, x in drawn.leaves():
        if not isinstance(x, torch.Tensor) or x.numel() < 3 or x.is_complex() or x.dtype in _FP8:
            continue
        least, most = (False, True) if x.dtype is torch.bool else (x.min().item(), x.max().item())
        if not (least < most and bool(((x == least) | (x == most)).all())):
            continue
        if is_integer(x) and (least, most) == (0, 1):
            yield Variant(drawn.changed(lambda x, _: x * 2, at), f"input {at[0]}, 2 for 1")
        for value in (least, most):

            def row(x: torch.Tensor, dice: torch.Generator, value: float = value) -> torch.Tensor:
                rows = x.reshape(-1, x.shape[-1]).clone()
                rows[int(torch.randint(len(rows), (), generator=dice))] = value
                return rows.view(x.shape)

            whole = drawn.changed(lambda x, _, value=value: torch.full_like(x, value), at)  # type: ignore[misc]
            yield Variant(whole, f"all of input {at[0]}, {value}")
            if x.ndim > 1:
                yield Variant(drawn.changed(row, at), f"a row of input {at[0]}, {value}")


def without_rows(drawn: Drawn) -> Iterator[Variant]:
    """Make counts of rows, and lengths, zero: the first, the last, one between.

    Sizes and offsets of the same rows in several inputs are changed together.
    """
    vectors = [*drawn.integers()]
    dividing = [x for _, x, _ in vectors if x.ndim == 1 and _divides(x, drawn.extents)]

    def without(x: Any, _: torch.Generator, empty: int) -> Any:
        is_dividing = is_integer(x) and any(torch.equal(x, vector) for vector in dividing)
        return _handed_on(x, empty, drawn.extents) if is_dividing else x

    for where, x, changed in vectors:
        if dividing and x is dividing[0]:
            # Offsets begin with zero, and are one more than the groups.
            for empty in ends(len(x) - (int(x[0]) == 0)):
                change = functools.partial(without, empty=empty)
                case = drawn.changed(change) if len(dividing) > 1 else changed(change)
                yield Variant(case, f"number {empty} of {where}")
        elif not any(x is vector for vector in dividing) and int(x.min()) > 0:
            for empty in ends(x.numel()):
                zero = changed(functools.partial(_zero, empty))
                yield Variant(zero, f"number {empty} of {where}")


def _handed_on(x: torch.Tensor, empty: int, extents: Collection[int]) -> torch.Tensor:
    """Return sizes, offsets, starts or ends of groups with the rows of one in the next to it."""
    result = x.clone()
    if int(x.sum()) in extents:
        result[empty - 1 if empty else 1] += x[empty]
        result[empty] = 0
    elif int(x[0]) == 0:
        result[empty or 1] = x[empty + 1] if empty else 0
    else:
        result[empty - 1 if empty else 0] = x[empty] if empty else 0
    return result


def _zero(place: int, x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return x.flatten().index_fill(0, torch.tensor(place, device=x.device), 0).view(x.shape)
