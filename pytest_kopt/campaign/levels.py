"""Validation levels: which of the frozen cases a session times, and which stand for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.cases.result import CaseResult, names
from pytest_kopt.decide.verdict import Level
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.table import Row, Table

#: How many cases a quick round has; a campaign with no more than MOST has no quick level.
LEAST, MOST = 3, 5
#: So many cases a representative one stands for, as long as LEAST and MOST allow it.
_EACH_FOR = 4
_STDDEV = "_stddev"
KEY, CORE, TARGET = "representative_shapes", "core_shapes", "target_shapes"


def choose(level: str | None, count: int, shapes: Sequence[str] | None) -> Level:
    """Return the level of a round after the baseline; full with MOST of `count` cases or fewer."""
    if count <= MOST or level == "full":
        return "full"
    if shapes:
        return "quick"
    if level == "quick":
        fix = f"--kopt-level full, or 3 to 5 labels in the manifest's key {KEY}"
        what = "the manifest names no representative cases"
        raise BadInput(what, where="--kopt-level quick", fix=fix)
    return "full"


def always_full(level: str | None, what: str) -> None:
    """Raise BadInput when anything but full is asked for where all cases have to be measured."""
    if level == "quick":
        what = f"{what} measures every case"
        raise BadInput(what, where="--kopt-level quick", fix="--kopt-level full")


def select(shapes: Sequence[str], cases: Mapping[str, str], key: str = KEY) -> tuple[str, ...]:
    """Return the node ids that a key means, of `cases` (names by node id); or BadInput."""
    for shape in shapes:
        if shape not in cases.values():
            raise BadInput(f"{shape!r} names no case", where=key, legal=list(cases.values()))
    return tuple(nodeid for nodeid, name in cases.items() if name in shapes)


def representative(manifest: Manifest, cases: Mapping[str, str]) -> tuple[str, ...]:
    """Return the node ids of the quick level: representative cases, and the core ones if named."""
    if not manifest.representative_shapes:
        return ()
    core = () if manifest.core_shapes == "all" else select(manifest.core_shapes, cases, CORE)
    selected = {*select(manifest.representative_shapes, cases), *core}
    return tuple(nodeid for nodeid in cases if nodeid in selected)


def quick_cases(campaign: Campaign) -> list[str]:
    """Return pytest's arguments for the cases of quick rounds; none before the baseline."""
    cases = campaign.expected_cases() if campaign.state.baseline else {}
    ids = quick_ids(campaign.manifest, names(cases.values()))
    return [str(campaign.root / nodeid) for nodeid in ids]


def quick_ids(manifest: Manifest, cases: Mapping[str, str]) -> tuple[str, ...]:
    """Return the node ids that the quick level times, all where it is full."""
    if choose(None, len(cases), manifest.representative_shapes) == "full":
        return tuple(cases)
    return representative(manifest, cases)


def proposal(table: Table, results: Sequence[CaseResult]) -> list[str] | None:
    """Return the names to put into the manifest after the baseline, None where quick is full."""
    if len(results) <= MOST:
        return None
    called = names(results)
    by_key = {result.key: called[result.nodeid] for result in results}
    return [by_key[row.key] for row in propose(table)]


def check_unchanged(
    shapes: Sequence[str] | None,
    recorded: Sequence[str] | None,
    since: int | None,
    key: str = KEY,
) -> None:
    """Raise BadInput when a key was edited after round `since` had been measured by it."""
    if since is not None and shapes != recorded:
        raise BadInput(
            f"was edited, but round {since} was measured with it and later rounds are compared "
            "with that",
            where=key,
            fix=f"restore {recorded}"
            f"{', measure all with --kopt-level full' if key == KEY else ''}"
            ", or kopt init NEW --from OLD",
        )


def propose(table: Table) -> tuple[Row, ...]:
    """Return LEAST to MOST of a table's PASS rows, in the table's order; all when there are fewer.

    The rows are laid out by size (the product of their integer dims) and cut into as many bands as
    rows are wanted. Each band gives the row that varied most, the outermost one where they agree.
    If a distribution is a dim and all of these are uniform, the skewed row that varied most takes
    the place of its band's.
    """
    rows = table.passed
    count = min(len(rows), MOST, max(LEAST, len(rows) // _EACH_FOR))
    by_size = sorted(rows, key=_size)
    edges = [len(rows) * i // count for i in range(count + 1)] if count else []
    bands = [by_size[start:end] for start, end in pairwise(edges)]
    # The outermost one where several vary alike: the smallest of the first band, else the largest.
    chosen = [max(band[:: -1 if i else 1], key=_variation) for i, band in enumerate(bands)]
    skewed = [row for row in by_size if row.dims.get("distribution", "uniform") != "uniform"]
    if skewed and not any(row in skewed for row in chosen):
        instead = max(skewed[::-1], key=_variation)
        chosen[next(i for i, band in enumerate(bands) if instead in band)] = instead
    keys = {row.key for row in chosen}
    return tuple(row for row in rows if row.key in keys)


def _size(row: Row) -> int:
    return math.prod(value for value in row.typed_dims.values() if type(value) is int)


def _variation(row: Row) -> float:
    """Return the largest relative standard deviation among a row's metrics; 0 where none tells."""
    variations = [0.0]
    for column in (name for name in row.cells if name.endswith(_STDDEV)):
        spread, mean = row.number(column), row.number(column.removesuffix(_STDDEV))
        if spread is not None and mean and math.isfinite(spread / mean):
            variations.append(abs(spread / mean))
    return max(variations)
