"""The state of a device around a measurement: flags, and measuring again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pytest_kopt.devices.conditions import Conditions, by_kind, steadily
from pytest_kopt.devices.vendor import Reading
from pytest_kopt.honesty.finding import is_finding

CALM = Reading(sm_mhz=1980.0, temperature_c=50.0, throttle=("gpu_idle",))


@pytest.mark.parametrize(
    ("after", "flag", "passing"),
    [
        (CALM, "", False),
        (Reading(), "", False),
        (Reading(sm_mhz=1930.0, temperature_c=54.0), "", False),
        (Reading(throttle=("applications_clocks_setting",)), "", False),
        (Reading(throttle=("hw_thermal_slowdown",)), "throttled: hw_thermal_slowdown", True),
        (Reading(throttle=("sw_power_cap",)), "throttled: sw_power_cap", False),
        (Reading(throttle=("ppt_pwr",)), "throttled: ppt_pwr", False),
        (Reading(sm_mhz=1900.0), "clock drifted from 1980 to 1900 MHz", True),
        (Reading(temperature_c=55.0), "temperature drifted from 50 to 55 °C", True),
    ],
)
def test_what_is_flagged(after: Reading, flag: str, passing: bool) -> None:
    """A power cap is what a heavy kernel lives with: measuring again would find it again."""
    conditions = Conditions(CALM, after)
    assert conditions.flags == ((flag,) if flag else ())
    assert conditions.passing == passing


def test_reasons_from_before_count_too_and_once() -> None:
    hot = Reading(throttle=("sw_thermal_slowdown", "gpu_idle"))
    assert Conditions(hot, hot).flags == ("throttled: sw_thermal_slowdown",)


def test_a_clock_that_the_power_cap_moves_moves_again() -> None:
    capped = Reading(sm_mhz=1600.0, temperature_c=50.0, throttle=("sw_power_cap",))
    conditions = Conditions(CALM, capped)
    assert len(conditions.flags) == 2 and not conditions.passing


def test_what_most_cases_share_is_told_once_with_an_example() -> None:
    throttled = "throttled: sw_power_cap"
    found = {
        "m16": (throttled, "clock drifted from 1980 to 1605 MHz"),
        "m32": (throttled, "clock drifted from 1965 to 1710 MHz"),
        "m64": (throttled, "temperature drifted from 44 to 57 °C"),
        "m128": (),
    }
    lines = [
        "3 of 4 cases: throttled: sw_power_cap",
        "2 of 4 cases: clock drifted, as at m16 from 1980 to 1605 MHz",
        "m64: temperature drifted from 44 to 57 °C",
    ]
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
        ([CALM, Reading(throttle=("sw_power_cap",))], 1, True),
    ],
)
def test_a_spoilt_measurement_is_repeated_within_the_budget(
    readings: list[Reading], measured: int, flagged: bool
) -> None:
    left, count = replay(readings), iter(range(1, 9))
    found, conditions = steadily(lambda: next(count), lambda: next(left))
    assert found == conditions.measurement == measured
    assert bool(conditions.flags) == flagged
    assert next(left, None) is None
    document = conditions.to_document()
    assert document["measurement"] == measured and bool(document["flags"]) == flagged
    assert document["before"]["throttle"] == readings[-2].throttle
