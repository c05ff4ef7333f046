"""The terminal: what fits, what is coloured, what -q and -v mean, and progress."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest._io import TerminalWriter
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.cases.details import with_details
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult, Collector, named
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.verdict import Aggregate, Applied, Decision, Verdict
from pytest_kopt.schema.columns import GEMM, MEMORY
from pytest_kopt.session.controller import Controller
from pytest_kopt.show.lines import Line, write
from pytest_kopt.show.standing import Closing
from pytest_kopt.show.terminal import BAR_WIDTH, Axis, close_with, result_lines, verdict_lines
from pytest_kopt.show.words import told_once
from tests.builders import few_examples

percents = st.floats(-500, 500)


def a_case(place: int, rate: float = 123.456, *, backward: bool = True) -> CaseResult:
    dims: dict[str, Any] = {"B": 1, "M": 8192 * (place + 1), "N": 16384, "K": 7168}
    cells = {c.name: rate for c in GEMM.columns if backward or not c.is_backward}
    return CaseResult(
        nodeid=f"t.py::test[{place}]",
        label=named("t.py::test_gemm[1]", dims),
        header=GEMM.header(tuple(dims)),
        dims=dims,
        check="PASS",
        cells=dict(cells),
    )


def a_closing(cases: list[CaseResult], changes: list[float]) -> Closing:
    shapes = [
        Shape(
            label=case.label,
            dims=case.dims,
            check="PASS",
            change_pct=change,
            low_pct=change - 1,
            high_pct=change + 1,
            status="improved" if change > 1 else "regressed" if change < -1 else "unchanged",
        )
        for case, change in zip(cases, changes, strict=True)
    ]
    total = Aggregate(
        metric="Combined Step TFLOPS",
        candidate=310.0,
        incumbent=300.0,
        change_pct=3.333,
        low_pct=3.1,
        high_pct=3.5,
    )
    verdict = Verdict(
        decision=Decision.ACCEPTED,
        reason="improved",
        compare="paired",
        policy="primus",
        aggregate=total,
        shapes=shapes,
        flags=["a flag"],
        next_step="go on",
    )
    return Closing(verdict)


@few_examples
@given(st.lists(percents, min_size=1, max_size=6), st.floats(1e-3, 99999.0))
def test_the_table_fits_eighty_columns(changes: list[float], rate: float) -> None:
    cases = [a_case(i, rate) for i in range(len(changes))]
    for closing in (None, a_closing(cases, changes)):
        table = [line for line in result_lines(cases, closing) if "B=1" in line or "check" in line]
        assert len(table) == len(cases) + 1
        assert max(map(len, table)) <= 80, table


def test_every_case_can_be_told_apart_and_shows_its_change() -> None:
    cases = [a_case(i, backward=False) for i in range(3)]
    lines = list(result_lines(cases, a_closing(cases, [3.0, 0.0, -4.0])))
    rows = lines[2:5]
    assert [re.search(r"[+-]\d\.00 %", row) is not None for row in rows] == [True] * 3
    assert [row.index("●") for row in rows] == sorted(
        (row.index("●") for row in rows), reverse=True
    )
    assert len({row.partition(" PASS")[0] for row in rows}) == 3


def test_two_functions_with_the_same_dims_have_a_change_each() -> None:
    cases = [a_case(0), replace(a_case(0), nodeid="u.py::test[0]", label="other B=1 M=8192")]
    rows = list(result_lines(cases, a_closing(cases, [3.0, -4.0])))[2:4]
    assert "+3.00 %" in rows[0] and "-4.00 %" in rows[1]


def test_quiet_leaves_the_verdict_and_verbose_shows_every_column() -> None:
    cases = [a_case(0)]
    closing = a_closing(cases, [3.0])
    quiet = list(result_lines(cases, closing, (), -1))
    assert quiet[0].split() == ["gemm", "check", "fwd", "ms", "bwd", "ms", "change"]
    assert quiet[2].endswith("PASS   123.5   123.5   +3.00 %")
    assert any("ACCEPTED" in line for line in quiet)
    plain, loud = ("\n".join(result_lines(cases, closing, (), level)) for level in (0, 1))
    for column in ("_stddev", "out_snr", "[+2.00, +4.00]"):
        assert column in loud and column not in plain.split("ACCEPTED")[0]
    assert cases[0].label.removeprefix("gemm ") in loud


def test_what_a_column_holds_decides_whether_it_is_shown_and_not_its_name() -> None:
    quantities = {
        "speed": "forward_rate",
        "speed spread": "forward_rate_stddev",
        "Forward wait": "forward_us",
        "quality": "out_snr",
    }
    case = replace(
        a_case(0),
        cells=dict.fromkeys(quantities, 7.5),
        evidence=CaseEvidence(quantities=quantities),
    )
    plain, quiet, loud = (
        next(result_lines([case], None, (), level)).split("check")[1].split()
        for level in (0, -1, 1)
    )
    assert plain == ["speed", "fwd", "wait"]
    assert quiet == ["fwd", "wait"]
    assert loud == ["speed", "speed", "spread", "fwd", "wait", "quality"]
    compared = next(result_lines([case], a_closing([case], [3.0])))
    assert "wait" in compared and "speed" not in compared
    unmeasured = replace(case, cells={**dict.fromkeys(quantities, math.nan), "quality": 7.5})
    assert next(result_lines([unmeasured], None)).split("check")[1].split() == ["quality"]


def test_a_case_of_the_same_code_has_no_change() -> None:
    cases = [a_case(i, backward=False) for i in range(2)]
    closing = a_closing(cases, [3.0, 0.0])
    same = closing.verdict.shapes[1].model_copy(
        update={"same": "source", **dict.fromkeys(("change_pct", "low_pct", "high_pct"))}
    )
    closing.verdict.shapes[1] = same
    row = next(line for line in result_lines(cases, closing) if "16384" in line.partition(" N")[0])
    assert "same code" in row and "%" not in row and "●" not in row


def test_milliseconds_stand_next_to_rates_unless_asked_for_less() -> None:
    heading = next(iter(result_lines([a_case(0)], None)))
    assert re.findall(r"(?:fwd|bwd) \S+", heading) == [
        *("fwd TFLOPS", "bwd TFLOPS", "fwd ms", "bwd ms"),
    ]


def test_a_backward_is_shown_though_the_first_case_has_none() -> None:
    cases = [a_case(0, backward=False), a_case(1)]
    heading, _, forward_only, both, *_ = result_lines(cases, None)
    assert "bwd ms" in heading
    assert forward_only.count("123.5") == 2 and both.count("123.5") == 4


def test_what_it_means_for_the_campaign_comes_last() -> None:
    cases = [a_case(0)]
    closing = replace(a_closing(cases, [3.0]), outlook=("Termination Check", "the end"))
    assert list(result_lines(cases, closing))[-3:] == ["", "Termination Check", "the end"]
    assert list(result_lines(cases, a_closing(cases, [3.0])))[-2:] == [
        "next: go on",
        "flag: a flag",
    ]


def test_cases_of_several_schemas_share_a_table() -> None:
    other = replace(
        a_case(1),
        header=MEMORY.header(("rows",)),
        dims={"rows": 7},
        cells={column.name: 4.5 for column in MEMORY.columns},
        label="gemm rows=7",
    )
    heading, _, gemm, memory = result_lines([a_case(0), other], None)
    assert "fwd TFLOPS" in heading and "fwd GB/s" in heading
    assert gemm.split()[-2:] == memory.split()[2:4] == ["-", "-"]


def test_each_case_has_its_own_change_whatever_the_others_are_called() -> None:
    """The third class has the dims of the first; its change stood in the first one's row."""
    dims = {"columns": 256}
    ids = [f"t.py::Test{name}::test_case[256]" for name in ("Double", "Triple", "Softmax")]
    others: dict[str, Any] = {"header": ("label", "batch"), "dims": {"batch": 64}}
    collector = Collector(order=ids)
    for nodeid in ids:
        of_class: dict[str, Any] = {"header": ("label", "columns"), "dims": dims}
        of_class = others if "Triple" in nodeid else of_class
        label = named(nodeid, of_class["dims"])
        collector.results[nodeid] = replace(a_case(0), nodeid=nodeid, label=label, **of_class)
    cases = collector.in_order()
    closing = a_closing(cases, [1.0, 2.0, -80.0])
    judged = with_details(closing.verdict, cases)
    rows = [*result_lines(cases, Closing(judged))][2:5]
    assert re.findall(r"^(\w+)\.case .*?(\S+) %", "\n".join(rows), re.MULTILINE) == [
        ("Double", "+1.00"),
        ("Triple", "+2.00"),
        ("Softmax", "-80.0"),
    ]


