from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.campaign.ledger import Trend
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import thousandths
from pytest_kopt.measure import wall
from pytest_kopt.measure.engine import Timing, samples_of
from pytest_kopt.measure.wall import WallEngine, interpreted_block
from pytest_kopt.schema.columns import Better
from pytest_kopt.schema.metrics import (
    Metric,
    aggregate,
    default_primary,
    direction,
    geomean,
    improvement,
    parse_primary,
    value,
)
from pytest_kopt.schema.table import Row, make_row
from pytest_kopt.show.files.summary import versus
from tests.builders import GEMM_HEADER, few_examples, gemm_row, gemm_table, metric_table

COMBINED = Metric("Combined Step TFLOPS", "higher")
FORWARD = Metric("Forward TFLOPS", "higher")
RATES = st.floats(1e-3, 1e4)

WORKED = [(320.0, 160.0, "192.000"), (305.0, 152.0, "182.520"), (290.0, 145.0, "174.000")]


def metric_row(cells: dict[str, float]) -> Row:
    """Return a GEMM row with these cells and no others."""
    return make_row(GEMM_HEADER.split(","), {"label": "a", "Check": "PASS", **cells})


@pytest.mark.parametrize(("forward", "backward", "combined"), WORKED)
def test_the_combined_step_of_the_worked_figures(
    forward: float, backward: float, combined: str
) -> None:
    found = value(gemm_row(4096, forward, backward), COMBINED)
    assert thousandths(found) == combined


@given(RATES, RATES, st.integers(1, 8192))
@few_examples
def test_the_combined_step_is_six_mnk_over_both_times(
    forward: float, backward: float, size: int
) -> None:
    row = gemm_row(size, forward, backward)
    milliseconds = float(row.cells["Forward Time (ms)"]) + float(row.cells["Backward Time (ms)"])
    work = 6.0 * size**3
    assert value(row, COMBINED) == pytest.approx(work / (milliseconds * 1e-3) / 1e12, rel=1e-9)
    assert value(row, COMBINED) == pytest.approx(6 / (2 / forward + 4 / backward), rel=1e-9)


def test_a_backward_of_other_than_twice_the_work_counts_with_its_own_flops() -> None:
    row = metric_row(
        {
            "Forward TFLOPS": 100.0,
            "Backward TFLOPS": 50.0,
            "Forward Time (ms)": 1.0,
            "Backward Time (ms)": 1.0,
        }
    )
    assert value(row, COMBINED) == pytest.approx(75.0)


def test_without_times_the_work_is_taken_as_one_to_two() -> None:
    row = metric_row({"Forward TFLOPS": 320.0, "Backward TFLOPS": 160.0})
    assert value(row, COMBINED) == pytest.approx(192.0)


def test_without_a_backward_the_combined_step_is_the_forward_rate() -> None:
    assert value(gemm_row(512, 320.0), COMBINED) == 320.0


@pytest.mark.parametrize("backward", [math.nan, 0.0, -1.0])
def test_a_backward_that_is_no_rate_makes_the_combined_step_nan(backward: float) -> None:
    found = value(gemm_row(512, 320.0, backward), COMBINED)
    assert found is not None and math.isnan(found)


def test_versus_baseline_gives_step_forward_and_backward_in_percent() -> None:
    baseline, better, best = (
        Trend(unit="TFLOPS", forward_average=f, backward_average=b, combined=6 / (2 / f + 4 / b))
        for f, b, _ in reversed(WORKED)
    )
    assert versus(better, baseline) == "step +4.896%, fwd +5.172%, bwd +4.828%"
    assert versus(best, baseline) == "step +10.345%, fwd +10.345%, bwd +10.345%"
    assert versus(baseline, best) == "step -9.375%, fwd -9.375%, bwd -9.375%"


