"""What known content is worth to a block that goes round the same inputs again and again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from pytest_kopt.honesty.reuse import block_ratios, block_remembers
from pytest_kopt.measure.engine import Block
from pytest_kopt.measure.wall import WallBlock


class Device(Block):
    """A device of its own pace, and a call that may remember what it has seen `patience` times."""

    engine, calls = "scripted", 50

    def __init__(self, gain: float, patience: int, noise: float = 0.005) -> None:
        self.content = torch.randn(64)
        self.written = 0
        self._gain, self._patience, self._noise = gain, patience, noise
        self._seen: Counter[bytes] = Counter()
        self._dice = random.Random(1)

    def run(self) -> float:
        return sum(self._call() for _ in range(self.calls)) / self.calls

    def run_after(self, write: Callable[[], object]) -> float:
        self.run()
        write()
        self.written += 1
        return self._call()

    def _call(self) -> float:
        key = bytes(self.content.view(torch.uint8).tolist())
        self._seen[key] += 1
        known = self._seen[key] > self._patience
        return (1 - self._gain * known) * self._dice.gauss(1, self._noise)


@pytest.mark.parametrize("gain", [0.06, 0.5, 0.95])
@pytest.mark.parametrize("patience", [1, 40])
def test_a_call_that_is_faster_for_known_content_is_told(gain: float, patience: int) -> None:
    device = Device(gain, patience)
    ratios = block_ratios(device, [device.content], 3)
    assert block_remembers(ratios)
    assert ratios[0] == pytest.approx(-torch.tensor(1 - gain).log().item(), abs=0.03)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_a_call_that_remembers_nothing_is_let_go_soon(noise: float) -> None:
    device = Device(0.0, 0, noise)
    ratios = block_ratios(device, [device.content], 3)
    assert not block_remembers(ratios)
    assert device.written == 2 * len(ratios) < 16


def test_known_and_new_content_come_equally_often_and_in_either_order() -> None:
    device = Device(0.5, 1)
    seen = [device.content.clone()]
    measured = device.run_after

    def watched(write: Callable[[], object]) -> float:
        milliseconds = measured(write)
        seen.append(device.content.clone())
        return milliseconds

    device.run_after = watched  # type: ignore[method-assign]
    assert len(block_ratios(device, [device.content], 4)) == 12
    is_new = [not torch.equal(old, new) for old, new in pairwise(seen)]
    assert is_new == [True, False, False, True] * 6


def test_nothing_is_timed_where_every_call_has_new_content_or_none_can_be_changed() -> None:
    wall = WallBlock([lambda: None], 3, None)
    assert block_ratios(wall, [torch.randn(64)], 1) == []
    device = Device(0.5, 1)
    assert block_ratios(device, [torch.arange(8)], 1) == [] and device.written == 0
    assert not block_remembers([])
