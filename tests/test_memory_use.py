"""The memory of a call, held against what is known of it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_kopt.measure.memory_use import peak_bytes  # noqa: E402

MIB = 1 << 20


def test_the_most_that_is_held_at_once_counts() -> None:
    x = torch.ones(MIB // 4)

    def three_at_once() -> object:
        one = x + 1
        two = x + one
        return one * two

    assert peak_bytes(three_at_once, "cpu") == pytest.approx(3 * MIB, rel=0.01)


def test_what_is_given_back_before_does_not() -> None:
    x = torch.ones(MIB // 4)

    def one_after_the_other() -> object:
        total = x + 1
        del total
        return x + 2

    assert peak_bytes(one_after_the_other, "cpu") == pytest.approx(MIB, rel=0.01)


def test_what_is_kept_between_calls_counts() -> None:
    x = torch.ones(MIB // 4)
    kept: list[Any] = []

    def keeps() -> object:
        if not kept:
            kept.append(torch.zeros(5 * MIB // 4))
        return x + kept[0][: len(x)]

    assert peak_bytes(keeps, "cpu") == pytest.approx(6 * MIB, rel=0.01)


def test_a_call_that_writes_in_place_takes_none() -> None:
    x = torch.ones(MIB // 4)
    assert peak_bytes(lambda: x.mul_(2), "cpu") < 0.01 * MIB
