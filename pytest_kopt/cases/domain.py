"""Shapes and inputs that a case does not draw, which the candidate has to support as well.

A test's parameters are moved a step. Every axis of the inputs is tried at its ends, and one input
at a time: sizes, layouts, numbers, masks, counts, identity, dtypes and values. What the incumbent
cannot do says nothing.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import has_skew, is_integer, said_groups
from pytest_kopt.cases.seeds import seed_everything
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
#: A smaller extent is structure (a filter's taps, real and imaginary part), and is not moved.
_LEAST_SIZE = 8
#: By how much another number differs at least, and twice this at most: within what fractions,
#: probabilities and rates may be. A number below the second is changed by as much, since a small
#: share of an epsilon shows in no result.
_ANOTHER, _SMALL = 0.125, 1 / 64
#: Elements between the rows of a tensor with gaps, and before one that lies further behind: whole
#: vectors of every width, as a slice of a packed projection has them.
_GAP = 16
#: What of a sparse tensor of integers is not zero.
_DENSE = 0.25
_CHANGEABLE = (torch.Tensor, torch.dtype, bool, int, float)
#: Tried first, however slow the kernel is: what it is told, and how much of its inputs counts.
_FIRST = ("numbers", "indices", "masks", "counts", "none", "one", "aliased")
#: Of a leaf, and of all arguments.
Change = Callable[[Any, torch.Generator], Any]
_Rewrite = Callable[[list[Any], torch.Generator], list[Any]]


class Variant(NamedTuple):
    """A case with other inputs.

    `where` says what is changed where several are, one after the other; `lay` puts the inputs, and
    `incoming` the incoming gradients, into other memory than they are drawn in; `counts` says by
    the inputs and the reference's results whether anything is asked.
    """

    case: Case
    where: str = ""
    kind: Kind = ""
    lay: Callable[[list[Any]], list[Any]] = list
    incoming: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    counts: Callable[[Sequence[Any], Sequence[Any]], bool] = lambda given, expected: True


class Drawn(NamedTuple):
    """A case, arguments that it drew, the seed of its variants, and sizes that a test varies."""

    case: Case
    given: list[Any]
    seed: int
    carried: Collection[int]

    def changed(self, rewrite: _Rewrite, **changes: Any) -> Case:
        """Return the case with inputs that are rewritten once they are drawn."""

        def inputs() -> list[Any]:
            generator = torch.Generator().manual_seed(self.seed)
            return rewrite(list(self.case.arguments()), generator)

        return replace(self.case, inputs=inputs, **changes)

    def everywhere(self, change: Change, *, weights: bool = False, **changes: Any) -> Case:
        """Return the case with every leaf of its inputs changed, of weights where it is asked."""
        places = {*self.places(weights=weights)}

        def rewrite(given: list[Any], generator: torch.Generator) -> list[Any]:
            return [
                mapped(x, lambda leaf: change(leaf, generator), _CHANGEABLE) if i in places else x
                for i, x in enumerate(given)
            ]

        return self.changed(rewrite, **changes)

    def places(self, *, weights: bool = False) -> list[int]:
        return [i for i in range(len(self.given)) if weights or i not in self.case.weights]

    def leaves(self, *, weights: bool = False) -> Iterator[tuple[int, int, Any]]:
        """Yield every leaf of the inputs: its input's place, its number there, and itself."""
        for place in self.places(weights=weights):
            for number, leaf in enumerate(_in_order(self.given[place])):
                yield place, number, leaf

    def alone(
        self, fits: Callable[[Any], bool], *, weights: bool = False
    ) -> Iterator[tuple[int, int, Any]]:
        """Yield the fitting leaves; of an input with many the first, the last and one between."""
        found = (leaf for leaf in self.leaves(weights=weights) if fits(leaf[2]))
        for _, group in itertools.groupby(found, key=lambda leaf: leaf[0]):
            own = list(group)
            yield from (own[place] for place in _ends(len(own)))

    @property
    def sizes(self) -> set[Any]:
        return {*self.case.dims.values(), *(n for x in tensors(self.given) for n in x.shape)}


def _in_order(item: Any) -> list[Any]:
    """Return the leaves of an item as `alone` counts them."""
    leaves: list[Any] = []

    def see(leaf: Any) -> Any:
        leaves.append(leaf)
        return leaf

    mapped(item, see, (object,))
    return leaves


def alone(place: int, number: int, change: Change) -> _Rewrite:
    """Return what changes one leaf of the inputs and no other."""

    def rewrite(given: list[Any], generator: torch.Generator) -> list[Any]:
        count = itertools.count()
        given[place] = mapped(
            given[place],
            lambda leaf: change(leaf, generator) if next(count) == number else leaf,
            (object,),
        )
        return given

    return rewrite


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
        yield from (variant._replace(kind=kind) for variant in GENERATORS[kind](drawn))


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


