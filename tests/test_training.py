"""The simulated training loop tells caches by what they do to the work of a call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.evidence import Training
from pytest_kopt.cases.order import Bench
from pytest_kopt.cases.running import training_loop
from pytest_kopt.cases.running.check import CheckedCase
from pytest_kopt.cases.running.execution import grad_out
from pytest_kopt.cases.running.training_loop import caches
from pytest_kopt.honesty.transfer import Trace
from pytest_kopt.honesty.work import Work, saves

USUAL_DB = 120.0


def case_of(function: Callable[..., Any], *, backward: bool = False, size: int = 12) -> Case:
    """A product of an activation and a parameter."""
    return declare(
        "tests/test_x.py::test_product",
        "memory",
        function,
        inputs=lambda: tuple(
            torch.randn(size, size, dtype=torch.float32).requires_grad_(backward) for _ in range(2)
        ),
        reference=lambda a, w: a.double() @ w.double(),
        dims={"n": size},
        backward=backward,
        weights=(1,),
        nbytes=1,
    )


def trained(case: Case, seed: int, usual_db: float) -> CheckedCase:
    course = CheckedCase(case, Bench("cpu", "auto", seed), "PASS", figures={"out_snr": usual_db})
    course.findings += caches(course)
    return course


def rehearsed(
    function: Callable[..., Any], *, backward: bool = False, seed: int = 7
) -> CheckedCase:
    return trained(case_of(function, backward=backward), seed, USUAL_DB)


def training(found: CheckedCase) -> Training:
    assert found.evidence.training is not None
    return found.evidence.training


def checks(found: CheckedCase) -> list[str]:
    return [finding.check for finding in found.findings]


def trace_of(found: CheckedCase) -> Trace:
    trace = training(found).trace
    assert trace is not None
    return trace


# Honest kernels.


def plain(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return a @ w


class Scratch:
    """Reuses a buffer by shape, and makes a new one at every third call."""

    def __init__(self) -> None:
        self.calls = 0
        self.buffer: torch.Tensor | None = None

    def __call__(self, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.buffer is None or self.calls % 3 == 0:
            self.buffer = torch.zeros(a.shape[0], w.shape[1])
        return torch.mm(a, w, out=self.buffer).clone()


def by_content(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Takes another way where the data says so."""
    return (w.t() @ a.t()).t().contiguous() if a[0, 0] > 0 else a @ w


def by_row(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Does work that is as much as the data says, as for groups that may be empty."""
    rows = (row.unsqueeze(0) for row in a)
    return torch.cat([row.mul(0.5).mul(2.0) @ w if row[0, 0] > 0 else row @ w for row in rows])


class Tuned:
    """Tries two ways at the first call of a shape and keeps one."""

    def __init__(self) -> None:
        self.best: dict[torch.Size, bool] = {}

    def __call__(self, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if a.shape not in self.best:
            self.best[a.shape] = bool(torch.allclose(a @ w, (w.t() @ a.t()).t(), atol=1e-3))
        return a @ w


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, w)
        return a @ w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, w = ctx.saved_tensors
        return grad @ w.t(), a.t() @ grad


@pytest.mark.parametrize(
    ("make", "backward"),
    [
        (lambda: plain, False),
        (lambda: plain, True),
        (Scratch, False),
        (lambda: by_content, False),
        (lambda: by_row, False),
        (lambda: by_row, True),
        (Tuned, False),
        (lambda: Linear.apply, True),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_honest_kernels_raise_nothing(
    make: Callable[[], Callable[..., Any]], backward: bool, seed: int
) -> None:
    assert rehearsed(make(), backward=backward, seed=seed).findings == []


@pytest.fixture
def suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the probe suspect whatever it looks at, so that the loop runs."""
    monkeypatch.setattr(training_loop.Loop, "probe", lambda loop, seeds: True)


@pytest.mark.parametrize(("cache", "runs"), [("", False), ("kept[id(a)] = 1", True)])
def test_the_loop_runs_where_the_audit_notes_a_cache(
    cache: str, runs: bool, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(f"kept = {{}}\ndef plain(a, w):\n    {cache or 'pass'}\n    return a @ w\n")
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), path, "exec"), space)
    assert (training(rehearsed(space["plain"])).trace is not None) == runs