def test_columns_of_a_comparison_do_not_depend_on_its_cases() -> None:
    cases = [a_case(i) for i in range(2)]
    closing = a_closing(cases, [3.0, 0.0])
    headings = {next(result_lines(cases, closing))}
    nothing = dict.fromkeys(("change_pct", "low_pct", "high_pct"))
    for place in range(2):
        shape = closing.verdict.shapes[place]
        closing.verdict.shapes[place] = shape.model_copy(update={"same": "source", **nothing})
        headings.add(next(result_lines(cases, closing)))
    columns = {heading.partition("check")[2].partition("slow")[0].strip() for heading in headings}
    assert columns == {"fwd ms  bwd ms  change"}


class Screen:
    """A terminal reporter as far as we use one."""

    def __init__(self, *, tty: bool = False, verbosity: int = 0) -> None:
        self.isatty, self.verbosity = tty, verbosity
        self.written: list[tuple[str, dict[str, bool]]] = []
        self.config = self
        self.writer = TerminalWriter(io.StringIO())

    def write_line(self, line: str, **markup: bool) -> None:
        self.written.append((line, markup))

    def rewrite(self, line: str, **markup: bool) -> None:
        self.written.append((f"\r{line}", markup))

    def ensure_newline(self) -> None:
        pass

    def get_terminal_writer(self) -> TerminalWriter:
        return self.writer


