"""The engines on a real device: kernels that allocate, use streams, cannot be captured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.order import Bench
from pytest_kopt.cases.running.spot_checks import wrong_results
from pytest_kopt.cases.running.timed_calls import Content, RepeatedBackward, input_set
from pytest_kopt.cases.running.timing import gpu_pool, prepare_blocks
from pytest_kopt.measure.choice import prepare
from pytest_kopt.measure.cold import input_pool, launch_stream
from pytest_kopt.measure.engine import CaptureFailed
from pytest_kopt.measure.gpu import EventsBlock, GraphBlock, GraphMemory

pytestmark = pytest.mark.gpu


def randn(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=grad)


class Kept:
    """A call whose last result stays."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result: Any = None

    def __call__(self) -> Any:
        self.result = self.call()
        return self.result


def kernel_ms(call: Callable[[], object], times: int = 20) -> float:
    """Return what the profiler says a call's kernels last, in ms."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    on_device = [e for e in found.events() if e.device_type.name == "CUDA"]
    total: float = sum(e.time_range.elapsed_us() for e in on_device)
    return total / times / 1e3


def test_graph_and_events_agree_with_the_profiler() -> None:
    a, b = randn(2048, 2048), randn(2048, 2048)
    call = lambda: a @ b  # noqa: E731
    truth = kernel_ms(call)
    assert GraphBlock([call]).run() == pytest.approx(truth, rel=0.1)
    assert EventsBlock([call]).run() == pytest.approx(truth, rel=0.1)


def test_a_launch_bound_call_is_timed_by_what_the_device_does() -> None:
    """Ten tiny kernels a call: the launcher needs several times what the device does."""
    x = randn(64)

    def call() -> torch.Tensor:
        out = x
        for _ in range(10):
            out = out + 1
        return out

    graph = GraphBlock([call]).run()
    block = EventsBlock([call])
    assert block.run() < 3 * graph and block.queue_full
    assert graph < 0.05


def test_a_kernel_that_allocates_inside_the_capture() -> None:
    """And whose results stay apart: every call's output is what eager mode returns."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x * 2]).sort().values

    inputs = [randn(1 << 16) for _ in range(3)]
    calls = [Kept(functools.partial(doubled, x)) for x in inputs]
    GraphBlock(calls).run()
    for x, call in zip(inputs, calls, strict=True):
        assert torch.equal(call.result, doubled(x))


def test_results_of_two_versions_take_turns_with_the_same_memory() -> None:
    """What either gave is there until the other runs."""
    inputs = [randn(1 << 20) for _ in range(3)]
    memory = GraphMemory()
    versions: tuple[Callable[..., Any], ...] = (lambda x: {"y": x + 1}, lambda x: {"y": x * 1})
    blocks, places, held = [], [], torch.cuda.memory_allocated()
    for version in versions:
        calls = [Kept(functools.partial(version, x)) for x in inputs]
        memory.lay_out([call.call for call in calls], None)
        block = GraphBlock(calls, None, memory)
        for call, view in zip(calls, memory.let_go([c.result for c in calls]), strict=True):
            call.result = view
        blocks.append((block, calls))
        places.append([call.result["y"].data_ptr() for call in calls])
    assert places[0] == places[1]
    assert torch.cuda.memory_allocated() < held + inputs[0].nbytes, "nothing is kept"
    for more, (block, calls) in ((1, blocks[0]), (0, blocks[1]), (1, blocks[0])):
        block.run()
        for x, call in zip(inputs, calls, strict=True):
            torch.testing.assert_close(call.result["y"], x + more)


def test_a_buffer_that_a_kernel_keeps_is_not_given_to_others() -> None:
    x, memory, own = randn(1 << 10), GraphMemory(), randn(1 << 10)
    calls = [Kept(lambda: torch.add(x, 1, out=own)), Kept(lambda: own * 2)]
    block = GraphBlock(calls, None, memory)
    buffer, doubled = memory.let_go([call.result for call in calls])
    assert buffer is own and doubled is not calls[1].result
    block.run()
    torch.testing.assert_close(doubled, 2 * (x + 1))


def test_a_kernel_with_streams_of_its_own_that_are_joined() -> None:
    a, side = randn(1024, 1024), torch.cuda.Stream()

    def call() -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            left = a @ a
        right = a + 1
        torch.cuda.current_stream().wait_stream(side)
        return left + right

    kept = Kept(call)
    GraphBlock([kept]).run()
    torch.testing.assert_close(kept.result, a @ a + a + 1)


def test_a_stream_that_is_not_joined_cannot_be_captured() -> None:
    a, side = randn(256, 256), torch.cuda.Stream()

    def call() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a @ a

    with pytest.raises(CaptureFailed):
        GraphBlock([call])


def test_a_call_that_synchronises_falls_to_events_and_leaves_the_device_usable() -> None:
    x = randn(1 << 20)

    def call() -> float:
        return float(x.sum().item())

    block = prepare("auto", "cuda", False, [call])
    assert block.engine == "events" and block.run() > 0
    with pytest.raises(CaptureFailed):
        prepare("graph", "cuda", False, [call])
    again = prepare("auto", "cuda", False, [lambda: x * 2])
    assert again.engine == "graph" and again.run() > 0
    assert torch.randn(4, device="cuda").isfinite().all(), "the generator works on"


