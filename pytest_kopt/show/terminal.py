"""The terminal: a table of the cases with bars, the verdict, and what happens next."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_kopt.cases.details import blind_spots, of_shapes
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.figures import ends, figure, thousandths, within
from pytest_kopt.schema.columns import BUILT_IN, QUANTITIES, Scalar, Unit
from pytest_kopt.show.lines import Line, Markup
from pytest_kopt.show.rooflines import profile_lines, roofline_lines
from pytest_kopt.show.words import (
    CHANGE,
    CHECK,
    COSTS,
    INTERVAL,
    TextColumn,
    clipped,
    compared,
    kernel_lines,
    outcome,
    remarks,
    rows,
    text_table,
)

if TYPE_CHECKING:
    import pytest

    from pytest_kopt.decide.verdict import Verdict
    from pytest_kopt.roofline import Roofline
    from pytest_kopt.show.standing import Closing

#: Columns that a table takes at most, unless everything is asked for.
WIDTH = 80
_LEAST_LABEL = 24
#: Columns of a bar: an odd number, so that zero has one of its own.
BAR_WIDTH = 17
#: What columns hold where no result says it: every case failed, or an earlier release recorded it.
_QUANTITIES = {c.name: c.quantity for schema in BUILT_IN.values() for c in schema.columns}
_TIMES: set[Unit] = {"rate", "ms", "us"}
#: What is shown of a case that the verdict does not have.
_NOT_COMPARED = Shape(label="", dims={}, check="MISSING", status="unchanged")
#: Below a table with both: its figures that decide, and those that do not.
PAIRED = "change decides, measured in pairs; the other columns show the candidate alone"
#: After these the next round tries another hypothesis.
_GIVEN_UP = {
    Decision.ROLLED_BACK,
    Decision.SPLIT,
    Decision.INCONCLUSIVE,
    Decision.REJECTED_OVERFIT,
}
#: Changes up to so many percent are drawn in proportion on a logarithmic axis.
_LINEAR_PCT = 1.0
#: From so many times the smallest change on, the largest would flatten it.
_FAR_APART = 8.0


def result_lines(
    results: Sequence[CaseResult],
    closing: Closing | None,
    rooflines: Sequence[Roofline] = (),
    verbosity: int = 0,
) -> Iterator[str]:
    """Yield the section `kopt`: the table is short with `-q`; with `-v` it has every column."""
    verdict = closing.verdict if closing else None
    if results:
        yield from _case_table(results, verdict, verbosity)
    if verbosity >= 0 and verdict and verdict.compare == "paired":
        # A reader would otherwise divide the times of two rounds.
        yield from [PAIRED] * any(shape.change_pct is not None for shape in verdict.shapes)
    if verbosity >= 0:
        yield from roofline_lines(rooflines, verbosity)
    if any(result.evidence.interpreted for result in results):
        text = "Triton's interpreter ran these cases: their times do not count."
        yield Line(text, yellow=True)
    notes = (result.evidence.note or "" for result in results)
    yield from sorted({line for note in notes for line in note.splitlines()})
    if closing:
        yield from profile_lines(closing.profiles)
        yield from (Line(row, whole=True) for row in closing.detail.splitlines()[-20:])
        yield from verdict_lines(closing.verdict, verbosity)
        yield from ["", *closing.outlook] if closing.outlook else ()


def verdict_lines(verdict: Verdict, verbosity: int = 0) -> Iterator[str]:
    """Yield the verdict: decision, reason, evidence, what was done, what is next, and flags.

    With `-v` the details of each finding too.
    """
    yield ""
    quick = ", quick" if verdict.level == "quick" else ""
    where = f"round {verdict.round}, attempt {verdict.attempt}{quick}: " if verdict.round else ""
    markup = {colour(verdict): True, "bold": True}
    yield Line(f"{where}{outcome(verdict)} ({verdict.reason})", **markup)
    for raced in verdict.candidates:
        figures = "" if raced.change_pct is None else f" {within(raced)}"
        why = "" if raced.place == 1 else f" ({raced.reason})"
        yield f"candidate {raced.place}, {raced.name}: {raced.decision}{figures}{why}"
    for total in verdict.totals:
        if total.change_pct is not None:
            yield f"{total.metric}: {compared(total)}"
    for group in verdict.classes:
        about = " (target)" if group.name == verdict.target_class else ""
        yield f"class {group.name}{about}: {compared(group)}"
    yield from remarks(verdict)
    if verdict.applied.git_commit and verdict.decision.keeps:
        yield f"commit: {verdict.applied.git_commit[:12]}"
    if verdict.applied.restored:
        words = ("kopt restore", verdict.campaign or "", str(verdict.round))
        again = f"`{' '.join(filter(None, words))}` brings the attempt back"
        yield f"restored: {', '.join(verdict.applied.restored)} ({again})"
    if verdict.next_step:
        yield f"next: {verdict.next_step}{_command(verdict)}"
    yield from (f"kernel {line}" for line in kernel_lines(verdict))
    yield from map(flag_line, verdict.flags)
    if verbosity > 0:
        named = [finding for finding in verdict.findings if finding.details]
        yield from (f"{finding.check}: {'; '.join(finding.details)}" for finding in named)


def colour(verdict: Verdict) -> str:
    """Return the colour of a decision, as pytest's terminal writer names it."""
    if verdict.decision.keeps:
        return "green"
    undecided = verdict.decision.exit_code in (ExitCode.INCONCLUSIVE, ExitCode.INCOMPLETE)
    return "yellow" if undecided else "red"


