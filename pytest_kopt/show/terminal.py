"""The terminal: a table of the cases, the verdict with its reason, and what happens next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.schema.profile import Scalar
from pytest_kopt.schema.table import cell
from pytest_kopt.show.profiles import profile_lines
from pytest_kopt.show.rooflines import roofline_lines
from pytest_kopt.show.words import figure, interval, percent

if TYPE_CHECKING:
    from pytest_kopt.decide.verdict import Verdict
    from pytest_kopt.roofline import Roofline
    from pytest_kopt.session.trial import Closing

_LABEL_WIDTH = 34
_RATES = ("TFLOPS", "GB/s")


def result_lines(
    results: Sequence[CaseResult], closing: Closing | None, rooflines: Sequence[Roofline] = ()
) -> Iterator[str]:
    """Yield the lines of the section "kopt"; at most 100 columns wide for common rows."""
    if results:
        yield from _case_table(results, closing.verdict if closing else None)
    yield from roofline_lines(rooflines)
    for result in results:
        if result.evidence.get("interpreted"):
            yield "Times come from Triton's interpreter: they mean nothing and decide nothing."
            break
    yield from sorted({note for result in results if (note := result.evidence.get("note"))})
    if closing:
        yield from profile_lines(closing.profiles)
        yield from closing.detail.splitlines()[-20:]
        yield from verdict_lines(closing.verdict)


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the verdict: decision, evidence, reason, flags, what was done and what is next."""
    yield ""
    where = f"round {verdict.round}, attempt {verdict.attempt}: " if verdict.round else ""
    yield f"{where}{verdict.decision} ({verdict.reason})"
    for total in [verdict.aggregate, *verdict.secondary]:
        if total is not None and total.change_pct is not None:
            values = f"{figure(total.incumbent)} -> {figure(total.candidate)}  "
            yield (
                f"{total.metric}: {values if total.candidate is not None else ''}"
                f"{percent(total.change_pct)} {interval(total.low_pct, total.high_pct)}".rstrip()
            )
    if verdict.remeasured_pct:
        repeats = ", ".join(percent(change) for change in verdict.remeasured_pct)
        yield f"re-measured: {repeats}"
    for flag in verdict.flags:
        yield f"flag: {flag}"
    if verdict.applied.git_commit and verdict.decision.keeps:
        yield f"commit: {verdict.applied.git_commit[:12]}"
    if verdict.applied.restored:
        yield f"restored: {', '.join(verdict.applied.restored)}"
    if verdict.next_step:
        yield f"next: {verdict.next_step}"


def _case_table(results: Sequence[CaseResult], verdict: Verdict | None) -> Iterator[str]:
    changes = {}
    if verdict:
        changes = {tuple(cell(v) for v in s.dims.values()): s for s in verdict.shapes}
    names = [name for name in results[0].cells if _is_shown(name)]
    header = ["case", "check", *(_short(name) for name in names)]
    if any(shape.change_pct is not None for shape in changes.values()):
        header.append("vs incumbent")
    rows = []
    for result in results:
        row = [result.label[:_LABEL_WIDTH], result.check]
        row += [_cell(result.cells.get(name)) for name in names]
        if header[-1] == "vs incumbent":
            shape = changes.get(result.key)
            row.append(percent(shape.change_pct) if shape else "—")
        rows.append(row)
    yield from tabulate(rows, headers=header, disable_numparse=True).splitlines()


def _is_shown(column: str) -> bool:
    return (not column.endswith("_stddev") and not column.endswith("Time (ms)")) or (
        column == "Time (ms)"
    )


def _short(column: str) -> str:
    return column.replace("Forward", "fwd").replace("Backward", "bwd")


def _cell(value: Scalar | None) -> str:
    if not isinstance(value, int | float) or math.isnan(value):
        return "-"
    return figure(value) if abs(value) >= 0.1 else f"{value:.3g}"
