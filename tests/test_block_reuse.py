"""What known content is worth to a block that goes round the same inputs again and again."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from pytest_kopt.honesty.renewal import known_content_gain
from pytest_kopt.measure.engine import Block
from pytest_kopt.measure.wall import WallBlock


class Clock:
    """What calls take longer by, at random for spells of a few measurements."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._pace = 1.0

    def tick(self) -> float:
        if self._dice.random() < 0.1:
            self._pace = self._dice.uniform(1.0, 1.1)
        return self._pace


class Device(Block):
    """A device of its own pace, and a call that may remember what it has seen `patience` times."""

    engine, calls = "scripted", 50

    def __init__(self, gain: float, patience: int, noise: float = 0.005, seed: int = 1) -> None:
        self.content = torch.randn(64)
        self.written = 0
        self.slower_after = math.inf
        self.clock: Clock | None = None
        self._gain, self._patience, self._noise = gain, patience, noise
        self._seen: Counter[bytes] = Counter()
        self._dice = random.Random(seed)

    def run(self) -> float:
        return sum(self._call() for _ in range(self.calls)) / self.calls

    def run_after(self, write: Callable[[], object]) -> float:
        self.run()
        write()
        self.written += 1
        return self._call() * (self.clock.tick() if self.clock else 1.0)

    def _call(self) -> float:
        key = self.content.numpy().tobytes()
        self._seen[key] += 1
        known = self._seen[key] > self._patience
        pace = 1.1 if self.written > self.slower_after else 1.0
        return pace * (1 - self._gain * known) * self._dice.gauss(1, self._noise)


@pytest.mark.parametrize("gain", [0.06, 0.5, 0.95])
@pytest.mark.parametrize("patience", [1, 40, 400])
def test_a_call_that_is_faster_for_known_content_is_told(gain: float, patience: int) -> None:
    device = Device(gain, patience)
    for _ in range(10):
        device.run()
    found = known_content_gain(device, [device.content], 3)
    assert found == pytest.approx(-math.log(1 - gain), abs=0.03)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_a_call_that_remembers_nothing_is_not(noise: float) -> None:
    for seed in range(20):
        device = Device(0.0, 0, noise, seed)
        assert known_content_gain(device, [device.content], seed) == 0.0
        assert device.written <= 12


def test_a_device_that_slows_down_in_the_middle_remembers_nothing() -> None:
    device = Device(0.0, 0)
    device.slower_after = 4
    assert known_content_gain(device, [device.content], 3) == 0.0
    assert 12 < device.written < 24, "it was asked again"


def test_a_device_whose_clock_wanders_remembers_nothing() -> None:
    """At its power cap the clock follows the load: slow and fast spells of some calls each."""
    for seed in range(200):
        device = Device(0.0, 0, seed=seed)
        device.clock = Clock(seed)
        assert known_content_gain(device, [device.content], seed) == 0.0


def test_a_memory_is_told_under_a_wandering_clock_as_well() -> None:
    device = Device(0.5, 20)
    device.clock = Clock(5)
    assert known_content_gain(device, [device.content], 5) > 0.5


def test_known_content_comes_first_and_then_new_content_only() -> None:
    device = Device(0.5, 1)
    device.run()
    seen = [device.content.clone()]
    measured = device.run_after

    def watched(write: Callable[[], object]) -> float:
        milliseconds = measured(write)
        seen.append(device.content.clone())
        return milliseconds

    device.run_after = watched  # type: ignore[method-assign]
    assert known_content_gain(device, [device.content], 4) > 0.5
    is_new = [not torch.equal(old, new) for old, new in pairwise(seen)]
    assert is_new == ([False] * 4 + [True] * 8) * 4


def test_nothing_is_timed_where_every_call_has_new_content_or_none_can_be_changed() -> None:
    wall = WallBlock([lambda: None], 3, None)
    assert known_content_gain(wall, [torch.randn(64)], 1) == 0.0
    device = Device(0.5, 1)
    assert known_content_gain(device, [torch.arange(8)], 1) == 0.0 and device.written == 0
