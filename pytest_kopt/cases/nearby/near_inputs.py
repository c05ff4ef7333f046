"""Inputs near those that a case draws: one transformation for each axis of `AXES`.

No transformation knows what an argument means: the reference and the current best decide which
inputs they support. Values of weights stay, unless an axis says otherwise.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import has_skew, is_integer
from pytest_kopt.cases.nearby import input_values
from pytest_kopt.cases.nearby.input_values import WIDE
from pytest_kopt.cases.nearby.variant import (
    LOOSE,
    Drawn,
    Leaf,
    Rewrite,
    Variant,
    floating,
    is_float,
    kept_leaf,
    laid,
    leafwise,
    signs_like,
)
from pytest_kopt.cases.order import seed_everything
from pytest_kopt.honesty.inputs import SCALABLE, leaves, says_twice
from pytest_kopt.honesty.nearby_shapes import Kind, tried_axes
from pytest_kopt.numerics.nested import backward, mapped, tensors

#: A smaller extent may be structure (real and imaginary part): it is made none or one only where it
#: is nothing but rows.
_SMALL = 8
#: The largest step by which a size is moved where it keeps its power of two.
_GRAIN = 256
#: Elements between the rows of a tensor with gaps, and before one that lies further behind.
_GAP = 16
#: The dtypes that an input is tried in as well.
_OTHER_DTYPES = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.int32: torch.int64,
    torch.int64: torch.int32,
}
#: These come last: a kernel may read out of its memory there, and end its process. On a GPU an
#: index out of range does so as well, in the reference too.
_LATE: tuple[Kind, ...] = ("alone", "broadcast", "again", "twice", "dtypes", "autocast")
_LATE_ON_GPU: tuple[Kind, ...] = (*_LATE, "ends")


def stepped(value: int, dice: random.Random) -> int:
    """Return a size one grain up or down: at most 256, the largest power of two that divides it."""
    step = min(_GRAIN, value & -value)
    return value + step if 2 * step > value or dice.random() < 0.5 else value - step


def another_size(drawn: Drawn) -> Iterator[Variant]:
    """Move each size up and down, by one and by 32; make rows none and one.

    The test's own parameters and fixtures are moved where they can be, else the inputs.
    """
    matrices = [x for x in tensors(drawn.inputs) if x.ndim > 1]
    columns = {x.shape[-1] for x in matrices}
    inner = {n for x in tensors(drawn.inputs) for n in x.shape[x.ndim > 1 :]}
    sizes = {n for n in drawn.case.dims.values() if type(n) is int and n > 1}
    sizes |= {n for x in matrices for n in x.shape} | {n for n in drawn.extents if n > 1}
    for size in sorted(sizes):
        fewest = [] if size in (inner if size < _SMALL else columns) else [0, 1]
        counts = [2] if size == 1 else [size + 1, size - 1, size + 32, size - 32, *fewest]
        for count in dict.fromkeys(n for n in counts if n > 0 or n in fewest):
            moved = drawn.declared({size: count}) if size > 1 else None
            if moved is None and not _is_counted(drawn, size, count):
                moved = _resized(drawn, size, count)
            if moved is not None:
                yield Variant(moved, part=f"size {size}")
        if size in drawn.extents and size > 1:
            reason = f"neither the test nor its inputs can have another size than {size}"
            yield Variant(drawn.case, part=f"size {size}", untried=reason)


def _is_counted(drawn: Drawn, size: int, count: int) -> bool:
    """Say whether rows must not be added or left out: integers would count or name others."""
    if has_skew(drawn.case):
        return True
    # Half of a table of angles has to stay half of it.
    if any(x.shape[-1] == size for x in tensors(drawn.inputs) if says_twice(x)):
        return True
    for _, x, _ in drawn.integers():
        most, are_slots = int(x.max()), len(x.unique()) == x.numel()
        if size in (int(x.sum()), most) or count <= most < size:
            return True
        # Rows that are written to one place twice have no order.
        if are_slots and count > size and size in x.shape:
            return True
    return False


def _resized(drawn: Drawn, size: int, count: int) -> Case:
    """Return the case with all extents of a size changed to a count, and numbers that say it."""
    in_order = drawn.case.keeps_order

    def change(x: Any, generator: torch.Generator) -> Any:
        if isinstance(x, torch.Tensor):
            places = [place for place, extent in enumerate(x.shape) if extent == size]
            moved = functools.partial(_of_extent, count=count, dimensions=places, in_order=in_order)
            return kept_leaf(x, moved) if places else x
        return count if type(x) is int and x == size > 1 else x

    dims = {name: count if value == size else value for name, value in drawn.case.dims.items()}
    moved = dims if dims != drawn.case.dims and size > 1 else {**dims, f"size {size}": count}
    return drawn.changed(change, weights=True, dims=moved)


def _of_extent(
    x: torch.Tensor, count: int, dimensions: Sequence[int], *, in_order: bool
) -> torch.Tensor:
    """Return a tensor that holds its elements over and over, or only the first ones.

    Copies are larger, so that a kernel which reads the first in their place is wrong. Integers,
    masks and sorted floats that are `in_order` stay so: each is there next to its copies.
    """
    for dimension in dimensions:
        extent = x.shape[dimension]
        places = torch.arange(count, device=x.device)
        is_sorted = in_order and count > extent
        # Repeated rows would make a matrix of other floats singular.
        is_sorted = is_sorted and (x.dtype not in SCALABLE or _is_sorted(x, dimension))
        x = x.index_select(
            dimension, places * extent // count if is_sorted else places % max(extent, 1)
        )
        if x.dtype in SCALABLE and count > extent and not is_sorted:
            factor = 1 + (places // extent).view(-1, *[1] * (x.ndim - dimension - 1)) / 8
            x = (x * factor).to(x.dtype)
    return x


def _is_sorted(x: torch.Tensor, dimension: int) -> bool:
    """Say whether all rises along a dimension, or all falls; what is all equal does neither."""
    rows = x.movedim(dimension, 0)
    before, after = rows[:-1], rows[1:]
    rises, falls = bool((after >= before).all()), bool((after <= before).all())
    return rises != falls


def one_input_alone(drawn: Drawn, *, to_one: bool = False) -> Iterator[Variant]:
    """Move one dimension of one input; one of extent one to those that other inputs have there."""
    shapes = [x.shape for x in tensors(drawn.inputs)]
    for at, x in drawn.leaves(weights=True):
        for dimension, extent in enumerate(x.shape if isinstance(x, torch.Tensor) else ()):
            counts = {1} if to_one else {extent // 2, extent + 1} - {0, 1}
            if extent == 1 and not to_one:
                end = dimension - x.ndim
                counts = {shape[dimension] for shape in shapes if dimension < len(shape)}
                counts |= {shape[end] for shape in shapes if -end <= len(shape)}
            for count in sorted(counts - {extent}):
                if not _is_counted(drawn, extent, count):
                    yield _alone(drawn, at, x, dimension, count)


def _alone(drawn: Drawn, at: Leaf, x: torch.Tensor, dimension: int, count: int) -> Variant:
    def change(leaf: Any, _: torch.Generator) -> Any:
        in_order = drawn.case.keeps_order
        return kept_leaf(
            leaf, lambda plain: _of_extent(plain, count, (dimension,), in_order=in_order)
        )

    where = f"input {at[0]}, {count} for {x.shape[dimension]} in dimension {dimension}"
    return Variant(drawn.changed(change, at), where, lay=_in_room_for(x.numel(), at))


def _in_room_for(numel: int, at: Leaf) -> Callable[[Sequence[Any]], list[Any]]:
    """Return what puts a leaf into memory of `numel` elements, NaN behind it.

    A kernel that reads as much as before stays within memory, and is wrong by what it reads there.
    """

    def room(x: torch.Tensor) -> torch.Tensor:
        memory = torch.zeros(max(numel, x.numel()), device=x.device).to(x.dtype)
        memory = memory.fill_(math.nan) if x.is_floating_point() else memory
        memory[: x.numel()] = x.flatten()
        return memory[: x.numel()].view(x.shape)

    return laid(room, at)


# Memory


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.ndim > 1 else x


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    """Return the same as rows with gaps between them, not at the beginning of their memory.

    So are its matrices: as in a cache that is longer than what is used of it, the pitch of a batch
    does not follow from that of a row.
    """
    inner = [size + 1 for size in x.shape[1:-1]]
    rows = x.new_zeros(*x.shape[: min(1, x.ndim - 1)], *inner, x.shape[-1] + 2 * _GAP)
    places = (*map(slice, x.shape[:-1]), slice(_GAP, _GAP + x.shape[-1]))
    return rows[places].copy_(x)


def as_every_second(x: torch.Tensor) -> torch.Tensor:
    """Return the same with a gap behind each element: a matrix is neither rows nor transposed."""
    return x.new_zeros(*x.shape, 2)[..., 0].copy_(x)


def further_behind(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(x.numel() + _GAP)[_GAP:].view(x.shape).copy_(x)


def as_one_row(x: torch.Tensor) -> torch.Tensor:
    return x[..., :1, :].expand_as(x)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def _incoming_with_gaps(x: torch.Tensor) -> torch.Tensor:
    return with_gaps(x) if x.ndim > 1 else x


def _incoming_of_a_sum(x: torch.Tensor) -> torch.Tensor:
    """Return a gradient as that of a sum: its first element everywhere, in one place."""
    return x.flatten()[:1].expand(x.numel()).as_strided(x.shape, (0,) * x.ndim)


def _incoming_transposed(x: torch.Tensor) -> torch.Tensor:
    """Return memory that is not contiguous in any dimension: transposed, or with gaps."""
    return transposed(as_every_second(x))


_LAYOUTS: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor], range], ...] = (
    ("transposed", transposed, range(2, 64)),
    ("as rows with gaps", with_gaps, range(2, 64)),
    ("with a storage offset", further_behind, range(1, 64)),
    ("as every second element", as_every_second, range(1, 64)),
    ("channels last", channels_last, range(4, 6)),
)


def other_layouts(drawn: Drawn) -> Iterator[Variant]:
    """Put one input, all of them, or an incoming gradient into other memory."""
    for at, x in drawn.some(lambda x: isinstance(x, torch.Tensor) and x.numel() > 1, weights=True):
        for where, lay, dimensions in _LAYOUTS:
            if x.ndim in dimensions:
                yield Variant(drawn.case, f"input {at[0]} {where}", lay=laid(lay, at))
        if x.ndim > 1 and is_float(x):
            case = drawn.changed(floating(lambda x, _: as_one_row(x).clone()), at)
            variant = Variant(case, f"input {at[0]} expanded", lay=laid(as_one_row, at))
            yield variant._replace(judged="no indices")
    yield Variant(
        drawn.case, "everything transposed", lay=laid(transposed), incoming=_incoming_transposed
    )
    for where, lay in (("with gaps", _incoming_with_gaps), ("of a sum", _incoming_of_a_sum)):
        if drawn.case.backward:
            yield Variant(drawn.case, f"an incoming gradient {where}", incoming=lay)


def into_the_input(drawn: Drawn) -> Iterator[Variant]:
    """Pass an input that is written, and another of its shape and dtype, as one tensor."""
    case = drawn.case
    for place, written in itertools.product(range(len(drawn.inputs)), case.writes):
        if place not in case.rewritten and _are_alike(drawn.inputs[place], drawn.inputs[written]):
            yield Variant(
                drawn.rewritten(_one_as_two(place, written), consumes=(*case.consumes, place)),
                f"inputs {place} and {written}",
            )


def into_two_inputs(drawn: Drawn) -> Iterator[Variant]:
    """Pass one tensor as two inputs that are only read: as queries and keys, for example."""
    read = [i for i in range(len(drawn.inputs)) if i not in drawn.case.rewritten]
    for second in read:
        earlier = (i for i in reversed(range(second)) if i in read)
        alike = (i for i in earlier if _are_alike(drawn.inputs[i], drawn.inputs[second]))
        if (first := next(alike, None)) is not None:
            case = drawn.rewritten(_one_as_two(first, second))
            yield Variant(case, f"inputs {first} and {second}")


def _are_alike(x: Any, y: Any) -> bool:
    are_tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return are_tensors and (x.shape, x.dtype, x.requires_grad) == (
        *(y.shape, y.dtype, y.requires_grad),
    )


def _one_as_two(place: int, by: int) -> Rewrite:
    return lambda arguments, _: [arguments[place if i == by else i] for i in range(len(arguments))]


# Gradients and dtypes


def fewer_gradients(drawn: Drawn) -> Iterator[Variant]:
    """Have inputs ask for no gradient, each alone, all but one, and all; or one result get one."""
    case = drawn.case
    asking = {*leaves(drawn.inputs)} if case.backward else set()
    some = [{place} for place in asking] + [asking - {place} for place in asking]
    for places in {tuple(sorted(places)) for places in some if 0 < len(places) < len(asking)}:
        where = f"{', '.join(f'input {place}' for place in places)} without a gradient"
        others = {*range(len(drawn.inputs))}.difference(places)
        yield Variant(drawn.rewritten(leafwise(_detached, untouched=others)), where)
    if case.backward:
        case_without = drawn.changed(_detached, weights=True, backward=False)
        yield Variant(case_without, "nothing requires a gradient")
        yield Variant(replace(case, backward=False), "under torch.no_grad()", around=torch.no_grad)
    if case.backward and not case.writes:
        results: list[torch.Tensor] = []
        with suppress(Exception):
            results = tensors(case.positional(case.reference)(*case.arguments()))
        differentiable = [number for number, x in enumerate(results) if x.requires_grad]
        for number in differentiable if len(differentiable) > 1 else ():
            of = functools.partial(_detached_but, number)
            changed = replace(case, reference=of(case.reference))
            yield Variant(changed, f"of result {number} alone", of=of)


def _detached(x: Any, _: torch.Generator) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x


def _detached_but(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results but one, counted in order, autograd knows nothing of."""

    @functools.wraps(function)
    def detached(*arguments: Any, **keywords: Any) -> Any:
        places = itertools.count()
        return mapped(
            function(*arguments, **keywords),
            lambda x: x if next(places) == number else x.detach(),
            (torch.Tensor,),
        )

    return detached


