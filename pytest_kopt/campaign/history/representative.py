"""Which cases stand for all: the plugin's proposal after the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pytest_kopt.schema.table import Row, Table

#: How many cases a quick round has; a campaign with no more than MOST has no quick level.
LEAST, MOST = 3, 5
#: So many cases a representative one stands for, as long as LEAST and MOST allow it.
_EACH_FOR = 4
_STDDEV = "_stddev"


def propose(table: Table) -> tuple[Row, ...]:
    """Return LEAST to MOST of a table's PASS rows, in the table's order; all when there are fewer.

    The rows are laid out by size (the product of their integer dims) and cut into as many bands as
    rows are wanted; each band gives the row that varied most, the outermost one where they agree.
    Where a distribution is a dim and all of these are uniform, the skewed row that varied most
    takes the place of its band's.
    """
    rows = [row for row in table.rows if row.check == "PASS"]
    count = min(len(rows), MOST, max(LEAST, len(rows) // _EACH_FOR))
    by_size = sorted(rows, key=_size)
    chosen = [_most_varying(band, smallest=i == 0) for i, band in enumerate(_bands(by_size, count))]
    skewed = [row for row in by_size if _is_skewed(row)]
    if skewed and not any(map(_is_skewed, chosen)):
        instead = _most_varying(skewed)
        place = next(i for i, band in enumerate(_bands(by_size, count)) if instead in band)
        chosen[place] = instead
    keys = {row.key for row in chosen}
    return tuple(row for row in rows if row.key in keys)


def _bands(rows: Sequence[Row], count: int) -> list[Sequence[Row]]:
    """Cut rows into `count` runs of nearly the same length."""
    edges = [len(rows) * i // count for i in range(count + 1)] if count else []
    return [rows[start:end] for start, end in pairwise(edges)]


def _most_varying(band: Sequence[Row], *, smallest: bool = False) -> Row:
    outermost = band if smallest else band[::-1]
    return max(outermost, key=_variation)


def _size(row: Row) -> int:
    return math.prod(
        value
        for value in row.typed_dims.values()
        if isinstance(value, int) and not isinstance(value, bool)
    )


def _variation(row: Row) -> float:
    """Return the largest relative standard deviation among a row's metrics; 0 where none tells."""
    found = [0.0]
    for column in row.cells:
        if not column.endswith(_STDDEV):
            continue
        spread, mean = row.number(column), row.number(column.removesuffix(_STDDEV))
        if spread is not None and mean and math.isfinite(spread / mean):
            found.append(abs(spread / mean))
    return max(found)


def _is_skewed(row: Row) -> bool:
    return row.dims.get("distribution", "uniform") != "uniform"
