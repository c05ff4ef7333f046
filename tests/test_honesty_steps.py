"""The steps of a check: what each kind of dishonesty is called."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.running import checking
from pytest_kopt.cases.running.steps import contents
from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.gates import Gate, snr, tolerance
from tests.checked import COLUMNS, ROWS, check, honest, inputs, names
from tests.waiting import until


def scaled(x: Tensor, w: Tensor) -> Tensor:
    return x / x.float().square().mean(-1, keepdim=True).sqrt().to(x.dtype) * w


def scaled_in_parts(x: Tensor, w: Tensor) -> Tensor:
    squares = torch.stack([part.float().square().sum(-1) for part in x.split(16, -1)]).sum(0)
    return x * (squares[:, None] / COLUMNS).sqrt().reciprocal().to(x.dtype) * w


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_reference_that_the_baseline_equals_bit_for_bit_leaves_room(dtype: torch.dtype) -> None:
    def given() -> tuple[Tensor, Tensor]:
        x, w = inputs()
        return x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()

    same = {"inputs": given, "reference": scaled, "backward": True, "gate": snr(35.0)}
    before = check(scaled, **same)
    assert {found.snr_db for found in (before.evidence.accuracy or {}).values()} == {math.inf}
    report = check(scaled_in_parts, accuracy=before.evidence.accuracy, **same)
    assert (report.check, names(report)) == ("PASS", set())
    assert not any(math.isinf(found.snr_db) for found in (report.evidence.accuracy or {}).values())


def added_up(x: Tensor) -> Tensor:
    """One term after the other, in float32."""
    return torch.from_numpy(x.numpy().ravel().cumsum(dtype="float32"))[-1].clone()


def rounded(x: Tensor) -> Tensor:
    return x.half().float().sum()


def test_a_single_sum_is_held_to_its_accuracy_over_all_contents() -> None:
    """Of one content, one in 20 lay so near zero that honest float32 was a downgrade."""
    case = {
        "inputs": lambda: (torch.randn(64, 1024),),
        "reference": lambda x: x.double().sum(),
        "gate": tolerance(atol=1.0, rtol=1e-2),
        "weights": (),
    }
    before = check(torch.sum, **case).evidence.accuracy
    seeds = range(1, 13)
    found = {
        kernel: [names(check(kernel, accuracy=before, seed=seed, **case)) for seed in seeds]
        for kernel in (added_up, rounded)
    }
    assert found[added_up] == [set()] * len(seeds)
    assert sum("precision-downgrade" in each for each in found[rounded]) >= len(seeds) - 2


def memo(key: Callable[..., Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """A kernel that keeps its results under a key of its arguments."""
    table: dict[Any, Any] = {}

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        found = key(x, w)
        if found not in table:
            table[found] = honest(x, w), x, w
        result: Tensor = table[found][0]
        return result.clone()

    return kernel


MEMOS = {
    "identity": lambda x, w: id(x),
    "address": lambda x, w: x.data_ptr(),
    "version": lambda x, w: (x.data_ptr(), x._version),
    "shape": lambda x, w: x.shape,
    "corners": lambda x, w: (float(x[0, 0]), float(x[-1, -1])),
    "sum": lambda x, w: round(float(x.double().sum()), 6),
    "extremes": lambda x, w: (float(x.max()), float(x.min()), float(x[0, 0])),
}


@pytest.mark.parametrize("key", MEMOS)
def test_a_memo_that_serves_one_content_for_another_is_stale(key: str) -> None:
    report = check(memo(MEMOS[key]))
    assert "stale-result" in {found.check for found in report.findings} and report.check == "FAIL"
    # Where only a few elements changed, a kernel without any memory may not have read these.
    assert names(report) == (set() if key in ("corners", "sum", "extremes") else {"stale-result"})


#: A case whose weight has room for a change of a few elements.
WIDE: dict[str, Any] = {
    "inputs": lambda: (torch.randn(4, 64), torch.randn(64, 64)),
    "reference": lambda x, w: x.double() @ w.double(),
}


@pytest.mark.parametrize(
    ("key", "passes"),
    [
        (lambda w: tuple(w.flatten()[::47].tolist()), False),
        (lambda w: (w.data_ptr(), w.shape), False),
        (lambda w: (id(w), w._version), True),
    ],
    ids=["samples", "address", "version"],
)
def test_a_kept_weight_has_to_follow_an_update_of_a_few_elements(
    key: Callable[[Tensor], object], passes: bool
) -> None:
    kept: dict[object, Tensor] = {}

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        found = key(w)
        if found not in kept:
            kept[found] = w.t().contiguous()
        return x @ kept[found].t()

    assert (check(kernel, **WIDE).check == "PASS") == passes


def test_a_weight_whose_order_means_something_may_be_read_in_part() -> None:
    """Both halves of a table of angles are equal: an honest kernel reads one."""

    def table() -> tuple[Tensor, Tensor]:
        half = torch.randn(64, 32)
        return torch.randn(64, 64), torch.cat([half, half], -1)

    def sorted_table() -> tuple[Tensor, Tensor]:
        return torch.rand(4, 64), torch.rand(4096).sort().values

    def half_read(x: Tensor, w: Tensor) -> Tensor:
        return x * torch.cat([w[:, :32], w[:, :32]], -1)

    def looked_up(x: Tensor, w: Tensor) -> Tensor:
        return torch.searchsorted(w, x)

    def counted(x: Tensor, w: Tensor) -> Tensor:
        return (w[None, None] < x[..., None]).sum(-1)

    case: dict[str, Any] = {"inputs": table, "reference": lambda x, w: x.double() * w.double()}
    assert check(half_read, **case).check == "PASS"
    case = {"inputs": sorted_table, "reference": counted}
    assert check(looked_up, **case).check == "PASS"


def test_a_kernel_that_reads_half_of_its_input_is_wrong_and_no_cheat() -> None:
    def half(x: Tensor, w: Tensor) -> Tensor:
        return honest(torch.cat([x[: len(x) // 2]] * 2), w)

    report = check(half)
    assert report.check == "FAIL" and not names(report)


@pytest.mark.parametrize("wrong", ["always", "at random", "in a scratch that is never reset"])
def test_an_honest_mistake_is_only_wrong(wrong: str) -> None:
    calls, scratch = itertools.count(), torch.zeros(ROWS, COLUMNS)

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        number = next(calls)
        if wrong == "at random":
            return honest(x, w) * (1 + number * 7919 % 31 % 2)
        if wrong == "always":
            return honest(x, w) * (2 if number else 1)
        return scratch.add_(x * w).tanh()

    report = check(kernel)
    assert report.check == "FAIL"
    assert names(report) == set()


@pytest.mark.parametrize("busy_from", [1, 20, None])
def test_a_process_that_rests_while_calls_are_judged_is_not_watched_again(
    busy_from: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that computes on shows there, from whatever call on."""
    calls, looks, began = itertools.count(1), itertools.count(), [math.inf]
    genuine = contents._busy_share

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        if next(calls) == busy_from:
            began[0] = time.perf_counter()
        return honest(x, w)

    # As a thread has it that uses all of a core; what other tests left here is not the kernel's.
    spent = lambda: max(0.0, time.perf_counter() - began[0])  # noqa: E731
    monkeypatch.setattr(checking, "seconds_of_others", spent)
    monkeypatch.setattr(contents, "seconds_of_others", spent)
    monkeypatch.setattr(contents, "children", frozenset)
    monkeypatch.setattr(checking, "_JUDGING_SECONDS", 0.0)
    monkeypatch.setattr(contents, "_busy_share", lambda: (next(looks), genuine())[1])
    assert names(check(kernel)) == ({"background-work"} if busy_from else set())
    assert bool(next(looks)) is bool(busy_from)


