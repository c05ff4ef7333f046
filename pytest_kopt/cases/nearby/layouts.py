"""The inputs of a case in other memory, and the supported inputs that a case does not draw.

A case's `domain` excludes some of them. Every axis is tried at its ends, and one input at a time:
sizes, layouts, numbers, masks, counts, identity, dtypes and values.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import is_integer
from pytest_kopt.cases.nearby.input_values import (
    all_wider,
    close_together,
    constant,
    dominant,
    exact,
    far_from_zero,
    infinities,
    larger,
    lopsided,
    of_numbers,
    of_one_result,
    outlier,
    tiny,
    twice,
    where_zeros_are,
)
from pytest_kopt.cases.nearby.places import (
    from_the_end,
    of_another_width,
    other_masks,
    other_order,
    other_places,
    with_no_rows,
)
from pytest_kopt.cases.nearby.sizes import absent, longer, of_rows, of_the_other_sign, other_numbers
from pytest_kopt.cases.nearby.variant import (
    Change,
    Drawn,
    Variant,
    alone,
    floating,
    kept_leaf,
    replaced,
)
from pytest_kopt.cases.order import seed_everything
from pytest_kopt.honesty.inputs import SCALABLE, leaves
from pytest_kopt.honesty.nearby_shapes import PATTERNS, Kind
from pytest_kopt.numerics.nested import mapped, tensors

#: Elements between the rows of a tensor with gaps, and before one that lies further behind: whole
#: vectors of every width, as a slice of a packed projection has them.
_GAP = 16
#: Tried first, however slow the kernel is: its arguments, and how much of its inputs counts.
_FIRST = (
    *("numbers", "signs", "absent", "indices", "masks", "counts", "none", "one"),
    *("aliased", "same", "behind", "close", "places", "twice", "single"),
)
#: Tried last: a kernel that is handed addresses may read out of its memory, and end its process.
_LAST = "integers"


def into_the_input(drawn: Drawn) -> Iterator[Variant]:
    """Give an input that is written to, and another of its shape and dtype, as one tensor."""
    case, given = drawn.case, drawn.inputs
    for written in case.writes:
        for place, x in enumerate(given):
            pair = (given[written], x)
            if place in case.rewritten or not all(
                isinstance(each, torch.Tensor) and not each.requires_grad for each in pair
            ):
                continue
            if pair[0].shape != x.shape or pair[0].dtype != x.dtype:
                continue
            changed = drawn.changed(replaced(written, place), consumes=(*case.consumes, place))
            yield Variant(changed, f"inputs {place} and {written}")


def into_two_inputs(drawn: Drawn) -> Iterator[Variant]:
    """Give one tensor as two inputs that are only read: as queries and keys, for example."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for place in drawn.places():
        x = drawn.inputs[place]
        if isinstance(x, torch.Tensor) and place not in drawn.case.rewritten:
            alike.setdefault((x.shape, x.dtype, x.requires_grad), []).append(place)
    for one, other in itertools.chain(*map(itertools.pairwise, alike.values())):
        yield Variant(drawn.changed(replaced(other, one)), f"inputs {one} and {other}")


def rubbish(drawn: Drawn) -> Iterator[Variant]:
    """Fill with NaN what lies behind lengths, and where a mask drops: nothing may read it."""
    inputs = tensors([drawn.inputs[place] for place in drawn.places()])
    for place, number, mark in _marks(drawn):
        for behind in (True, False) if mark.dtype is torch.bool else (True,):

            def fill(
                given: list[Any],
                _: torch.Generator,
                at: tuple[int, int] = (place, number),
                behind: bool = behind,
            ) -> list[Any]:
                marks = _marks(Drawn(drawn.case, given, drawn.seed, ()))
                (mark,) = (x for i, k, x in marks if (i, k) == at)

                def change(x: Any) -> Any:
                    unread = _unread(x, mark, behind=behind)
                    return (
                        x
                        if unread is None
                        else kept_leaf(x, lambda plain: plain.masked_fill(unread, math.nan))
                    )

                return [
                    mapped(x, change) if i not in drawn.case.weights else x
                    for i, x in enumerate(given)
                ]

            if any(_unread(x, mark, behind=behind) is not None for x in inputs):
                yield Variant(drawn.changed(fill, backward=False), f"input {place}")


def _marks(drawn: Drawn) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield masks and lengths, in tensors or a list, with their input's place and number there."""
    for place, number, x in drawn.leaves():
        is_mask = isinstance(x, torch.Tensor) and x.dtype is torch.bool and x.numel() > 1
        if is_mask or (is_integer(x) and x.ndim == 1 and len(x) > 1):
            yield place, number, x
    for place in drawn.places():
        x = drawn.inputs[place]
        if isinstance(x, list | tuple) and len(x) > 1 and all(type(n) is int for n in x):
            yield place, 0, torch.tensor(x)


def _unread(x: Any, mark: torch.Tensor, *, behind: bool) -> torch.Tensor | None:
    """Return where a tensor is not read by what a mask or lengths say, None if they are not its."""
    if not isinstance(x, torch.Tensor) or x.dtype not in SCALABLE:
        return None
    if mark.dtype is torch.bool:
        if x.shape[: mark.ndim] != mark.shape:
            return None
        where = ~mark if behind else mark
    else:
        fits = x.ndim > 1 and len(x) == len(mark) and int(mark.min()) >= 0
        if not fits or int(mark.max()) > x.shape[1]:
            return None
        where = torch.arange(x.shape[1], device=x.device) >= mark.to(x.device)[:, None]
    return where.reshape(*where.shape, *[1] * (x.ndim - where.ndim)).to(x.device)