def on(screen: Screen) -> Any:
    return screen


def test_colours_are_pytests_own_markup() -> None:
    cases = [a_case(0), a_case(1), a_case(2)]
    screen = Screen()
    write(on(screen), result_lines(cases, a_closing(cases, [3.0, 0.0, -4.0])))
    assert all("\x1b" not in text for text, _ in screen.written)
    rows = [markup for text, markup in screen.written if text.startswith("B=1")]
    assert rows == [{"green": True}, {}, {"red": True}]
    said = {text.split()[0].rstrip(":"): markup for text, markup in screen.written if text}
    assert said["ACCEPTED"] == {"green": True, "bold": True}
    assert said["flag"] == {"yellow": True}


@pytest.mark.parametrize(("colour", "coloured"), [(True, True), (False, False)])
def test_a_line_is_coloured_where_pytest_colours(colour: bool, coloured: bool) -> None:
    file = io.StringIO()
    writer = TerminalWriter(file)
    writer.hasmarkup = colour
    line = Line("bad", red=True)
    writer.line(line, **line.markup)
    assert ("\x1b[31m" in file.getvalue()) is coloured


def test_a_verdicts_lines_can_be_printed_as_they_are() -> None:
    """`kopt decide` prints them without a reporter."""
    closing = a_closing([a_case(0)], [3.0])
    assert "\n".join(verdict_lines(closing.verdict)).strip().startswith("ACCEPTED (improved)")


def a_shape(change: float | None, low: float | None = None, high: float | None = None) -> Shape:
    return Shape(
        label="x",
        dims={},
        check="PASS",
        change_pct=change,
        low_pct=low,
        high_pct=high,
        status="unchanged",
    )


percents_or_factors = st.floats(-99, 5000)