def test_versus_baseline_of_a_forward_only_kernel_has_no_backward() -> None:
    old = Trend(unit="TFLOPS", forward_average=100.0, combined=100.0)
    new = Trend(unit="TFLOPS", forward_average=103.0, combined=103.0)
    assert versus(new, old) == "step +3.000%, fwd +3.000%, bwd —"


def test_versus_baseline_of_a_time_is_positive_when_it_fell() -> None:
    old = Trend(unit="Time (ms)", forward_average=1.0, combined=1.0)
    new = Trend(unit="Time (ms)", forward_average=0.8, combined=0.8)
    assert versus(new, old) == "step +25.000%, fwd +25.000%, bwd —"


def test_the_default_primary_is_the_combined_step_where_every_row_has_a_backward() -> None:
    assert default_primary(gemm_table([1.0, 2.0], [1.0, 2.0])) == "Combined Step TFLOPS"


def test_the_default_primary_is_the_forward_metric_otherwise() -> None:
    assert default_primary(gemm_table([1.0, 2.0])) == "Forward TFLOPS"
    mixed = gemm_table([1.0, 2.0], [1.0, 2.0])
    one_without = gemm_row(1024, 3.0)
    table = type(mixed)(mixed.header, (*mixed.rows, one_without))
    assert default_primary(table) == "Forward TFLOPS"
    assert default_primary(metric_table("Forward GB/s", [1.0])) == "Forward GB/s"


def test_the_default_primary_of_a_table_without_rates_is_its_first_metric() -> None:
    table = metric_table("Time (ms)", [1.0], extra="Time (ms)_stddev,out_snr")
    assert default_primary(table) == "Time (ms)"


def test_several_primaries_are_separated_by_commas() -> None:
    table = gemm_table([1.0], [2.0])
    found = parse_primary("Forward TFLOPS, Backward TFLOPS", table, {})
    assert [metric.name for metric in found] == ["Forward TFLOPS", "Backward TFLOPS"]


@pytest.mark.parametrize("name", ["Forward GB/s", "Forward TFLOPS_stddev", "label", "M", "fast"])
def test_a_primary_that_is_no_metric_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(BadInput) as refusal:
        parse_primary(name, gemm_table([1.0], [2.0]), {})
    assert repr(name) in str(refusal.value)
    assert "Combined Step TFLOPS, Forward TFLOPS, Backward TFLOPS" in str(refusal.value)


@pytest.mark.parametrize(
    ("column", "better"),
    [
        ("Forward TFLOPS", "higher"),
        ("Backward GB/s", "higher"),
        ("Combined Step GB/s", "higher"),
        ("Time (ms)", "lower"),
        ("Forward Time (ms)", "lower"),
        ("kernel_us", "lower"),
        ("avg µs", "lower"),
    ],
)
def test_rates_improve_upwards_and_times_downwards(column: str, better: str) -> None:
    assert direction(column, {}) == better


def test_a_declared_direction_comes_first_and_an_unknown_one_is_asked_for() -> None:
    declared: dict[str, Better] = {"occupancy": "higher", "Time (ms)": "higher"}
    assert direction("occupancy", declared) == "higher"
    assert direction("Time (ms)", declared) == "higher"
    with pytest.raises(BadInput, match="'occupancy'"):
        direction("occupancy", {})


def test_an_improvement_is_a_ratio_above_1_whichever_way_the_metric_improves() -> None:
    assert improvement(110.0, 100.0, FORWARD) == pytest.approx(1.1)
    assert improvement(0.8, 1.0, Metric("Time (ms)", "lower")) == pytest.approx(1.25)


@given(st.lists(RATES, min_size=1), st.floats(1e-3, 1e3))
@few_examples
def test_a_geometric_mean_lies_inside_its_values_and_scales_with_them(
    values: list[float], scale: float
) -> None:
    found = geomean(values)
    assert min(values) * (1 - 1e-12) <= found <= max(values) * (1 + 1e-12)
    assert geomean(item * scale for item in values) == pytest.approx(found * scale)


