"""The steps of a check: what each kind of dishonesty is called, and what honest kernels may do."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import mmap
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.running import checking
from pytest_kopt.cases.running.check import check_case
from pytest_kopt.cases.running.course import Course
from pytest_kopt.cases.running.steps import aftermath
from pytest_kopt.honesty import outputs
from pytest_kopt.honesty.memory import guarded
from pytest_kopt.numerics.gates import Gate, snr, tolerance
from tests.builders import a_bench

ROWS, COLUMNS = 24, 64


def reference(x: Tensor, w: Tensor) -> Tensor:
    return (x.double() * w.double()).tanh()


def honest(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).tanh()


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)


def case_of(function: Callable[..., Any], **changes: Any) -> Case:
    given: dict[str, Any] = {
        "inputs": inputs,
        "reference": reference,
        "dims": {"rows": ROWS, "columns": COLUMNS},
        "label": None,
        "backward": False,
        "weights": (1,),
        "flops": None,
        "nbytes": 8 * ROWS * COLUMNS,
        "gate": None,
    }
    return declare("tests/test_it.py::test_it", "memory", function, **(given | changes))


def check(function: Callable[..., Any], **changes: Any) -> Course:
    asked = {name: changes.pop(name) for name in ("freezes", "accuracy") if name in changes}
    case = case_of(function, **changes)
    return check_case(case, a_bench(case, **asked))


def names(report: Course) -> set[str]:
    return {found.check for found in report.findings if found.rejects}


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
    assert names(report) == {"stale-result"}


@pytest.mark.parametrize("place", [0, 1], ids=["activation", "weight"])
def test_what_is_kept_of_a_tensor_and_not_of_its_content_is_named(place: int) -> None:
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def kernel(*given: Tensor) -> Tensor:
        seen, now = kept.setdefault(id(given[place]), (given[place], given[place].clone()))
        assert seen is given[place]
        return (now * given[1 - place]).tanh()

    assert names(check(kernel)) == {"remembered-tensor"}


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


def test_a_memo_of_the_whole_content_is_right_but_cached() -> None:
    report = check(memo(lambda x, w: (x.numpy().tobytes(), w.numpy().tobytes())))
    assert names(report) == {"cached-result"}
    assert report.check == "PASS"


def test_a_memo_that_wakes_late_is_cached() -> None:
    held: list[Any] = [torch.zeros(1), None, 0]

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        same = held[0].shape == x.shape and torch.equal(held[0], x)
        held[0], held[2] = x.clone(), held[2] + 1 if same else 0
        if held[2] < 12:
            held[1] = honest(x, w)
        result: Tensor = held[1].clone()
        return result

    assert names(check(kernel)) == {"cached-result"}


def test_comparing_with_the_call_before_is_cached() -> None:
    last: list[Tensor] = []

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        if not last or not torch.equal(last[0], x):
            last[:] = [x.clone(), honest(x, w)]
        return last[1].clone()

    assert names(check(kernel)) == {"cached-result"}


def test_the_first_reader_does_no_work_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that fill themselves when they are touched, as `taken` does it."""
    waiting: set[int] = set()
    genuine = outputs.taken

    def touch(results: list[Any]) -> list[Any]:
        if results and id(results[0]) in waiting:
            waiting.remove(id(results[0]))
            time.sleep(0.002)
        return genuine(results)

    def call() -> list[Tensor]:
        result = torch.zeros(4)
        waiting.add(id(result))
        return [result]

    assert [*aftermath.read_late(lambda: [honest(*inputs())])] == []
    monkeypatch.setattr(aftermath, "taken", touch)
    (finding,) = aftermath.read_late(call)
    assert finding.check == "late-result" and "for the first time" in finding.message