def _kept_leaf(x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Change a tensor's values or memory; one that asks for a gradient goes on doing so."""
    return change(x.detach()).requires_grad_(x.requires_grad)


def _floating(change: Change) -> Change:
    """Return the change for tensors of floating-point numbers."""

    def changed(x: Any, generator: torch.Generator) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype not in SCALABLE:
            return x

        def content(plain: torch.Tensor) -> torch.Tensor:
            # Tables of angles say everything twice, and kernels read one half.
            if not says_twice(plain):
                made: torch.Tensor = change(plain, generator)
                return made
            half = plain[..., : x.shape[-1] // 2]
            twice: torch.Tensor = change(half, generator).repeat(*[1] * (x.ndim - 1), 2)
            return twice

        return _kept_leaf(x, content)

    return changed


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
            return _kept_leaf(x, resize) if size in x.shape else x
        return now if type(x) is int and x == size else x

    dims = {name: now if value == size else value for name, value in drawn.case.dims.items()}
    named = dims if dims != drawn.case.dims else {**dims, f"size {size}": now}
    return Variant(drawn.everywhere(change, weights=True, dims=named))


# Numbers, masks, counts, identity


def _other_numbers(drawn: Drawn) -> Iterator[Variant]:
    """Change numbers that are no tensors, and no sizes: each alone, to another and to zero."""
    sizes = drawn.sizes

    def is_number(x: Any) -> bool:
        return isinstance(x, bool | float) or (type(x) is int and x not in sizes)

    numbers = [*drawn.alone(is_number)]
    for place, number, x in numbers:
        where = f"input {place}"
        changes = (_another, lambda x, _: type(x)()) if x and x is not True else (_another,)
        for change in changes:
            yield Variant(drawn.changed(alone(place, number, change)), where)
    if len(numbers) > 1:
        yield Variant(
            drawn.everywhere(lambda x, dice: _another(x, dice) if is_number(x) else x), "all"
        )


def _another(x: Any, generator: torch.Generator) -> Any:
    if isinstance(x, bool):
        return not x
    if isinstance(x, int):
        return x + 1
    # Each its own: what serves for one need not for the next.
    share = _ANOTHER * (1 + float(torch.rand((), generator=generator)))
    return x * (1 + share) if abs(x) >= _SMALL else x + share


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


def _other_order(drawn: Drawn) -> Iterator[Variant]:
    probe = torch.Generator()
    # Sizes of groups rest on each other, and are drawn anew in the check.
    if not has_skew(drawn.case) and any(
        _reordered(x, probe) is not x for _, _, x in drawn.leaves()
    ):
        yield Variant(drawn.everywhere(_reordered))


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
    if has_skew(drawn.case):
        return
    extents = {n for x in tensors(drawn.given) if x.ndim > 1 for n in x.shape}
    said = said_groups(drawn.given, extents)

    def handed_on(layouts: Collection[int], nothing: int) -> _Rewrite:
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
        for nothing in _ends(len(groups.sizes)):
            changed = drawn.changed(handed_on(groups.layouts.keys(), nothing))
            yield Variant(changed, f"input {places}, number {nothing}")
    for place, number, x in drawn.leaves():
        if place in counted or not is_integer(x) or x.ndim != 1 or len(x) < 2 or int(x.min()) < 1:
            continue
        for nothing in _ends(len(x)):
            changed = drawn.changed(alone(place, number, without(nothing)))
            yield Variant(changed, f"input {place}, number {nothing}")


def _ends(count: int) -> list[int]:
    """Return the first place, the last, and one between."""
    return sorted({0, count // 2, count - 1})


def _into_the_input(drawn: Drawn) -> Iterator[Variant]:
    """Give an input that is written to, and another of its shape and dtype, as one tensor."""
    case, given = drawn.case, drawn.given
    for written in case.writes:
        for place, x in enumerate(given):
            pair = (given[written], x)
            if place in case.rewritten or not all(
                isinstance(each, torch.Tensor) and not each.requires_grad for each in pair
            ):
                continue
            if pair[0].shape != x.shape or pair[0].dtype != x.dtype:
                continue

            def one(
                now: list[Any], _: torch.Generator, places: tuple[int, int] = (written, place)
            ) -> list[Any]:
                now[places[0]] = now[places[1]]
                return now

            changed = drawn.changed(one, consumes=(*case.consumes, place))
            yield Variant(changed, f"inputs {place} and {written}")


def _rubbish(drawn: Drawn) -> Iterator[Variant]:
    """Fill with NaN what lies behind lengths, and where a mask drops: nothing may read it."""
    for place, number, told in drawn.leaves():
        is_mask = isinstance(told, torch.Tensor) and told.dtype is torch.bool and told.numel() > 1
        is_lengths = is_integer(told) and told.ndim == 1 and len(told) > 1
        for behind in (True, False) if is_mask else (True,) if is_lengths else ():

            def fill(
                given: list[Any],
                _: torch.Generator,
                at: tuple[int, int] = (place, number),
                behind: bool = behind,
            ) -> list[Any]:
                now = Drawn(drawn.case, given, drawn.seed, ())
                (what,) = (x for i, k, x in now.leaves() if (i, k) == at)

                def change(x: Any) -> Any:
                    unread = _unread(x, what, behind=behind)
                    return (
                        x
                        if unread is None
                        else _kept_leaf(x, lambda plain: plain.masked_fill(unread, math.nan))
                    )

                return [
                    mapped(x, change) if i not in drawn.case.weights else x
                    for i, x in enumerate(given)
                ]

            inputs = tensors([drawn.given[i] for i in drawn.places()])
            if any(_unread(x, told, behind=behind) is not None for x in inputs):
                yield Variant(drawn.changed(fill, backward=False), f"input {place}")


def _unread(x: Any, told: torch.Tensor, *, behind: bool) -> torch.Tensor | None:
    """Return where a tensor is not read by what a mask or lengths say, None if they are not its."""
    if not isinstance(x, torch.Tensor) or x.dtype not in SCALABLE:
        return None
    if told.dtype is torch.bool:
        if x.shape[: told.ndim] != told.shape:
            return None
        where = ~told if behind else told
    else:
        fits = x.ndim > 1 and len(x) == len(told) and int(told.min()) >= 0
        if not fits or int(told.max()) > x.shape[1]:
            return None
        where = torch.arange(x.shape[1], device=x.device) >= told.to(x.device)[:, None]
    return where.reshape(*where.shape, *[1] * (x.ndim - where.ndim)).to(x.device)


def _frozen(drawn: Drawn) -> Iterator[Variant]:
    """Have one input after the other ask for no gradient; a single one has to ask."""
    asking = leaves(drawn.given) if drawn.case.backward else {}
    for place in asking if len(asking) > 1 else ():
        yield Variant(drawn.changed(alone(place, 0, lambda x, _: x.detach())), f"input {place}")


# Layouts


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.ndim > 1 else x


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    """Return the same as rows with gaps between them, not at the beginning of their memory."""
    rows = x.new_zeros(*x.shape[:-1], x.shape[-1] + 2 * _GAP)
    return rows[..., _GAP : _GAP + x.shape[-1]].copy_(x)


def _further_behind(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(x.numel() + _GAP)[_GAP:].view(x.shape).copy_(x)


def _as_one_row(x: torch.Tensor) -> torch.Tensor:
    return x[..., :1, :].expand_as(x)


def _as_one_number(x: torch.Tensor) -> torch.Tensor:
    """Return a gradient as that of a sum: its first element everywhere, in one place."""
    return x.flatten()[:1].expand(x.numel()).as_strided(x.shape, (0,) * x.ndim)


def _sparsely_transposed(x: torch.Tensor) -> torch.Tensor:
    """Return memory that is not contiguous in any dimension: transposed, or with gaps."""
    return transposed(torch.stack([x] * 2, -1)[..., 0])


def _laid(
    lay: Callable[[torch.Tensor], torch.Tensor],
    incoming: Callable[[torch.Tensor], torch.Tensor] | None = None,
    *,
    least: int = 2,
    content: Change | None = None,
) -> Callable[[Drawn], Iterator[Variant]]:
    """Return the generator of cases with one input, of so many dimensions, in other memory.

    Where the layout goes with a `content`, that is changed as well; `incoming` does it to an
    incoming gradient.
    """

    def each(drawn: Drawn) -> Iterator[Variant]:
        case = drawn.case

        def fits(x: Any) -> bool:
            return isinstance(x, torch.Tensor) and x.ndim >= least and x.numel() > 1

        for place, number, x in drawn.alone(fits, weights=True):
            if content and (place in case.rewritten or x.dtype not in SCALABLE):
                continue

            def put(given: list[Any], place: int = place, number: int = number) -> list[Any]:
                change = alone(place, number, lambda leaf, _: _kept_leaf(leaf, lay))
                return change(list(given), torch.Generator())

            changed = drawn.changed(alone(place, number, content)) if content else case
            yield Variant(changed, f"input {place}", lay=put)
        if case.backward and incoming:
            yield Variant(case, "an incoming gradient", incoming=incoming)

    return each


def _all_transposed(drawn: Drawn) -> Iterator[Variant]:
    def put(given: list[Any]) -> list[Any]:
        return [
            mapped(x, lambda leaf: _kept_leaf(leaf, transposed), (torch.Tensor,)) for x in given
        ]

    yield Variant(drawn.case, lay=put, incoming=_sparsely_transposed)


# Values and dtypes


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


def _takes_masks(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Say whether -inf stays where an input has it, if anywhere: else none is there as a mask.

    A blur spreads it, and an average of two tensors has it where either does.
    """
    masks = [item == -math.inf for item in tensors(given)]
    results = [out for out in tensors(expected) if out.is_floating_point()]
    return all(
        any(torch.equal(mask, ~out.isfinite()) for mask in masks)
        for out in results
        if not out.isfinite().all()
    )


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


def _where_zeros_are(drawn: Drawn) -> Iterator[Variant]:
    if not all(map(_says_something, tensors(drawn.given))):
        yield Variant(
            drawn.everywhere(_floating(_filled), weights=True, gate=snr(PLAINLY_RIGHT_DB))
        )


def _small_integers(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return -1, 0 and 1, mostly zeros: every format holds them, and every sum of a few of them."""
    if not x.ndim:
        return torch.ones_like(x)
    signs = torch.randint(2, x.shape, generator=generator) * 2 - 1
    found = signs * (torch.rand(x.shape, generator=generator) < _DENSE)
    # No row is zeros, of which a scale cannot be made, and the last element of each counts.
    found[..., -1:] = 1
    return found.to(x)


def _are_integers(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    return all(torch.equal(out, out.round()) for out in tensors(expected) if out.dtype in SCALABLE)


def _exact(drawn: Drawn) -> Iterator[Variant]:
    """Ask for exact results of small integers: what a coarse tolerance hides shows there."""
    change = _floating(_small_integers)
    case = drawn.everywhere(change, weights=True, gate=snr(_WIDE_DB), backward=False)
    yield Variant(case, counts=_are_integers)


_widened = _floating(lambda x, _: x.to(_WIDER.get(x.dtype, x.dtype)))


def _wider(x: Any, generator: torch.Generator) -> Any:
    """Widen tensors, and a dtype among the arguments."""
    return _WIDER.get(x, x) if isinstance(x, torch.dtype) else _widened(x, generator)


def _all_wider(drawn: Drawn) -> Iterator[Variant]:
    yield Variant(drawn.everywhere(_wider, weights=True, gate=snr(_WIDE_DB)))


def _of_numbers(
    change: Change, counts: Callable[..., bool] = lambda given, expected: True
) -> Callable[[Drawn], Iterator[Variant]]:
    """Return the generator of the case with all floating-point activations changed."""

    def once(drawn: Drawn) -> Iterator[Variant]:
        case = drawn.everywhere(_floating(change), gate=snr(PLAINLY_RIGHT_DB))
        yield Variant(case, counts=counts)

    return once


def _constant(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x[..., :1].expand_as(x).clone() if x.ndim else x


#: By kind of `PATTERNS`: what yields the case with such inputs, as often as there are inputs to
#: change alone.
GENERATORS: dict[Kind, Callable[[Drawn], Iterator[Variant]]] = {
    "uneven": _longer,
    "none": _of_rows(0),
    "one": _of_rows(1),
    "numbers": _other_numbers,
    "indices": _other_order,
    "masks": _other_masks,
    "counts": _with_no_rows,
    "aliased": _into_the_input,
    "padded": _rubbish,
    "strided": _all_transposed,
    "turned": _laid(transposed),
    "pitched": _laid(with_gaps, with_gaps),
    "shifted": _laid(_further_behind, least=1),
    "expanded": _laid(
        _as_one_row, _as_one_number, content=_floating(lambda x, _: _as_one_row(x).clone())
    ),
    "frozen": _frozen,
    "wider": _all_wider,
    "exact": _exact,
    "filled": _where_zeros_are,
    "large": _of_numbers(_larger),
    "outlier": _of_numbers(_outlier),
    "lopsided": _of_numbers(_lopsided),
    "masked": _of_numbers(_masked, _takes_masks),
    "constant": _of_numbers(_constant),
    "tiny": _of_numbers(lambda x, _: x / 2**12),
    "negated": _of_numbers(lambda x, _: -x),
    "sorted": _of_numbers(lambda x, _: x.sort(-1, descending=True).values if x.ndim else x),
}
