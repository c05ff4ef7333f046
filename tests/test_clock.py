"""The time that work takes, where other work shares the machine."""

from __future__ import annotations

import time

import pytest

from pytest_kopt.clock import Stopwatch


@pytest.mark.parametrize(
    ("on_cpu", "passed", "processor", "seconds"),
    [
        (False, 8.0, 1.0, 8.0),
        (True, 8.0, 3.0, 3.0),
        # It sleeps, or waits for a child of its own.
        (True, 8.0, 0.1, 2.0),
    ],
)
def test_on_a_cpu_the_work_of_others_does_not_count(
    monkeypatch: pytest.MonkeyPatch, on_cpu: bool, passed: float, processor: float, seconds: float
) -> None:
    with monkeypatch.context() as scripted:
        scripted.setattr(time, "perf_counter", iter([10.0, 10.0 + passed]).__next__)
        scripted.setattr(time, "process_time", iter([5.0, 5.0 + processor]).__next__)
        took = Stopwatch(on_cpu=on_cpu).seconds()
    assert took == pytest.approx(seconds)