def test_the_loop_finds_nothing_in_a_kernel_without_a_cache(suspicious: None) -> None:
    found = rehearsed(plain)
    assert trace_of(found).cached == ()
    assert found.findings == []


# Weight caches.


class Packed:
    """Keeps the weight's transpose while `same` says that the weight is the same."""

    def __init__(self, same: Callable[[torch.Tensor], object]) -> None:
        self.same = same
        self.key: object = None
        self.copy = torch.empty(0)

    def __call__(self, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if self.key is None or self.key != self.same(w):
            self.key = self.same(w)
            self.copy = w.detach().t().contiguous()
        return torch.nn.functional.linear(a, self.copy)


def test_a_weight_cache_that_follows_its_version_is_a_note() -> None:
    found = rehearsed(Packed(lambda w: (id(w), w._version)))
    (finding,) = found.findings
    assert (finding.check, finding.rejects) == ("weight-cache", False)
    trace = trace_of(found)
    assert trace.rates == {"weight": 0.5}
    assert len(trace.steps) == 4
    assert all(step["weight"] == (1, 2) for step in trace.steps)
    assert all(step["activation"] == (0, 2) for step in trace.steps)


@pytest.mark.parametrize("same", [id, torch.Tensor.data_ptr, lambda w: w.shape])
def test_a_weight_changed_in_place_has_to_miss(same: Callable[[torch.Tensor], object]) -> None:
    found = rehearsed(Packed(same))
    assert checks(found)[0] in ("stale-weight", "training-loop")
    assert found.findings[0].rejects


def test_a_weight_known_by_samples_misses_a_sparse_update() -> None:
    found = rehearsed(Packed(lambda w: w.detach().flatten()[::47].tolist()))
    assert "stale-weight" in checks(found)


def test_a_stale_weight_is_named() -> None:
    assert "stale-weight" in checks(rehearsed(Packed(id)))


# Caches of activations, grad_outs, whole results.


class Memo:
    """Keeps results under a key of the arguments."""

    def __init__(self, key: Callable[..., object]) -> None:
        self.key = key
        self.known: dict[object, torch.Tensor] = {}

    def __call__(self, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        key = self.key(a, w)
        if key not in self.known:
            self.known[key] = a @ w
        return self.known[key].clone()


def content(a: torch.Tensor, w: torch.Tensor) -> tuple[str, str]:
    return str(a[0].tolist()), str(w[0].tolist())


@pytest.mark.parametrize(
    "key",
    [
        content,
        lambda a, w: (a.data_ptr(), a._version, w.data_ptr(), w._version, *content(a, w)),
        lambda a, w: float(a.sum() + w.sum()),
    ],
)
def test_memoised_results_are_refused(key: Callable[..., object]) -> None:
    found = rehearsed(Memo(key))
    assert "activation-cache" in checks(found)
    assert trace_of(found).rates["activation"] == 0.0


class Scales:
    """Remembers one factor for each activation, and computes the rest."""

    def __init__(self) -> None:
        self.known: tuple[Any, torch.Tensor, int] | None = None

    def __call__(self, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if self.known is None or self.known[0]() is not a or self.known[2] != a._version:
            self.known = (weakref.ref(a), a.abs().amax(-1, keepdim=True), a._version)
        scale = self.known[1]
        return (a / scale) @ w * scale


def test_a_scale_cache_is_refused_as_w2() -> None:
    found = rehearsed(Scales())
    (finding,) = found.findings
    assert (finding.check, finding.rejects) == ("activation-cache", True)


def grad_memo() -> Callable[..., Any]:
    known: dict[tuple[float, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    class Cached(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, w)
            return a @ w

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, w = ctx.saved_tensors
            key = (float(grad[0, 0]), float(grad[-1, -1]), float(a[0, 0]))
            if key not in known:
                known[key] = grad @ w.t(), a.t() @ grad
            return known[key]

    return Cached.apply


def test_a_grad_out_cache_is_refused() -> None:
    assert "grad-out-cache" in checks(rehearsed(grad_memo(), backward=True))


class KeptOnTheGraph(torch.autograd.Function):
    """Transposes once for each graph."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, w)
        ctx.transposed = None
        return a @ w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, w = ctx.saved_tensors
        if ctx.transposed is None:
            ctx.transposed = w.t().contiguous()
        return grad @ ctx.transposed, a.t() @ grad


class Transposing(KeptOnTheGraph):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, w = ctx.saved_tensors
        return grad @ w.t().contiguous(), a.t() @ grad


class Flipped(KeptOnTheGraph):
    """Returns a view, and copies an incoming gradient that does not lie as the kernel reads it."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, w)
        return (w.t() @ a.t()).t()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, w = ctx.saved_tensors
        flipped = grad.t().contiguous()
        return (w @ flipped).t(), (flipped @ a).t()


@pytest.mark.parametrize("function", [KeptOnTheGraph, Transposing, Flipped])
def test_what_a_backward_keeps_for_another_one_is_refused(function: Any) -> None:
    """Blocks call one backward many times on its graph, and a training step does not."""
    found = checks(rehearsed(function.apply, backward=True))
    assert found == ["grad-out-cache"] * (function is KeptOnTheGraph)


class Counting:
    """Answers from memory after some calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.last = torch.empty(0)

    def __call__(self, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls < 4:
            self.last = a @ w
        return self.last


def test_a_replay_after_some_calls_is_wrong_in_the_loop() -> None:
    found = rehearsed(Counting())
    assert "training-loop" in checks(found)
    assert "step 1" in str(found.findings[0])


# What cannot be counted, what is only inexact.


def refuses_counting(inner: Callable[..., Any]) -> Callable[..., Any]:
    def function(a: torch.Tensor, w: torch.Tensor) -> Any:
        if torch._C._len_torch_dispatch_stack():
            raise RuntimeError("not under a dispatch mode")
        return inner(a, w)

    return function


def test_what_cannot_be_counted_is_still_held_against_the_reference() -> None:
    honest = rehearsed(refuses_counting(plain))
    assert honest.findings == []
    assert "not under a dispatch mode" in training(honest).uncounted
    assert "stale-weight" in checks(rehearsed(refuses_counting(Packed(id))))


def test_what_a_kernel_raises_in_the_loop_is_passed_on() -> None:
    def function(a: torch.Tensor, w: torch.Tensor) -> Any:
        raise RuntimeError("never works")

    with pytest.raises(RuntimeError, match="never works"):
        rehearsed(function)


def test_an_unlucky_draw_near_the_gate_is_no_cheat(suspicious: None) -> None:
    """Wrong by the gate, but as exact as the kernel always was."""

    def rough(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (a @ w) * 1.01

    case = case_of(rough)
    usual = trained(case, 7, 40.0)
    assert usual.findings == []
    exact = trained(case, 7, USUAL_DB)
    assert "training-loop" in checks(exact)


def test_trading_work_saves_nothing() -> None:
    work = Work(ops=10, launches=2, nbytes=1000, calls=50)
    assert not saves(work, work)
    assert saves(Work(9, 2, 1000, 50), work)
    assert saves(Work(10, 2, 1000, 20), work), "opaque calls that are gone"
    assert not saves(Work(9, 2, 1001, 50), work)
    assert not saves(Work(10, 2, 1000, 40), work)


def test_the_incoming_gradient_is_no_input_of_the_call() -> None:
    """Drawn by the same seed it equalled the first input: a weight's gradient was a constant."""
    drawn = torch.randn(16, 16, generator=torch.Generator().manual_seed(5))
    assert not torch.equal(grad_out(drawn, 5), drawn)
    assert torch.equal(grad_out(drawn, 5), grad_out(drawn, 5))