def test_the_aggregate_is_the_geometric_mean_over_the_rows_that_pass() -> None:
    table = gemm_table([100.0, 400.0, 1e6], checks=["PASS", "PASS", "FAIL"])
    assert aggregate(table.rows, FORWARD) == pytest.approx(200.0)
    assert math.isnan(aggregate(gemm_table([1.0], checks=["FAIL"]).rows, FORWARD))


def test_a_rate_is_work_over_the_mean_time_with_the_population_standard_deviation() -> None:
    timing = Timing("wall", (1.0, 2.0, 3.0), 50)
    rate, spread = timing.rate(6e12, "TFLOPS")
    assert rate == pytest.approx(3000.0)
    assert spread == pytest.approx(statistics.pstdev([6000.0, 3000.0, 2000.0]))
    assert timing.stddev_ms == pytest.approx(math.sqrt(2 / 3))
    assert timing.rate(6e9, "GB/s")[0] == pytest.approx(3000.0)


def test_one_sample_has_a_standard_deviation_of_zero() -> None:
    timing = Timing("wall", (2.0,), 1)
    assert timing.stddev_ms == 0.0
    assert timing.rate(1.0, "TFLOPS")[1] == 0.0


class Clock:
    """A clock that a kernel moves by the seconds each of its calls takes."""

    def __init__(self, seconds: Iterable[float]) -> None:
        self.seconds = iter(seconds)
        self.time = 0.0
        self.calls = 0

    def kernel(self) -> None:
        self.calls += 1
        self.time += next(self.seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock([])
    monkeypatch.setattr(wall, "perf_counter", lambda: found.time)
    return found


def test_the_seeds_loop_is_1_discarded_and_3_repeats_of_50_with_their_means(clock: Clock) -> None:
    clock.seconds = itertools.repeat(1e-3)
    block = WallEngine(synchronize=lambda: None).prepare([clock.kernel])
    discarded = [9e-3] * 50
    repeats = [[1e-3] * 49 + [51e-3], [2e-3] * 50, [3e-3] * 50]
    clock.seconds = itertools.chain(discarded, *repeats)
    assert samples_of(block.run) == pytest.approx((2.0, 2.0, 3.0))
    assert (block.engine, block.calls) == ("wall", 50)


def test_on_the_cpu_a_sample_is_the_time_of_all_its_calls(clock: Clock) -> None:
    """A median would leave out what some calls do for the others."""
    clock.seconds = itertools.repeat(1e-3)
    block = WallEngine().prepare([clock.kernel])
    clock.seconds = itertools.cycle([1e-3] * 30 + [100e-3] * 20)
    mean_ms = (30 * 1 + 20 * 100) / 50
    assert samples_of(block.run) == pytest.approx((mean_ms,) * 3)


@pytest.mark.parametrize(("seconds", "calls"), [(0.125, 16), (5.0, 3)])
def test_a_slow_kernel_gets_fewer_calls_a_block_and_at_least_three(
    clock: Clock, seconds: float, calls: int
) -> None:
    clock.seconds = itertools.repeat(seconds)
    assert WallEngine().prepare([clock.kernel]).calls == calls


def test_a_first_slow_call_is_not_timed(clock: Clock) -> None:
    clock.seconds = itertools.chain([60.0], itertools.repeat(1e-3))
    block = WallEngine().prepare([clock.kernel])
    assert samples_of(block.run) == pytest.approx((1.0, 1.0, 1.0))
    assert block.calls == 50


def test_the_interpreter_times_one_call_under_a_name_of_its_own(clock: Clock) -> None:
    clock.seconds = itertools.repeat(0.25)
    block = interpreted_block([clock.kernel], None)
    assert samples_of(block.run, repeats=1, discarded=0) == (250.0,)
    assert (block.engine, block.calls) == ("interpreter", 1)
    assert clock.calls == 1
