"""The memory of a call, held against what is known of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pytest_kopt.measure.memory_use import first_calls  # noqa: E402

MIB = 1 << 20


def test_the_most_that_is_held_at_once_counts() -> None:
    x = torch.ones(MIB // 4)

    def three_at_once() -> object:
        one = x + 1
        two = x + one
        return one * two

    assert first_calls(three_at_once, "cpu")[0] == pytest.approx(3 * MIB, rel=0.01)


def test_what_is_given_back_before_does_not() -> None:
    x = torch.ones(MIB // 4)

    def one_after_the_other() -> object:
        total = x + 1
        del total
        return x + 2

    assert first_calls(one_after_the_other, "cpu")[0] == pytest.approx(MIB, rel=0.01)


def test_what_is_kept_between_calls_counts() -> None:
    x = torch.ones(MIB // 4)
    kept: list[Any] = []

    def keeps() -> object:
        if not kept:
            kept.append(torch.zeros(5 * MIB // 4))
        return x + kept[0][: len(x)]

    assert first_calls(keeps, "cpu")[0] == pytest.approx(6 * MIB, rel=0.01)


def test_a_call_that_writes_in_place_takes_none() -> None:
    x = torch.ones(MIB // 4)
    assert first_calls(lambda: x.mul_(2), "cpu")[0] < 0.01 * MIB


def test_only_the_first_call_is_clocked(monkeypatch: pytest.MonkeyPatch) -> None:
    at = iter([0.0, 1.0, 5.0, 7.0])
    clock = SimpleNamespace(perf_counter=at.__next__)
    monkeypatch.setattr("pytest_kopt.measure.memory_use.time", clock)
    assert first_calls(lambda: None, "cpu")[1] == 1000.0


def counted(function: Callable[[], object]) -> int:
    """Count the most bytes at once in another way: by the lives of what operators return."""
    live: dict[int, int] = {}
    most = 0

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal most
            result = op(*args, **(kwargs or {}))
            for tensor in torch.utils._pytree.tree_leaves(result):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in held and storage.data_ptr() not in live:
                    live[storage.data_ptr()] = storage.nbytes()
                    weakref.finalize(storage, live.pop, storage.data_ptr(), None)
            most = max(most, sum(live.values()))
            return result

    held = {X.untyped_storage().data_ptr()}
    with Counting():  # type: ignore[no-untyped-call]
        function()
    return most


X = torch.linspace(0.0, 1.0, 512 * 512).reshape(512, 512)
KERNELS: dict[str, Callable[[], object]] = {
    "layer norm by hand": lambda: (X - X.mean(1, keepdim=True)) / (X.var(1, keepdim=True) + 1e-6),
    "softmax in place": lambda: X.exp().div_(X.exp().sum(1, keepdim=True)),
    "attention": lambda: torch.softmax(X @ X.t(), 1) @ X,
    "matmul in halves": lambda: torch.cat([X[:256] @ X, X[256:] @ X]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_it_agrees_with_an_independent_count(name: str) -> None:
    assert first_calls(KERNELS[name], "cpu")[0] == pytest.approx(counted(KERNELS[name]), rel=0.02)