@given(percents_or_factors, percents_or_factors, percents_or_factors, percents_or_factors)
def test_a_bar_is_as_wide_as_every_other(a: float, b: float, c: float, other: float) -> None:
    low, change, high = sorted((a, b, c))
    shape = a_shape(change, low, high)
    text = Axis.of([shape, a_shape(other)]).bar(shape)
    assert len(text) == BAR_WIDTH
    assert text.count("●") == 1
    if low > 0:
        assert not set(text[: BAR_WIDTH // 2]) & {"━", "●"}


@pytest.mark.parametrize(
    ("decision", "command"),
    [
        (
            Decision.ROLLED_BACK,
            "; change the kernel, then: `pytest --kopt-campaign c --kopt-round next`",
        ),
        (
            Decision.REPAIR,
            ": `pytest --kopt-campaign c --kopt-round 3`, or give the round up: `kopt discard c`",
        ),
        (Decision.INCOMPLETE, ""),
    ],
)
def test_the_next_step_ends_with_its_command(decision: Decision, command: str) -> None:
    verdict = a_closing([a_case(0)], [3.0]).verdict
    about = {"decision": decision, "campaign": "c", "round": 3}
    assert f"next: go on{command}" in list(verdict_lines(verdict.model_copy(update=about)))


@pytest.mark.parametrize(
    ("decision", "colour"),
    [
        (Decision.ACCEPTED, "green"),
        (Decision.INCONCLUSIVE, "yellow"),
        (Decision.ROLLED_BACK, "red"),
    ],
)
def test_the_last_line_has_the_decision_and_its_colour(decision: Decision, colour: str) -> None:
    """The tests may all have passed of a version that is slower."""
    passed = ("2 passed", {"green": True})
    reporter: Any = SimpleNamespace(build_summary_stats_line=lambda: ([passed], "green"))
    verdict = a_closing([a_case(0)], [3.0]).verdict
    close_with(reporter, verdict.model_copy(update={"decision": decision}))
    parts, shade = reporter.build_summary_stats_line()
    assert parts == [passed, (str(decision), {colour: True, "bold": True})]
    assert shade == colour


def test_bars_say_what_they_show() -> None:
    axis = Axis(math.log(1.01))
    assert axis.bar(a_shape(0.0, -0.5, 0.5)) == "····━━━━●━━━━····"
    assert axis.bar(a_shape(1.0, 0.5, 1.0)) == "········│···━━━━●"
    assert axis.bar(a_shape(-0.5)) == "····●···│········"
    assert axis.bar(a_shape(None)) == ""


def test_one_large_gain_does_not_flatten_the_rest() -> None:
    """GELU at ×51 stood beside a softmax of which nothing could be seen."""
    shapes = [a_shape(5000.0, 4800.0, 5200.0), *[a_shape(-1.6, -9.5, 6.9), a_shape(3.0, 2.0, 4.0)]]
    axis = Axis.of(shapes)
    assert axis.title == "slow ±100× fast"
    large, unsure, small = map(axis.bar, shapes)
    assert large.index("●") > small.index("●") > unsure.index("●")
    assert unsure.count("━") > 3


@pytest.mark.parametrize(
    ("bounds", "title"),
    [
        *[([], "1 %"), ([0.3, -0.1], "0.5 %"), ([1.1], "2 %"), ([4.2, 3.0], "5 %")],
        *[([70.0], "2×"), ([150.0], "5×")],
    ],
)
def test_the_axis_is_a_round_number(bounds: list[float], title: str) -> None:
    assert Axis.of([a_shape(bound) for bound in bounds]).title == f"slow ±{title} fast"


@pytest.mark.parametrize(
    ("closing", "status", "told"), [(None, 2, True), (None, 4, False), (object(), 2, False)]
)
def test_an_interrupt_before_the_verdict_says_what_became_of_the_round(
    closing: object, status: int, told: bool
) -> None:
    """A table of cases that passed stood above pytest's KeyboardInterrupt, and no word more."""
    lines: list[str] = []
    session = SimpleNamespace(trial=object(), _closing=closing, _show_results=lambda _: None)
    reporter = SimpleNamespace(write_line=lines.append, isatty=False)
    Controller.pytest_terminal_summary(session, reporter, status)  # type: ignore[arg-type]
    assert len(lines) == told
    assert all(line.startswith("interrupted before a verdict: nothing") for line in lines)


def test_what_many_cases_fail_of_is_told_once() -> None:
    """One wrong line of a kernel was a traceback for every case."""
    told: dict[str, str] = {}
    traceback = "Traceback\n" + "  a frame\n" * 20
    assert told_once(f"ERROR rms n=1\n{traceback}", told) == f"ERROR rms n=1\n{traceback}"
    assert told_once(f"ERROR rms n=2\n{traceback}", told) == (
        "ERROR rms n=2\nthe same as 'ERROR rms n=1'"
    )
    assert told_once("FAIL rms n=3\nout: 3 dB", told) == told_once("FAIL rms n=3\nout: 3 dB", told)
    assert told_once("FAIL rms n=4\nout: 3 dB", told) == "FAIL rms n=4\nout: 3 dB"


def test_a_roll_back_says_how_to_get_the_attempt_again() -> None:
    applied = Applied(restored=["kernels/rms.py"])
    verdict = a_closing([a_case(0)], [-9.0]).verdict
    shown = list(verdict_lines(verdict.model_copy(update={"round": 3, "applied": applied})))
    assert "restored: kernels/rms.py (`kopt restore 3` brings the attempt back)" in shown
