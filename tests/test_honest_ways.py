"""What honest kernels do, and no step of a check holds against them."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checked import COLUMNS, ROWS, check, honest, names


@functools.lru_cache
def _chunk(rows: int) -> int:
    return max(1, rows // 3)


_scratch: dict[Any, Tensor] = {}


def _with_scratch(x: Tensor, w: Tensor) -> Tensor:
    if x.shape not in _scratch:
        _scratch[x.shape] = torch.empty_like(x)
    return torch.mul(x, w, out=_scratch[x.shape]).tanh()


def _in_place(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).tanh_()


def _chunked(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([honest(part, w) for part in x.split(_chunk(x.shape[0]))])


def _through_numpy(x: Tensor, w: Tensor) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.tanh(x.numpy() * w.numpy()))


_best: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {}


def _tuned(x: Tensor, w: Tensor) -> Tensor:
    if x.shape not in _best:
        trial, spent = torch.ones_like(x), {}
        for variant in (honest, _in_place, _chunked):
            start = time.perf_counter()
            variant(trial, w)
            spent[variant] = time.perf_counter() - start
        _best[x.shape] = min(spent, key=lambda variant: spent[variant])
    return _best[x.shape](x, w)


class _PackedWeight:
    """A copy of the weight that follows its version, as W1 allows."""

    version, copy = -1, torch.empty(0)

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        if self.version != w._version or self.copy.shape != w.shape:
            self.version, self.copy = w._version, w.clone()
        return honest(x, self.copy)


def _joined_thread(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)
    thread = threading.Thread(target=lambda: torch.tanh(x * w, out=out))
    thread.start()
    thread.join()
    return out


HONEST = (
    honest,
    _with_scratch,
    _in_place,
    _chunked,
    _through_numpy,
    _tuned,
    _joined_thread,
    _PackedWeight(),
)


@pytest.mark.parametrize("kernel", HONEST, ids=lambda k: getattr(k, "__name__", "packed"))
def test_an_honest_kernel_is_none_of_all_that(kernel: Callable[..., Any]) -> None:
    report = check(kernel, freezes=True)
    assert (report.check, report.findings) == ("PASS", [])
    assert report.written == 4 * ROWS * COLUMNS


def test_a_waiting_thread_is_no_offence() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    try:
        assert names(check(honest)) == set()
    finally:
        over.set()


def test_an_identity_may_return_a_view_of_its_input() -> None:
    report = check(lambda x, w: x.view_as(x), reference=lambda x, w: x.double())
    assert (report.check, names(report)) == ("PASS", set())


def test_content_whose_order_means_something_is_left_in_order() -> None:
    def sorted_rows() -> tuple[Tensor, Tensor]:
        return torch.randn(ROWS, COLUMNS).sort().values, torch.randn(COLUMNS)

    def median(x: Tensor, w: Tensor) -> Tensor:
        return x[:, COLUMNS // 2] + 3

    report = check(
        median,
        inputs=sorted_rows,
        reference=lambda x, w: x.double().sort().values[:, COLUMNS // 2] + 3,
    )
    assert (report.check, names(report)) == ("PASS", set())


def test_lists_of_tensors_are_inputs_as_well() -> None:
    def grouped(xs: list[Tensor], w: Tensor) -> Tensor:
        return torch.stack([x @ w for x in xs])

    changes: dict[str, Any] = {
        "inputs": lambda: ([torch.randn(COLUMNS) for _ in range(3)], torch.randn(COLUMNS)),
        "reference": lambda xs, w: torch.stack([x.double() @ w.double() for x in xs]),
    }
    report = check(grouped, **changes)
    assert (report.check, names(report)) == ("PASS", set())

    def zeroing(xs: list[Tensor], w: Tensor) -> Tensor:
        out = grouped(xs, w)
        xs[1].zero_()
        return out

    report = check(zeroing, **changes)
    assert (report.check, names(report)) == ("FAIL", set())
    assert [found.check for found in report.findings] == ["input-mutated"]


@pytest.mark.long
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_kernel_is_honest(fullgraph: bool) -> None:
    """Its compiled code is what is checked: with `fullgraph` torch refuses to run any other."""
    compiled = torch.compile(honest, dynamic=False, fullgraph=fullgraph)
    report = check(compiled)
    assert (report.check, names(report)) == ("PASS", set())
