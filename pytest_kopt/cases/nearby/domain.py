"""Shapes and inputs that a case does not draw, which the candidate has to support as well.

A test's parameters are moved a step. Every axis of the inputs is tried at its ends, and one input
at a time: sizes, layouts, numbers, masks, counts, identity, dtypes and values. What the incumbent
cannot do says nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.nearby.input_values import (
    all_wider,
    close_together,
    constant,
    exact,
    far_from_zero,
    infinities,
    larger,
    lopsided,
    of_numbers,
    outlier,
    tiny,
    where_zeros_are,
)
from pytest_kopt.cases.nearby.layouts import (
    all_transposed,
    as_a_column,
    as_one_number,
    as_one_row,
    frozen,
    further_behind,
    into_the_input,
    into_two_inputs,
    laid,
    rubbish,
    transposed,
    with_gaps,
)
from pytest_kopt.cases.nearby.numbers import absent, of_the_other_sign, other_numbers
from pytest_kopt.cases.nearby.places import (
    from_the_end,
    of_another_width,
    other_masks,
    other_order,
    other_places,
    with_no_rows,
)
from pytest_kopt.cases.nearby.second_order import of_one_result, twice
from pytest_kopt.cases.nearby.sizes import longer, of_rows
from pytest_kopt.cases.nearby.variant import Drawn, Variant, floating
from pytest_kopt.cases.seeds import seed_everything
from pytest_kopt.honesty.nearby_shapes import PATTERNS, Kind

#: Tried first, however slow the kernel is: its arguments, and how much of its inputs counts.
_FIRST = (
    *("numbers", "signs", "absent", "indices", "masks", "counts", "none", "one"),
    *("aliased", "same", "behind", "close", "places", "twice", "single"),
)
#: Tried last: a kernel that is handed addresses may read out of its memory, and end its process.
_LAST = "integers"


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
    "masked": infinities,
    "constant": of_numbers(constant),
    "tiny": of_numbers(tiny),
    "far": far_from_zero,
    "negated": of_numbers(lambda x, _: -x),
    "sorted": of_numbers(lambda x, _: x.sort(-1, descending=True).values if x.ndim else x),
}
