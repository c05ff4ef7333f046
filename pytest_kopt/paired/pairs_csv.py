"""pairs.csv: every pair of adjacent blocks that a comparison measured, a line each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from pytest_kopt.campaign.attempt import PAIR_COLUMNS
from pytest_kopt.cases.order import INCUMBENT, UNEVEN
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.paired.blocks import Quad
from pytest_kopt.paired.replica import CaseQuads


def pairs_csv(results: Sequence[CaseResult], replicas: Sequence[Mapping[str, CaseQuads]]) -> str:
    """Return the table; the times are those of a call, forward and backward together, in ms."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PAIR_COLUMNS)
    for number, replica in enumerate(replicas, start=1):
        for result in (result for result in results if result.nodeid in replica):
            quads = replica[result.nodeid]
            for kind in quads.quads:
                for pair, position, new, old, mhz in _pairs(quads.at(kind)):
                    row = [result.label, number, kind, pair, position, repr(new), repr(old)]
                    writer.writerow([*row, quads.device, "" if mhz is None else f"{mhz:.0f}"])
    return text.getvalue()


def _pairs(quads: Sequence[Quad]) -> Iterator[tuple[int, str, float, float, float | None]]:
    """Yield number, order, new and incumbent ms of adjacent blocks, and the clock after them.

    The times are of both directions together.
    """
    number = 0
    for quad in quads:
        for left, right in ((quad[0], quad[1]), (quad[2], quad[3])):
            number += 1
            times = {arm: time.of("step") for arm, time in (left, right)}
            old = next(arm for arm in times if arm in (INCUMBENT, UNEVEN[INCUMBENT]))
            new = next(arm for arm in times if arm != old)
            order = "BA" if left[0] == old else "AB"
            yield number, order, times[new], times[old], right[1].mhz