@pytest.mark.parametrize("after", [1, 3, 8])
def test_a_kernel_that_rests_after_some_calls_is_found(after: int) -> None:
    count = itertools.count()
    kept: list[Tensor] = []

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        if next(count) < after:
            kept[:] = [honest(x, w)]
        return kept[0].clone()

    report = check(kernel)
    assert report.check == "FAIL" or names(report)


def test_memory_that_is_never_written_is_named() -> None:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        out = torch.empty(ROWS, COLUMNS)
        out[:3] = honest(x[:3], w)
        if not torch.are_deterministic_algorithms_enabled():
            out[3:] = 0.5  # what lay there before
        return out

    report = check(kernel)
    assert report.check == "FAIL"
    assert "unwritten-output" in {found.check for found in report.findings}


def test_a_thread_that_never_rests_is_background_work() -> None:
    over = threading.Event()

    def churn() -> None:
        block = torch.rand(256, 256)
        while not over.is_set():
            block = (block @ block).clamp_(0, 1)

    thread = threading.Thread(target=churn, daemon=True)
    thread.start()
    try:
        # On a crowded machine it may get no core for the length of a look.
        until(lambda: names(check(honest)) == {"background-work"})
    finally:
        over.set()
        thread.join()


def test_threads_that_a_call_leaves_behind_are_to_be_put_back() -> None:
    """A pool that sets them when it starts, as numba's does, is no offence."""
    before = torch.get_num_threads()
    calls = itertools.count()

    def kernel(x: Tensor, w: Tensor, often: bool) -> Tensor:
        if often or next(calls) == 0:
            torch.set_num_threads(before + 1)
        return honest(x, w)

    try:
        once = check(lambda x, w: kernel(x, w, False))
        report = check(lambda x, w: kernel(x, w, True))
    finally:
        torch.set_num_threads(before)
    assert (once.check, once.findings) == ("PASS", [])
    (found,) = report.findings
    assert (report.check, found.check, found.rejects) == ("FAIL", "switch-left", False)
    assert f"get_num_threads was {before}, is {before + 1}" in str(found)