def test_a_capture_in_which_nothing_lands_is_none() -> None:
    with pytest.raises(CaptureFailed, match="nothing"):
        GraphBlock([lambda: 42])


@pytest.mark.parametrize("engine", ["graph", "events"])
@pytest.mark.parametrize("rows", [1000, 1 << 15])
def test_each_look_has_content_of_its_own_that_a_judge_can_draw(engine: str, rows: int) -> None:
    """A cache on the device answers nothing: what is kept of it is wrong."""
    honest, kept = torch.neg, Remembering()
    for function, found in ((honest, []), (kept, ["timed-result"])):
        case = declare(
            "t.py::t",
            "single",
            lambda x, n, function=function: function(x),
            inputs=lambda: (randn(rows), torch.randint(9, (8,), device="cuda")),
            reference=lambda x, n: -x.double(),
            dims={"n": rows},
        )
        bench = Bench("cuda", engine, 1)
        pool = gpu_pool([case], bench, 5, [case.function])
        arms = {"candidate": case.function}
        ((block,),) = prepare_blocks(arms, [case], pool, bench, 5, engines=[engine]).values()
        assert block.engine == engine
        for seed in range(100, 120):
            block.run_written()
            block.look(seed)
        spots = [spot for _, spot in block.spots()]
        assert len({spot.inputs[0].sum().item() for spot in spots}) == len(spots)
        assert [one.check for one in wrong_results([block], {})] == found
        for spot in spots[:3]:
            given = input_set([case], 5, spot.number)
            alone = Content([case], {spot.number: given}, 1)
            alone.write(spot.seed, "candidate")
            for one, other in zip(given, spot.inputs, strict=True):
                assert torch.equal(one, other)


class Remembering:
    """Gives the result of what it was called with first, for each place of its input."""

    def __init__(self) -> None:
        self.results: dict[int, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in self.results:
            self.results[x.data_ptr()] = -x
        return self.results[x.data_ptr()] * 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        doubled: torch.Tensor = 2 * grad + 0 * x
        return doubled


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w)


def case_of(function: Any, given: tuple[torch.Tensor, ...]) -> Case:
    return declare(
        "t.py::t", "single", function, inputs=lambda: given, reference=function, dims={"n": 4096}
    )


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(Doubled.apply, [(4096, 4096)]), (linear, [(4096, 1024), (1024, 4096)])],
    ids=["custom", "linear"],
)
def test_a_backward_is_captured(function: Any, shapes: list[tuple[int, int]]) -> None:
    """On the stream of its forward, with the same gradients as eager mode."""
    given = tuple(randn(*shape, grad=True) for shape in shapes)
    with launch_stream("cuda"):
        call = RepeatedBackward(case_of(function, given), function, given, 7)
    kept = Kept(call)
    block = prepare("auto", "cuda", False, [kept])
    assert block.engine == "graph", "autograd allows it here"
    block.run()
    wanted = call()
    torch.cuda.synchronize()
    for found, expected in zip(kept.result, wanted, strict=True):
        torch.testing.assert_close(found, expected)
    with launch_stream("cuda"):
        assert block.run() == pytest.approx(kernel_ms(call), rel=0.3)


def test_a_backward_that_cannot_be_captured_is_timed_with_a_full_queue() -> None:
    class Syncing(Doubled):
        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            grad.sum().item()
            return 2 * grad

    given = (randn(4096, 4096, grad=True),)
    with launch_stream("cuda"):
        call = RepeatedBackward(case_of(Syncing.apply, given), Syncing.apply, given, 7)
    block = prepare("auto", "cuda", False, [call])
    assert block.engine == "events" and block.run() > 0
    assert block.queue_full is False, "a call that waits for the device empties its queue"


def test_inputs_are_cold() -> None:
    """Going round takes longer than one set again and again, where that one fits into L2."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    numel = l2 // 16 // 4
    pool = input_pool(lambda i: (randn(numel),), "cuda", torch.sum)
    assert len(pool.sets) * pool.set_bytes >= 2 * l2 and pool.flush() is None
    calls = [lambda x=x: x.sum() for (x,) in pool.sets]
    cold = GraphBlock(calls).run()
    warm = GraphBlock(calls[:1] * len(calls)).run()
    assert cold > 1.1 * warm


def test_tiny_inputs_are_flushed_out() -> None:
    pool = input_pool(lambda i: (randn(16),), "cuda", torch.sum)
    assert pool.flush() is not None
    calls = [lambda x=x: x + 1 for (x,) in pool.sets]
    for prepared in (GraphBlock, EventsBlock):
        assert 0 < prepared(calls, pool.flush()).run() < 0.05


def test_do_bench_runs() -> None:
    pytest.importorskip("triton")
    a = randn(1024, 1024)
    block = prepare("do_bench", "cuda", False, [lambda: a @ a])
    assert block.run() > 0 and block.calls > 1