def frozen(drawn: Drawn) -> Iterator[Variant]:
    """Have one input after the other ask for no gradient; a single one has to ask."""
    asking = leaves(drawn.inputs) if drawn.case.backward else {}
    for place in asking if len(asking) > 1 else ():
        yield Variant(drawn.one(place, 0, lambda x, _: x.detach()), f"input {place}")


# Layouts


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


def as_a_column(x: torch.Tensor) -> torch.Tensor:
    """Return a vector as the first column of a matrix."""
    return x.new_zeros(len(x), _GAP)[:, 0].copy_(x)


def further_behind(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(x.numel() + _GAP)[_GAP:].view(x.shape).copy_(x)


def as_one_row(x: torch.Tensor) -> torch.Tensor:
    return x[..., :1, :].expand_as(x)


def as_one_number(x: torch.Tensor) -> torch.Tensor:
    """Return a gradient as that of a sum: its first element everywhere, in one place."""
    return x.flatten()[:1].expand(x.numel()).as_strided(x.shape, (0,) * x.ndim)


def _sparsely_transposed(x: torch.Tensor) -> torch.Tensor:
    """Return memory that is not contiguous in any dimension: transposed, or with gaps."""
    return transposed(torch.stack([x] * 2, -1)[..., 0])


def laid(
    lay: Callable[[torch.Tensor], torch.Tensor],
    incoming: Callable[[torch.Tensor], torch.Tensor] | None = None,
    *,
    dimensions: range = range(2, 64),
    weights: bool = True,
    content: Change | None = None,
) -> Callable[[Drawn], Iterator[Variant]]:
    """Return the generator of cases with one input, of these `dimensions`, in other memory.

    With a `content` that is changed as well; `incoming` changes an incoming gradient instead.
    Weights are left where they lie unless they are asked for.
    """

    def each(drawn: Drawn) -> Iterator[Variant]:
        case = drawn.case

        def fits(x: Any) -> bool:
            return isinstance(x, torch.Tensor) and x.ndim in dimensions and x.numel() > 1

        for place, number, x in drawn.alone(fits, weights=weights):
            if content and (place in case.rewritten or x.dtype not in SCALABLE):
                continue

            def put(given: list[Any], place: int = place, number: int = number) -> list[Any]:
                change = alone(place, number, lambda leaf, _: kept_leaf(leaf, lay))
                return change(list(given), torch.Generator())

            changed = drawn.one(place, number, content) if content else case
            yield Variant(changed, f"input {place}", lay=put)
        if case.backward and incoming:
            yield Variant(case, "an incoming gradient", incoming=incoming)

    return each


def all_transposed(drawn: Drawn) -> Iterator[Variant]:
    def put(given: list[Any]) -> list[Any]:
        return [mapped(x, lambda leaf: kept_leaf(leaf, transposed), (torch.Tensor,)) for x in given]

    yield Variant(drawn.case, lay=put, incoming=_sparsely_transposed)


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
    for kind in sorted(kinds, key=lambda kind: (kind not in _FIRST, kind == _LAST)):
        counts: Counter[tuple[str, str]] = Counter()
        for variant in GENERATORS[kind](drawn):
            place = variant.where, repr(variant.case.dims)
            counts[place] += 1
            # Variants of one name would be taken for one, and the last for what became of it.
            where = (
                f"{variant.where}, number {counts[place]}" if counts[place] > 1 else variant.where
            )
            yield variant._replace(kind=kind, where=where)


#: By kind of `PATTERNS`: what yields the case with such inputs, as often as there are inputs to
#: change alone.
GENERATORS: dict[Kind, Callable[[Drawn], Iterator[Variant]]] = {
    "uneven": longer,
    "none": of_rows(0),
    "one": of_rows(1),
    "numbers": other_numbers,
    "signs": of_the_other_sign,
    "absent": absent,
    "indices": other_order,
    "places": other_places,
    "behind": from_the_end,
    "close": close_together,
    "twice": twice,
    "masks": other_masks,
    "counts": with_no_rows,
    "aliased": into_the_input,
    "same": into_two_inputs,
    "padded": rubbish,
    "strided": all_transposed,
    "turned": laid(transposed),
    "pitched": laid(with_gaps, with_gaps),
    "shifted": laid(further_behind, dimensions=range(1, 64)),
    "column": laid(as_a_column, dimensions=range(1, 2), weights=False),
    "expanded": laid(
        as_one_row, as_one_number, content=floating(lambda x, _: as_one_row(x).clone())
    ),
    "frozen": frozen,
    "single": of_one_result,
    "wider": all_wider,
    "integers": of_another_width,
    "exact": exact,
    "filled": where_zeros_are,
    "large": of_numbers(larger),
    "outlier": of_numbers(outlier),
    "lopsided": of_numbers(lopsided),
    "dominant": of_numbers(dominant),
    "masked": infinities,
    "constant": of_numbers(constant),
    "tiny": of_numbers(tiny),
    "far": far_from_zero,
    "negated": of_numbers(lambda x, _: -x),
    "sorted": of_numbers(lambda x, _: x.sort(-1, descending=True).values if x.ndim else x),
}
