"""The state of a device around a measurement: flags, and measuring again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pytest_kopt.devices.conditions import Conditions, Steadily, by_kind
from pytest_kopt.devices.vendor import Reading
from pytest_kopt.honesty.finding import is_finding

CALM = Reading(sm_mhz=1980.0, temperature_c=50.0, throttle=("gpu_idle",))


@pytest.mark.parametrize(
    ("after", "flag"),
    [
        (CALM, ""),
        (Reading(), ""),
        (Reading(throttle=("applications_clocks_setting",)), ""),
        (Reading(throttle=("hw_thermal_slowdown",)), "throttled: hw_thermal_slowdown"),
        (Reading(throttle=("sw_power_cap",)), ""),
        (Reading(throttle=("ppt_pwr",)), ""),
        (Reading(sm_mhz=1500.0, temperature_c=65.0), ""),
    ],
)
def test_what_is_flagged(after: Reading, flag: str) -> None:
    """A power cap is what a heavy kernel lives with, and its clock a figure, no flag."""
    assert Conditions(CALM, after).flags == ((flag,) if flag else ())


def test_reasons_from_before_count_too_and_once() -> None:
    hot = Reading(throttle=("sw_thermal_slowdown", "gpu_idle"))
    assert Conditions(hot, hot).flags == ("throttled: sw_thermal_slowdown",)


def test_what_several_cases_share_is_told_once() -> None:
    throttled = "throttled: hw_thermal_slowdown"
    slow = "not at boost: pauses left the clock at 1605 of 1980 MHz"
    found = {"m16": (throttled, slow), "m32": (throttled,), "m64": (throttled,), "m128": ()}
    lines = ["3 of 4 cases: throttled: hw_thermal_slowdown", f"m16: {slow}"]
    assert by_kind(found) == lines
    assert not any(is_finding(line, found) for line in lines)
    assert by_kind({"m16": (), "m32": ()}) == []


def replay(readings: Sequence[Reading]) -> Iterator[Reading]:
    yield from readings


HOT = Reading(throttle=("hw_slowdown",))


@pytest.mark.parametrize(
    ("readings", "measured", "flagged"),
    [
        ([CALM, CALM], 1, False),
        ([CALM, HOT, CALM, CALM], 2, False),
        ([CALM, HOT, HOT, CALM, CALM, HOT], 3, True),
        ([CALM, Reading(throttle=("sw_power_cap",))], 1, False),
    ],
)
def test_a_spoilt_measurement_is_repeated_within_the_budget(
    readings: list[Reading], measured: int, flagged: bool
) -> None:
    left = replay(readings)
    steadily = Steadily(lambda: next(left))
    assert [*steadily] == [*range(1, measured + 1)]
    conditions = steadily.conditions
    assert conditions.measurement == measured
    assert bool(conditions.flags) == flagged
    assert next(left, None) is None
    document = conditions.to_document()
    assert document["measurement"] == measured and bool(document["flags"]) == flagged
    assert document["before"]["throttle"] == readings[-2].throttle
