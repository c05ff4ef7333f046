"""The terminal: a table of the cases, the verdict with its reason, and what happens next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from tabulate import tabulate

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.schema.profile import Scalar
from pytest_kopt.schema.table import cell
from pytest_kopt.show.bars import bar, scale_of
from pytest_kopt.show.profiles import profile_lines
from pytest_kopt.show.rooflines import roofline_lines
from pytest_kopt.show.words import clipped, figure, interval, outcome, percent, printed

if TYPE_CHECKING:
    import pytest

    from pytest_kopt.decide.verdict import Shape, Verdict
    from pytest_kopt.roofline import Roofline
    from pytest_kopt.show.closing import Closing

#: Columns that a table takes at most, unless everything is asked for.
WIDTH = 100
_LEAST_LABEL = 12
Markup = dict[str, bool]


class Line(str):
    """A line with the markup that pytest's terminal writer gives it where there are colours."""

    markup: Markup

    def __new__(cls, text: str, **markup: bool) -> Line:
        line = super().__new__(cls, text)
        line.markup = markup
        return line


def write(reporter: pytest.TerminalReporter, lines: Iterable[str]) -> None:
    """Write lines through pytest's reporter, which colours them on a terminal only.

    Labels, notes and the output of commands are shown; they do nothing to the terminal.
    """
    for line in lines:
        for piece in printed(line):
            reporter.write_line(piece, **(line.markup if isinstance(line, Line) else {}))


def result_lines(
    results: Sequence[CaseResult],
    closing: Closing | None,
    rooflines: Sequence[Roofline] = (),
    verbosity: int = 0,
) -> Iterator[str]:
    """Yield the lines of the section "kopt", at most 100 columns wide.

    With `-q` the verdict only, without the cases; with `-v` every column, however wide.
    """
    if verbosity >= 0:
        for _, members in groupby(results, key=lambda result: result.header):
            yield from _case_table(
                list(members), closing.verdict if closing else None, everything=verbosity > 0
            )
        yield from roofline_lines(rooflines)
    for result in results:
        if result.evidence.get("interpreted"):
            text = "Triton's interpreter ran these cases: a time from there means nothing."
            yield Line(text, yellow=True)
            break
    yield from sorted({note for result in results if (note := result.evidence.get("note"))})
    if closing:
        yield from profile_lines(closing.profiles)
        yield from closing.detail.splitlines()[-20:]
        yield from verdict_lines(closing.verdict)
        yield from ["", *closing.outlook] if closing.outlook else ()


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the verdict: decision, evidence, reason, flags, what was done and what is next."""
    yield ""
    quick = ", quick" if verdict.level == "quick" else ""
    where = f"round {verdict.round}, attempt {verdict.attempt}{quick}: " if verdict.round else ""
    yield Line(f"{where}{outcome(verdict)} ({verdict.reason})", **_decision_markup(verdict))
    for total in [verdict.aggregate, *verdict.secondary]:
        if total is not None and total.change_pct is not None:
            values = f"{figure(total.incumbent)} -> {figure(total.candidate)}  "
            yield (
                f"{total.metric}: {values if total.candidate is not None else ''}"
                f"{percent(total.change_pct)} {interval(total.low_pct, total.high_pct)}".rstrip()
            )
    for found in verdict.classes:
        about = " (target)" if found.name == verdict.target_class else ""
        values = f"{figure(found.incumbent)} -> {figure(found.candidate)}  "
        shown = f"{percent(found.change_pct)} {interval(found.low_pct, found.high_pct)}".rstrip()
        if found.change_pct is None:
            values, shown = figure(found.candidate), ""
        yield f"class {found.name}{about}: {values if found.candidate is not None else ''}{shown}"
    if verdict.remeasured_pct:
        repeats = ", ".join(percent(change) for change in verdict.remeasured_pct)
        yield f"re-measured: {repeats}"
    for flag in verdict.flags:
        yield Line(f"flag: {flag}", yellow=True)
    if verdict.applied.git_commit and verdict.decision.keeps:
        yield f"commit: {verdict.applied.git_commit[:12]}"
    if verdict.applied.restored:
        yield f"restored: {', '.join(verdict.applied.restored)}"
    if verdict.next_step:
        yield f"next: {verdict.next_step}"


def _decision_markup(verdict: Verdict) -> Markup:
    if verdict.decision.keeps:
        return {"green": True, "bold": True}
    undecided = verdict.decision.exit_code in (ExitCode.INCONCLUSIVE, ExitCode.INCOMPLETE)
    return {"yellow" if undecided else "red": True, "bold": True}


def _case_table(
    results: Sequence[CaseResult], verdict: Verdict | None, *, everything: bool
) -> Iterator[str]:
    """Yield the rows of one schema; SNRs give way to the comparison unless all is asked for."""
    shapes = {}
    if verdict:
        shapes = {tuple(cell(v) for v in s.dims.values()): s for s in verdict.shapes}
    found = [shapes.get(result.key) for result in results]
    compared = any(shape and shape.change_pct is not None for shape in found)
    names = [name for name in results[0].cells if everything or _is_shown(name, compared)]
    header = ["check", *(_short(name) for name in names)]
    bounds = [
        bound
        for shape in found
        if shape
        for bound in (shape.change_pct, shape.low_pct, shape.high_pct)
        if bound is not None
    ]
    scale = scale_of(bounds)
    if compared:
        header += ["vs incumbent", f"-{scale:g} % to +{scale:g} %"]
        header += ["interval"] if everything else []
    rows = []
    for result, shape in zip(results, found, strict=True):
        row = [result.check, *(_cell(result.cells.get(name)) for name in names)]
        if compared:
            row.append(percent(shape.change_pct) if shape else "—")
            row.append(bar(shape.change_pct, shape.low_pct, shape.high_pct, scale) if shape else "")
        if compared and everything:
            row.append(interval(shape.low_pct, shape.high_pct) if shape else "")
        rows.append(row)
    rest = tabulate(rows, headers=header, disable_numparse=True).splitlines()
    room = max(len(result.label) for result in results)
    if not everything:
        room = max(_LEAST_LABEL, min(room, WIDTH - 2 - max(map(len, rest))))
    labels = ["case", "-" * room, *(clipped(result.label, room) for result in results)]
    marks: list[Markup] = [
        {},
        {},
        *(_row_markup(result, shape) for result, shape in zip(results, found, strict=True)),
    ]
    for label, line, markup in zip(labels, rest, marks, strict=True):
        yield Line(f"{label:<{room}}  {line}".rstrip(), **markup)


def _row_markup(result: CaseResult, shape: Shape | None) -> Markup:
    if result.check != "PASS" or (shape and shape.status in ("failed", "regressed")):
        return {"red": True}
    return {"green": True} if shape and shape.status == "improved" else {}


def _is_shown(column: str, compared: bool) -> bool:
    if column.endswith("_stddev") or (column.endswith("Time (ms)") and column != "Time (ms)"):
        return False
    return not (compared and column.endswith("_snr"))


def _short(column: str) -> str:
    return column.replace("Forward", "fwd").replace("Backward", "bwd")


def _cell(value: Scalar | None) -> str:
    if not isinstance(value, int | float) or math.isnan(value):
        return "-"
    return figure(value) if abs(value) >= 0.1 else f"{value:.3g}"