@pytest.mark.parametrize("busy_from", [1, 20, None])
def test_a_process_that_rests_while_calls_are_judged_is_not_watched_again(
    busy_from: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that computes on shows there, from whatever call on."""
    calls, looks, began = itertools.count(1), itertools.count(), [math.inf]
    genuine = aftermath._busy_share

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        if next(calls) == busy_from:
            began[0] = time.perf_counter()
        return honest(x, w)

    # As a thread has it that uses all of a core; what other tests left here is not the kernel's.
    spent = lambda: max(0.0, time.perf_counter() - began[0])  # noqa: E731
    monkeypatch.setattr(checking, "seconds_of_others", spent)
    monkeypatch.setattr(aftermath, "seconds_of_others", spent)
    monkeypatch.setattr(aftermath, "children", frozenset)
    monkeypatch.setattr(checking, "_JUDGING_SECONDS", 0.0)
    monkeypatch.setattr(aftermath, "_busy_share", lambda: (next(looks), genuine())[1])
    assert names(check(kernel)) == ({"background-work"} if busy_from else set())
    assert bool(next(looks)) is bool(busy_from)


@pytest.mark.parametrize("many", [1, 3, 64])
def test_a_ring_of_buffers_is_handed_out_again_while_it_is_in_use(many: int) -> None:
    ring = itertools.cycle([torch.empty(ROWS, COLUMNS) for _ in range(many)])
    report = check(lambda x, w: torch.tanh(x * w, out=next(ring)))
    assert names(report) == {"output-shared"}


def test_a_pool_asks_for_the_memory_and_not_for_the_object() -> None:
    """A view that a caller kept is use as well: of the object nothing is left then."""
    pool = [torch.empty(ROWS, COLUMNS) for _ in range(8)]

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        free = (buffer for buffer in pool if sys.getrefcount(buffer) <= 3)
        return torch.tanh(x * w, out=next(free, torch.empty(ROWS, COLUMNS)))

    assert names(check(kernel)) == {"output-shared"}

    def counting(x: Tensor, w: Tensor) -> Tensor:
        for buffer in pool:
            storage = buffer.untyped_storage()
            if torch._C._storage_Use_Count(storage._cdata) <= 2:
                return torch.tanh(x * w, out=buffer.view(ROWS, COLUMNS))
        return honest(x, w)

    assert names(check(counting)) == set()


LIES = {
    "copied": lambda x: x.clone(),
    "padded": lambda x: torch.nn.functional.pad(x, (0, 8))[:, :-8],
    "turned": lambda x: x.t().contiguous().t(),
    "a view": lambda x: x.view_as(x),
    "a lazy copy": torch._lazy_clone,
}


@pytest.mark.parametrize(
    ("baseline", "how", "check_named", "said"),
    [
        ("copied", "padded", "PASS", set()),
        ("copied", "turned", "PASS", {"output-order"}),
        ("turned", "copied", "PASS", set()),
        ("copied", "a view", "FAIL", {"output-layout"}),
        ("copied", "a lazy copy", "FAIL", {"output-layout"}),
        ("a view", "a lazy copy", "PASS", set()),
        ("a view", "turned", "PASS", set()),
    ],
)
def test_a_result_lies_in_memory_of_its_own_where_the_baselines_does(
    baseline: str, how: str, check_named: str, said: set[str]
) -> None:
    same = {"inputs": lambda: (torch.randn(ROWS, COLUMNS),), "reference": lambda x: x.double()}
    same["weights"] = ()  # type: ignore[assignment]
    before = check(LIES[baseline], **same)
    report = check(LIES[how], accuracy=before.evidence.accuracy, **same)
    assert (report.check, {found.check for found in report.findings}) == (check_named, said)
    assert not names(report)


@pytest.mark.parametrize(
    ("plain", "saving"),
    [
        (lambda x: x.mean(0).expand_as(x).clone(), lambda x: x.mean(0).expand_as(x)),
        (lambda x: (x + 1).unfold(1, 3, 1).clone(), lambda x: (x + 1).unfold(1, 3, 1)),
        (lambda x: -(x + 1), lambda x: torch._neg_view(x + 1)),
        (lambda x: (x + 1, x + 1), lambda x: (x + 1,) * 2),
    ],
    ids=["expanded", "overlapping", "negated lazily", "one for two"],
)
def test_what_saves_memory_of_its_own_is_no_result_of_its_own(
    plain: Callable[..., Any], saving: Callable[..., Any]
) -> None:
    same: dict[str, Any] = {
        "inputs": lambda: (torch.randn(ROWS, COLUMNS),),
        "reference": lambda x: plain(x.double()),
        "weights": (),
    }
    before = check(plain, **same)
    report = check(saving, accuracy=before.evidence.accuracy, **same)
    assert [found.check for found in report.findings] == ["output-layout"]


@pytest.mark.parametrize(
    ("declared", "found"), [({"consumes": (0,)}, []), ({"writes": (0,)}, ["output-layout"])]
)
def test_a_result_may_lie_in_what_is_consumed_and_not_in_what_is_written(
    declared: dict[str, Any], found: list[str]
) -> None:
    def plain(x: Tensor) -> Tensor:
        return x.mul_(2).clone()

    same: dict[str, Any] = {
        "inputs": lambda: (torch.randn(ROWS, COLUMNS),),
        "reference": lambda x: x.double().mul(2) if "consumes" in declared else plain(x),
        "weights": (),
        **declared,
    }
    before = check(plain, **same)
    assert (before.check, before.findings) == ("PASS", [])
    report = check(lambda x: x.mul_(2).view_as(x), accuracy=before.evidence.accuracy, **same)
    assert [item.check for item in report.findings] == found


def test_parts_of_one_buffer_are_results_of_their_own() -> None:
    same: dict[str, Any] = {
        "inputs": lambda: (torch.randn(ROWS, COLUMNS),),
        "reference": lambda x: (x.double() + 1).chunk(2, -1),
        "weights": (),
    }
    before = check(lambda x: [part.clone() for part in (x + 1).chunk(2, -1)], **same)
    report = check(lambda x: (x + 1).chunk(2, -1), accuracy=before.evidence.accuracy, **same)
    assert (report.check, report.findings) == ("PASS", [])


def test_what_a_result_leaves_to_its_reader_is_done_in_a_comparison() -> None:
    x = torch.randn(ROWS, COLUMNS)

    def turned(x: Tensor) -> dict[str, Tensor]:
        return {"out": (x + 1).t(), "norm": x.norm()}

    like = {"out": (x + 1).t().contiguous(), "norm": x.norm()}
    delivered = outputs.in_order(turned, like, turned(x))(x)
    assert delivered["out"].is_contiguous() and torch.equal(delivered["out"], like["out"])
    assert outputs.in_order(turned, turned(x), turned(x)) is turned


def test_a_kernel_may_keep_its_last_result() -> None:
    last: list[Tensor] = []

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        last[:] = [honest(x, w)]
        return last[0]

    assert names(check(kernel)) == set()


@pytest.mark.parametrize(("a_cycle", "calls"), [(True, 1), (False, 5)])
def test_what_only_a_cycle_keeps_is_nobodys(
    a_cycle: bool, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's interpreter leaves results so; nobody holds a thousand of them to find a ring."""
    monkeypatch.setattr(outputs, "_HELD_CALLS", 4)
    kept: list[Any] = []
    made: list[None] = []

    def call() -> list[Tensor]:
        made.append(None)
        result = torch.zeros(4)
        keeper: list[Any] = [result]
        (keeper if a_cycle else kept).append(keeper)
        return [result]

    assert outputs.recycled(call, ()) == []
    assert len(made) == calls


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


def test_a_kernel_that_writes_to_its_input_is_named() -> None:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        out = honest(x, w)
        x.zero_()
        return out

    report = check(kernel)
    assert (report.check, names(report)) == ("FAIL", set())
    assert [found.check for found in report.findings] == ["input-mutated"]


@pytest.mark.parametrize("how", ["data", "set_"])
def test_a_buffer_is_written_to_and_not_exchanged(how: str) -> None:
    def kernel(x: Tensor, out: Tensor) -> None:
        made = x * 2
        if how == "data":
            out.data = made
        else:
            out.set_(made)  # type: ignore[call-overload]

    def doubled(x: Tensor, out: Tensor) -> None:
        out.copy_(x * 2)

    same: dict[str, Any] = {
        "inputs": lambda: (torch.randn(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS)),
        "reference": doubled,
        "weights": (),
    }
    assert check(doubled, **same).check == "PASS"
    report = check(kernel, **same)
    assert (report.check, names(report)) == ("FAIL", set())
    assert [found.check for found in report.findings] == ["input-moved"]


def test_an_operation_that_changes_its_input_by_contract_may() -> None:
    def doubled(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return x * w

    report = check(doubled, reference=lambda x, w: x.mul_(2).double() * w.double())
    assert (report.check, names(report)) == ("PASS", set())


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


def test_a_result_that_a_thread_brings_later_is_late() -> None:
    warm: list[bool] = []

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        out = torch.zeros(ROWS, COLUMNS)

        def work() -> None:
            time.sleep(0.01)
            out.copy_(honest(x, w))

        thread = threading.Thread(target=work)
        thread.start()
        if not warm:
            thread.join()
        warm.append(True)
        return out

    assert "late-result" in names(check(kernel))


def test_a_thread_that_never_rests_is_background_work() -> None:
    over = threading.Event()

    def churn() -> None:
        block = torch.rand(256, 256)
        while not over.is_set():
            block = (block @ block).clamp_(0, 1)

    thread = threading.Thread(target=churn, daemon=True)
    thread.start()
    try:
        assert names(check(honest)) == {"background-work"}
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("raises", [False, True])
def test_a_profiler_that_a_call_leaves_on_is_to_be_stopped(raises: bool) -> None:
    """Also where that makes the next call raise, which alone would say nothing of it."""
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    calls = itertools.count()

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        if next(calls) == 0:
            profiler.start()
        elif raises:
            raise RuntimeError("a profiler runs already")
        return honest(x, w)

    try:
        report = check(kernel)
    finally:
        profiler.stop()
    (found,) = report.findings
    assert (report.check, found.check, found.rejects) == ("FAIL", "profiler-left", False)


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
    assert (report.check, found.check, found.rejects) == ("FAIL", "threads-left", False)
    assert f"torch.set_num_threads({before})" in str(found)


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


def test_the_reference_is_not_the_kernels_to_call() -> None:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        return reference(x, w).float()

    assert names(check(kernel)) == {"reference-called"}


@pytest.mark.parametrize(
    ("text", "found"), [("x * w", {"reference-called"}), ("(x * w).sum()", set())]
)
def test_a_loss_from_shared_code_may_have_the_references_bits(text: str, found: set[str]) -> None:
    """A baseline and its reference may share a helper; a single number agrees by chance."""
    shared: dict[str, Any] = {}
    exec(compile(f"def made(x, w): return {text}", "helpers.py", "exec"), shared)
    made = shared["made"]
    report = check(
        lambda x, w: made(x.double(), w.double()).float(),
        reference=lambda x, w: made(x.double(), w.double()),
    )
    assert names(report) == found


def test_a_reference_made_of_the_kernel_in_higher_precision_is_a_reference() -> None:
    report = check(honest, reference=lambda x, w: honest(x.double(), w.double()))
    assert (report.check, names(report)) == ("PASS", set())


def test_numbers_in_the_frames_above_are_not_the_kernels() -> None:
    import inspect

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        frame = inspect.currentframe()
        while frame is not None:
            for value in list(frame.f_locals.values()):
                if type(value) is list and value and all(type(v) is float for v in value):
                    value[:] = [v / 10 for v in value]
            frame = frame.f_back
        return honest(x, w)

    assert "samples-edited" in names(check(kernel))


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


# --- honest ways ---------------------------------------------------------------------------------


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


# --- the case itself -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gate", "passing"),
    [(tolerance(rtol=0.1, atol=2.0), "zeros"), (snr(-20.0), "zeros")],
)
def test_a_case_that_takes_anything_for_right_is_an_error(gate: Gate, passing: str) -> None:
    report = check(honest, gate=gate, freezes=True)
    assert report.check == "ERROR"
    assert passing in report.diagnosis and "accepts wrong answers" in report.diagnosis
    assert check(honest, gate=gate).check == "PASS"


def test_a_case_whose_answer_is_zero_can_be_a_case() -> None:
    report = check(
        lambda x, w: x * 0, reference=lambda x, w: torch.zeros_like(x).double(), freezes=True
    )
    assert report.check == "PASS"


def test_memory_that_was_protected_to_see_who_writes_there_is_found() -> None:
    """Whoever protects an input's pages knows old content without a look at it."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    x = torch.ones(page)
    start = -(-x.data_ptr() // page) * page

    def protect(how: int) -> None:
        assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(3 * page), how) == 0

    assert not guarded([x, torch.empty(0)])
    protect(1)
    try:
        assert guarded([x])
    finally:
        protect(3)
    assert not guarded([x]) and bool((x == 1).all())