Differentiate = Callable[[list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]]


def differentiated(drawn: Drawn, differentiate: Differentiate) -> Iterator[Variant]:
    """Compare gradients that are taken of results and inputs in another way."""

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def gradients(*arguments: Any, **keywords: Any) -> list[torch.Tensor]:
            wanted = list(leaves([*arguments, *keywords.values()]).values())
            results = tensors(function(*arguments, **keywords))
            return differentiate([x for x in results if x.requires_grad], wanted)

        return gradients

    case = drawn.case
    if case.backward and not case.rewritten:
        changed = replace(case, reference=of(case.reference), backward=False, gate=LOOSE)
        yield Variant(changed, of=of)


def _again(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    incoming = list(map(signs_like, results))
    backward(results, incoming, wanted, retain_graph=True)
    gradients = backward(results, incoming, wanted)
    return [x for x in gradients if x is not None]


def _twice(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    # torch's once_differentiable refuses only where these ask for a gradient as well.
    incoming = [signs_like(x).requires_grad_() for x in results]
    first = torch.autograd.grad(results, wanted, incoming, create_graph=True, allow_unused=True)
    followed = [x for x in first if x is not None and x.requires_grad]
    leaves_of_both = [*wanted, *incoming]
    for x in leaves_of_both:
        x.grad = None
    # Not by `grad`, which takes a refusal for no dependence.
    torch.autograd.backward(followed, list(map(signs_like, followed)))
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves_of_both]


def other_dtypes(drawn: Drawn) -> Iterator[Variant]:
    """Widen one input after the other, and all; give integers the other width."""

    def changed(x: Any, _: torch.Generator) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in _OTHER_DTYPES:
            return kept_leaf(x, lambda plain: plain.to(_OTHER_DTYPES[plain.dtype]))
        return _OTHER_DTYPES.get(x, x) if isinstance(x, torch.dtype) else x

    def is_changed(x: Any) -> bool:
        return changed(x, torch.Generator()) is not x and not isinstance(x, torch.dtype)

    for at, x in drawn.some(is_changed, weights=True):
        if not (has_skew(drawn.case) and is_integer(x)):
            # A kernel that takes narrower integers for the wider reads as much again.
            lay = _in_room_for(2 * x.numel(), at) if is_integer(x) else list
            where = f"input {at[0]} in {str(_OTHER_DTYPES[x.dtype]).removeprefix('torch.')}"
            yield Variant(drawn.changed(changed, at, gate=LOOSE), where, lay=lay)
    every = drawn.changed(
        lambda x, _: x if is_integer(x) else changed(x, _), weights=True, gate=WIDE
    )
    yield Variant(every, "all")


def under_autocast(drawn: Drawn) -> Iterator[Variant]:
    for kind in {x.device.type for x in tensors(drawn.inputs) if x.dtype in SCALABLE}:
        around = functools.partial(torch.autocast, kind, torch.bfloat16)
        yield Variant(replace(drawn.case, gate=LOOSE), around=around)


#: By kind of `AXES`, but for the sizes that are timed.
TRANSFORMATIONS: dict[Kind, Callable[[Drawn], Iterator[Variant]]] = {
    "size": another_size,
    "alone": one_input_alone,
    "broadcast": functools.partial(one_input_alone, to_one=True),
    "values": input_values.other_values,
    "exact": input_values.small_integers,
    "infinite": input_values.infinities,
    "unread": input_values.nan_in_unread_elements,
    "signs": input_values.other_signs,
    "order": input_values.other_order,
    "ends": input_values.integers_at_their_ends,
    "numbers": input_values.other_numbers,
    "absent": input_values.absent,
    "masks": input_values.other_masks,
    "counts": input_values.without_rows,
    "filled": input_values.filled,
    "layout": other_layouts,
    "aliased": into_the_input,
    "same": into_two_inputs,
    "gradients": fewer_gradients,
    "again": functools.partial(differentiated, differentiate=_again),
    "twice": functools.partial(differentiated, differentiate=_twice),
    "dtypes": other_dtypes,
    "autocast": under_autocast,
}


def variants(
    case: Case,
    seed: int,
    declared: Callable[[Mapping[int, int]], Case | None] = lambda moved: None,
) -> Iterator[Variant]:
    """Yield the case along every axis that it does not exclude, one variant of each in turn.

    Their order is drawn under the seed: where time is short not all are tried. `declared` returns
    the case with some of its test's sizes moved.
    """
    seed_everything(seed)
    drawn = Drawn(case, list(case.arguments()), seed, declared)
    dice = random.Random(seed)
    kinds = [kind for kind in tried_axes(case.domain) if kind in TRANSFORMATIONS]
    dice.shuffle(kinds)
    late = _LATE_ON_GPU if any(leaf.is_cuda for leaf in tensors(drawn.inputs)) else _LATE
    for is_late in (False, True):
        turns = [_shuffled(drawn, kind, dice) for kind in kinds if (kind in late) == is_late]
        while turns:
            for turn in [*turns]:
                if (variant := next(turn, None)) is None:
                    turns.remove(turn)
                else:
                    yield variant


def _shuffled(drawn: Drawn, kind: Kind, dice: random.Random) -> Iterator[Variant]:
    """Yield the variants of an axis in drawn order, each by another name."""
    due = [*TRANSFORMATIONS[kind](drawn)]
    dice.shuffle(due)
    counts: Counter[tuple[str, str]] = Counter()
    for variant in sorted(due, key=lambda variant: bool(variant.untried)):
        place = variant.where, repr(variant.case.dims)
        counts[place] += 1
        # Variants of one name would be taken for one, and the last for what became of it.
        number = f", number {counts[place]}" if counts[place] > 1 else ""
        yield variant._replace(kind=kind, where=variant.where + number)