def close_with(reporter: pytest.TerminalReporter, verdict: Verdict) -> None:
    """Have the last line of the session name the decision, in its colour.

    Otherwise pytest ends a round that was rolled back with a green "2 passed".
    """
    build, shade = reporter.build_summary_stats_line, colour(verdict)

    def with_decision() -> tuple[list[tuple[str, Markup]], str]:
        parts, _ = build()
        return [*parts, (outcome(verdict), {shade: True, "bold": True})], shade

    reporter.build_summary_stats_line = with_decision  # type: ignore[method-assign]


def _command(verdict: Verdict) -> str:
    """Return the command that the next step of a round ends with, "" where there is none."""
    if not verdict.campaign or not verdict.round:
        return ""
    rerun = f"pytest --kopt-campaign {verdict.campaign} --kopt-round"
    if verdict.decision is Decision.REPAIR:
        ends = f", or give the round up: `kopt discard {verdict.campaign}`"
        return f": `{rerun} {verdict.round}`{ends if verdict.round > 1 else ''}"
    is_asked = verdict.next_step.startswith("go on with the next round")
    if is_asked or verdict.decision in _GIVEN_UP:
        return f"; change the kernel, then: `{rerun} next`"
    return ""


def flag_line(text: str) -> Line:
    return Line(f"flag: {text}", yellow=True)


def blind_spot_lines(results: Sequence[CaseResult]) -> Iterator[Line]:
    yield from (Line(f"the cases cannot tell: {text}") for text in blind_spots(results))


def _case_table(
    results: Sequence[CaseResult], verdict: Verdict | None, verbosity: int
) -> Iterator[str]:
    """Yield the table of the cases; the label gives way to the columns, with `-v` nothing does."""
    pairs = of_shapes(verdict.shapes if verdict else (), results)
    shapes = {result.nodeid: shape for shape, result in pairs if result}
    cases = [shapes.get(result.nodeid, _NOT_COMPARED) for result in results]
    is_compared = bool(verdict and verdict.compare != "none") or any(case.same for case in cases)
    figures = rows(results, *measured(results, is_compared, verbosity))
    changes = rows(cases, *(_compared(cases, verbosity) if is_compared else ()))
    lines = text_table([row | change for row, change in zip(figures, changes, strict=True)])
    operation, labels = _labels(results)
    longest = max(map(len, (operation, *labels)))
    room = WIDTH - 2 - len(lines[1])
    room = longest if verbosity > 0 else min(longest, max(_LEAST_LABEL, room))
    names = [clipped(operation, room), "-" * room, *(clipped(label, room) for label in labels)]
    marks: list[Markup] = [{}, {}, *map(_row_markup, results, cases)]
    for name, line, markup in zip(names, lines, marks, strict=True):
        yield Line(f"{name:<{room}}  {line}", whole=True, **markup)


def measured(
    results: Sequence[CaseResult], is_compared: bool, verbosity: int
) -> Iterator[TextColumn]:
    """Yield the columns of the candidate alone. The session decides which, not its cases."""
    yield CHECK._replace(heading="check")
    quantities = [_QUANTITIES, *(result.evidence.quantities or {} for result in results)]
    units = {
        name: QUANTITIES.get(quantity.partition(":")[0])
        for part in quantities
        for name, quantity in part.items()
    }
    left_out = _left_out(results, units, is_compared, verbosity)
    for name in dict.fromkeys(name for result in results for name in result.cells):
        if units.get(name) not in left_out:
            short = name.replace("Forward", "fwd").replace("Backward", "bwd")
            cell = functools.partial(_cell, name)
            yield TextColumn(short.replace("Time (ms)", "ms"), "cells", cell)


def _compared(cases: Sequence[Shape], verbosity: int) -> Iterator[TextColumn]:
    """Yield the columns of both versions."""
    yield TextColumn("change", written=lambda case: "same code" if case.same else CHANGE.of(case))
    if verbosity >= 0:
        axis = Axis.of(cases)
        yield TextColumn(axis.title, written=axis.bar)
    if verbosity > 0:
        yield from (
            column._replace(heading=column.heading.lower()) for column in (*COSTS, INTERVAL)
        )