class Lazy(torch.Tensor):
    """A subclass that holds its values all the same."""


def test_only_plain_tensors_are_results() -> None:
    report = check(lambda x, w: honest(x, w).as_subclass(Lazy))
    assert report.check == "FAIL"
    assert [(found.check, found.rejects) for found in report.findings] == [("output-type", False)]


def test_a_result_with_methods_of_its_own_is_no_plain_tensor() -> None:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        out = honest(x, w)
        out.double = lambda: out  # type: ignore[method-assign]
        return out

    report = check(kernel)
    assert report.check == "FAIL" and "output-type" in {found.check for found in report.findings}


def test_a_reference_made_of_the_kernel_in_higher_precision_is_a_reference() -> None:
    report = check(honest, reference=lambda x, w: honest(x.double(), w.double()))
    assert (report.check, names(report)) == ("PASS", set())


def test_a_gradient_kept_for_its_address_is_stale() -> None:
    kept: dict[int, Any] = {}

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, w = ctx.saved_tensors
            if grad.data_ptr() not in kept:
                kept[grad.data_ptr()] = grad * w, (grad * x).sum(0)
            return tuple(found.clone() for found in kept[grad.data_ptr()])

    def with_grad() -> tuple[Tensor, Tensor]:
        x, w = inputs()
        return x.requires_grad_(), w.requires_grad_()

    report = check(
        Scaled.apply,
        inputs=with_grad,
        reference=lambda x, w: x.double() * w.double(),
        backward=True,
    )
    assert names(report) == {"stale-result"}


@pytest.mark.parametrize(
    ("gate", "passing"),
    [(tolerance(rtol=0.1, atol=2.0), "zeros"), (snr(-20.0), "zeros")],
)
def test_a_case_that_takes_anything_for_right_is_an_error(gate: Gate, passing: str) -> None:
    """Its baseline has said so of a case in a round."""
    report = check(honest, gate=gate, first=True)
    assert report.check == "ERROR"
    assert passing in report.diagnosis and "accepts wrong answers" in report.diagnosis
    assert check(honest, gate=gate).check == "PASS"


