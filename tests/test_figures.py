"""Numbers as people read them: three digits that mean something, factors beyond twice as fast."""

from __future__ import annotations

import math

import pytest

from pytest_kopt.figures import (
    changed,
    changed_within,
    figure,
    frozen_change,
    in_unit,
    interval,
    rounded,
    thousandths,
)


@pytest.mark.parametrize(
    ("pct", "text"),
    [
        (None, "—"),
        (math.nan, "—"),
        (0.0, "+0.00 %"),
        (3.359, "+3.36 %"),
        (-0.049, "-0.05 %"),
        (33.333, "+33.3 %"),
        (-96.5, "-96.5 %"),
        (100.0, "2.00×"),
        (161.045, "2.61×"),
        (1859.558, "19.6×"),
        (50000.0, "501×"),
    ],
)
def test_a_change_has_three_digits_and_is_a_factor_beyond_two(pct: float, text: str) -> None:
    assert changed(pct) == text


def test_an_interval_is_written_as_its_change_is() -> None:
    assert changed_within(3.36, 3.21, 3.5) == "+3.36 % [+3.21, +3.50]"
    assert changed_within(161.045, 73.43, 292.92) == "2.61× [1.73×, 3.93×]"
    assert changed_within(65.2, 22.0, 124.4) == "+65.2 % [+22.0, +124]"
    assert interval(65.2, 22.0, 124.4) == "[+22.0, +124]"
    assert changed_within(5.0, None, None) == "+5.00 %"
    assert interval(5.0, None, 1.0) == ""


def test_a_value_has_four_digits() -> None:
    assert [figure(value) for value in (0.00123456, 1.18149, 600.04, 12345.6)] == [
        *("0.001235", "1.181", "600.0", "12346"),
    ]
    assert figure(None) == figure(math.nan) == "-"


def test_a_unit_says_how_its_numbers_are_written() -> None:
    units = {"%": 98.04, "dB": 41.26, "MHz": 1980.4, "us": 12.3456, "TFLOPS": 1234.5}
    assert [in_unit(number, unit) for unit, number in units.items()] == [
        *("98.0 %", "41.26 dB", "1980 MHz", "12.35 us", "1234 TFLOPS"),
    ]
    assert in_unit(None, "%") == "-"
    assert [rounded(number) for number in (512.0, 1.5, 12345.6, 2.0e9)] == [
        *("512", "1.5", "12346", "2e+09"),
    ]


def test_the_trends_columns_are_frozen() -> None:
    found = [frozen_change(value) for value in (None, 4.896, 1859.558)]
    assert found == ["—", "+4.896%", "+1859.558%"]
    assert [thousandths(value) for value in (None, math.nan, 192.0)] == ["-", "-", "192.000"]
