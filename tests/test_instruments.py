"""The instruments' known answers, asked while others use the device too."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from pytest_kopt.honesty import instruments

#: What events said of a wait on an H200 with one, two and three sessions that checked at once.
ALONE_MS, TURN_MS = 1.93, 2.0


class SharedDevice:
    """Waits of a device that may give other processes a turn in the middle."""

    def __init__(self, seed: int, turns: float, told: float = 1.0) -> None:
        self._dice = random.Random(seed)
        self._turns = turns
        self._told = told
        self._is_told = False

    def call(self) -> None:
        """Be the kernel, whose tampering makes events tell only a share."""
        self._is_told = True

    def wait_ms(self, first: Callable[[], object]) -> float:
        self._is_told = False
        first()
        turns = sum(self._dice.random() < self._turns for _ in range(2))
        return (ALONE_MS + turns * TURN_MS) * (self._told if self._is_told else 1.0)


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize("turns", [0.0, 0.3, 0.6])
def test_the_turns_of_another_process_are_no_tampering(
    turns: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(1000):
        device = SharedDevice(seed, turns)
        monkeypatch.setattr(instruments, "_wait_ms", device.wait_ms)
        assert instruments._events(device.call) == []


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize("turns", [0.0, 0.3])
def test_events_that_tell_a_share_after_each_call_are(
    turns: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(100):
        device = SharedDevice(seed, turns, told=0.15)
        monkeypatch.setattr(instruments, "_wait_ms", device.wait_ms)
        (lie,) = instruments._events(device.call)
        assert lie.startswith("device events counted")