def test_a_case_whose_answer_is_zero_can_be_a_case() -> None:
    report = check(
        lambda x, w: x * 0, reference=lambda x, w: torch.zeros_like(x).double(), first=True
    )
    assert report.check == "PASS"


class Shifted(torch.autograd.Function):
    """The logarithm of a softmax after a bias that is the same for a row, and so has no effect."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.log_softmax(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        found = grad - x.softmax(-1) * grad.sum(-1, keepdim=True)
        return found, found.sum(-1)


def test_every_result_and_gradient_tells_right_from_wrong() -> None:
    def with_grad() -> tuple[Tensor, Tensor]:
        return torch.randn(ROWS, COLUMNS, requires_grad=True), torch.randn(COLUMNS)

    def reference(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x.double().tanh(), x.double().square().mean(-1) * 1e-6

    report = check(lambda x, w: (x.tanh(), x.new_zeros(ROWS)), reference=reference, first=True)
    assert report.check == "FAIL" and report.diagnosis.startswith("out[1]: outside the tolerance")

    def steep(x: Tensor, w: Tensor) -> Tensor:
        return (x * 1e-6 + (x * (1 - 1e-6)).detach()).tanh()

    changes: dict[str, Any] = {"inputs": with_grad, "backward": True, "first": True}
    changes["reference"] = lambda x, w: steep(x.double(), w)
    report = check(steep, **changes)
    assert report.check == "PASS" and [*report.case.derived_gates] == ["grad of input 0"]
    report = check(lambda x, w: steep(x, w).detach() + 0 * x, **changes)
    assert report.check == "FAIL" and report.diagnosis.startswith("grad of input 0: outside")


def test_a_gradient_that_is_zero_but_for_rounding_can_be_a_gradient() -> None:
    def with_grad() -> tuple[Tensor, Tensor]:
        return torch.randn(ROWS, COLUMNS, requires_grad=True), torch.randn(ROWS, requires_grad=True)

    report = check(
        Shifted.apply,
        inputs=with_grad,
        reference=lambda x, w: (x.double() + w.double()[:, None]).log_softmax(-1),
        backward=True,
        first=True,
    )
    assert report.check == "PASS", report.diagnosis


def test_a_result_that_is_one_number_is_a_mistake_and_no_cache() -> None:
    report = check(
        lambda x, w: (x.tanh(), x.new_zeros(ROWS)),
        reference=lambda x, w: (x.double().tanh(), x.double().square().mean(-1) * 1e-6),
    )
    assert report.check == "FAIL" and not names(report)
    assert [found.check for found in report.findings] == ["constant-result"]


def test_a_result_nearer_the_truth_than_a_reference_in_float32_is_right() -> None:
    """A variance whose reference cancels; with a mean of 100 it errs by more than 1e-4."""
    changes: dict[str, Any] = {
        "inputs": lambda: (100.0 + torch.randn(ROWS, 512), torch.randn(1)),
        "reference": lambda x, w: x.square().mean(-1) - x.mean(-1).square(),
    }
    report = check(lambda x, w: (x - x.mean(-1, keepdim=True)).square().mean(-1), **changes)
    assert report.check == "PASS" and report.evidence.accuracy is not None
    assert report.evidence.accuracy["out"].snr_db > 120, "by the reference in float64"
    assert [found.check for found in report.findings] == ["narrow-reference"]
    report = check(lambda x, w: x.square().mean(-1) - 10000.0, **changes)
    assert report.check == "FAIL" and "inf dB" not in report.diagnosis
    report = check(changes["reference"], first=True, **changes)
    assert report.check == "PASS"
    assert [found.check for found in report.findings] == ["narrow-reference"]


_COUNT = itertools.count(1)


@pytest.mark.parametrize("draws", [torch.rand_like, lambda x: x * next(_COUNT)])
def test_a_reference_that_draws_or_counts_is_called_that(draws: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(BadInput, match=r"the reference gives different results .* keeps state"):
        check(honest, reference=lambda x, w: honest(x, w).double() + draws(x))
