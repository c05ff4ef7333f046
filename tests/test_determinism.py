from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_kopt import assert_deterministic
from pytest_kopt.cases.order import derive, fresh_session_seed, seed_everything
from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.nested import differing_rows


def changing_at(call: int, before: float, after: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a kernel that puts `after` first in one call (counted from 1), else `before`."""
    calls = itertools.count(1)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        out[0] = after if next(calls) == call else before
        return out

    return kernel


def test_a_kernel_is_called_ten_times_unless_told() -> None:
    calls = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x + 1

    assert_deterministic(kernel, (torch.randn(4),))
    assert len(calls) == 10
    assert_deterministic(kernel, (torch.randn(4),), repeats=3)
    assert len(calls) == 13


@pytest.mark.parametrize("call", [2, 10])
def test_one_differing_repeat_is_found_and_named(call: int) -> None:
    kernel = changing_at(call, 1.0, 1.0000001)
    with pytest.raises(AssertionError, match=f"out of repeat {call} .* 1 of 4 elements"):
        assert_deterministic(kernel, (torch.zeros(4),))


def test_equality_is_of_bits_not_of_values() -> None:
    with pytest.raises(AssertionError):
        assert_deterministic(changing_at(3, 0.0, -0.0), (torch.zeros(4),))


def test_the_same_nan_is_the_same_result() -> None:
    assert_deterministic(lambda x: x / 0, (torch.zeros(4),))


def test_gradients_are_repeated_too() -> None:
    calls = itertools.count(1)

    class Fickle(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * 2 + (1e-6 if next(calls) == 6 else 0)

    with pytest.raises(AssertionError, match="gradient 0 of repeat 6"):
        assert_deterministic(Fickle.apply, (torch.randn(4, requires_grad=True),))


def test_every_output_of_a_tuple_is_compared() -> None:
    fickle = changing_at(4, 1.0, 2.0)
    with pytest.raises(AssertionError):
        assert_deterministic(lambda x: (x, fickle(x)), (torch.zeros(4),))


def test_a_kernel_that_writes_to_its_inputs_gets_a_fresh_copy_each_time() -> None:
    given = torch.ones(4)
    assert_deterministic(lambda x: x.add_(1), (given,))
    assert given.tolist() == [1.0] * 4


def test_a_factory_of_inputs_is_called_once() -> None:
    made = []

    def inputs() -> tuple[torch.Tensor]:
        made.append(torch.randn(4))
        return (made[-1],)

    assert_deterministic(lambda x: x * 3, inputs)
    assert len(made) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.int8])
def test_every_width_of_element_can_be_compared(dtype: torch.dtype) -> None:
    assert_deterministic(lambda x: x.clone(), (torch.ones(3, 5).to(dtype),))


def test_a_kernel_without_a_tensor_to_compare_is_not_called_deterministic() -> None:
    with pytest.raises((BadInput, AssertionError, TypeError)):
        assert_deterministic(lambda x: {"out": torch.rand(4)}, (torch.zeros(4),))


@pytest.mark.parametrize("repeats", [0, 1])
def test_fewer_than_two_repeats_compare_nothing_and_are_refused(repeats: int) -> None:
    with pytest.raises((BadInput, ValueError)):
        assert_deterministic(lambda x: x, (torch.zeros(4),), repeats=repeats)


def test_seeds_follow_from_the_session_the_case_and_the_purpose() -> None:
    seed = derive(7, "test_a.py::test[1]", "check")
    assert seed == derive(7, "test_a.py::test[1]", "check")
    others = [
        derive(8, "test_a.py::test[1]", "check"),
        derive(7, "test_a.py::test[2]", "check"),
        derive(7, "test_a.py::test[1]", "time"),
    ]
    assert len({seed, *others}) == 4
    assert all(0 <= number < 2**63 for number in [seed, *others])


def test_a_seed_repeats_the_draws_of_python_torch_and_numpy() -> None:
    numpy = pytest.importorskip("numpy")

    def draw() -> tuple[float, float, float]:
        return random.random(), float(torch.rand(1)), float(numpy.random.rand())

    seed_everything(2**62 + 5)
    first = draw()
    seed_everything(2**62 + 5)
    assert draw() == first
    assert draw() != first


def test_sessions_do_not_share_their_seed() -> None:
    assert len({fresh_session_seed() for _ in range(50)}) == 50


@pytest.mark.parametrize("is_turned", [False, True])
def test_rows_differ_by_their_bits_wherever_they_lie(is_turned: bool) -> None:
    held = torch.zeros(1500, 4)
    if is_turned:
        held = torch.zeros(4, 1500).t()
    one, other = held.clone(), held.clone()
    one[0, 3], one[777, 1], other[1499, 0] = float("nan"), -0.0, 1.0
    other[777, 1] = -0.0
    assert differing_rows(held, one, other).tolist() == [0, 777, 1499]
    assert differing_rows(one, one.clone()).tolist() == []