def _labels(results: Sequence[CaseResult]) -> tuple[str, list[str]]:
    """Return the labels' heading and the labels; an operation that all share is said once."""
    labels = [result.label for result in results]
    first = labels[0].partition(" ")[0]
    if "=" not in first and all(label.startswith(f"{first} ") for label in labels):
        return first, [label.removeprefix(f"{first} ") for label in labels]
    return "case", labels


def _row_markup(result: CaseResult, case: Shape) -> Markup:
    if result.check != "PASS" or case.status in ("failed", "regressed"):
        return {"red": True}
    return {"green": True} if case.status == "improved" else {}


def _left_out(
    results: Sequence[CaseResult],
    units: Mapping[str, Unit | None],
    is_compared: bool,
    verbosity: int,
) -> set[Unit]:
    """Return the units that a session's table does without."""
    if verbosity > 0:
        return set()
    cells = (cell for result in results for cell in result.cells.items())
    is_timed = any(
        isinstance(value, float) and math.isfinite(value)
        for name, value in cells
        if units.get(name) in _TIMES
    )
    if not is_timed:
        return {"spread", *_TIMES}
    return {"spread", "dB", "rate"} if is_compared or verbosity < 0 else {"spread", "dB"}


def _cell(name: str, cells: Mapping[str, Scalar | None]) -> str:
    value = cells.get(name)
    if not isinstance(value, int | float) or math.isnan(value):
        return "-"
    return figure(value) if abs(value) >= 0.1 else f"{value:.3g}"


def noise_lines(noise: Mapping[str, Any]) -> Iterator[str]:
    engines = ", ".join(noise["engines"])
    yield f"{noise['processes']} processes, {noise['compared_in']}, engine {engines}"
    for label, spread in noise["case_sd_pct"].items():
        yield f"  {label}: sd {thousandths(spread)} %"
    sd, worst = thousandths(noise["geomean_sd_pct"]), thousandths(noise["geomean_worst_pct"])
    yield f"geomean: sd {sd} %, worst {worst} %"
    for count, gain in noise["resolvable_pct"].items():
        yield (
            f"a gain of {thousandths(gain)} % is accepted with 90 % probability "
            f"after {count} processes"
        )


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis for bars: the log-ratio `limit` at its ends, if `bent` logarithmic beyond 1 %."""

    limit: float
    bent: bool = False

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> Axis:
        """Return the axis for these cases' changes and intervals."""
        bounds = [
            abs(_log(bound))
            for shape in shapes
            for bound in ends(shape)
            if bound is not None and math.isfinite(bound)
        ]
        largest = max(bounds, default=0.0)
        changes = [abs(_log(s.change_pct)) for s in shapes if s.change_pct is not None]
        smallest = max(min(changes, default=0.0), _log(_LINEAR_PCT))
        return cls(_round_up(largest), bent=largest > _FAR_APART * smallest)

    @property
    def title(self) -> str:
        pct = math.expm1(self.limit) * 100
        end = f"{pct / 100 + 1:.3g}×" if pct >= 99.5 else f"{pct:.2g} %"
        return f"slow ±{end} fast"

    def bar(self, shape: Shape) -> str:
        """Draw `·` for the axis, `│` zero, `━` the interval, `●` the change, if there is one."""
        change, low, high = ends(shape)
        if change is None or math.isnan(change):
            return ""
        cells = ["·"] * BAR_WIDTH
        cells[BAR_WIDTH // 2] = "│"
        if low is not None and high is not None:
            first, last = self._place(low), self._place(high)
            cells[first : last + 1] = "━" * (last + 1 - first)
        cells[self._place(change)] = "●"
        return "".join(cells)

    def _place(self, pct: float) -> int:
        share = self._height(_log(pct)) / self._height(self.limit)
        return round(max(-1.0, min(1.0, share)) * (BAR_WIDTH // 2)) + BAR_WIDTH // 2

    def _height(self, ratio: float) -> float:
        if not self.bent:
            return ratio
        return math.copysign(math.log1p(abs(ratio) / _log(_LINEAR_PCT)), ratio)


def _log(pct: float) -> float:
    """Return a change in percent as a log-ratio, the slowest as slow as can be drawn."""
    return math.log(max(1 + pct / 100, 1e-9))


def _round_up(ratio: float) -> float:
    """Return the next round end of an axis: 1, 2 or 5 times a power of ten percent, or a factor."""
    if ratio <= 0:
        return _log(1.0)
    pct = math.expm1(ratio) * 100
    factor = pct / 100 + 1 if pct > 100 else pct
    power = 10.0 ** math.floor(math.log10(factor))
    end = next(power * step for step in (1, 2, 5, 10) if power * step >= factor * (1 - 1e-9))
    return math.log(end) if pct > 100 else _log(end)
