"""Engines of a GPU against a simulated device: a clock, a launch queue, and what they measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_kopt.cases.evidence import ColdCache
from pytest_kopt.errors import BadInput
from pytest_kopt.measure import choice, cold, gpu
from pytest_kopt.measure.choice import prepare
from pytest_kopt.measure.cold import InputPool, input_pool, warm_pool
from pytest_kopt.measure.engine import Block, CaptureFailed
from pytest_kopt.measure.gpu import EventsBlock

US = 1e-6


class Machine:
    """A launcher and a device, in seconds: launches queue up, and a full queue blocks."""

    def __init__(self, *, kernel: float, launch: float, depth: int = 1000) -> None:
        self.kernel, self.launch, self.depth = kernel, launch, depth
        self.now = 0.0
        self.free = 0.0
        self._ends: list[float] = []

    def put(self, lasts: float) -> float:
        """Launch something; return when the device will be through with it."""
        self.now += self.launch
        self._ends = [end for end in self._ends if end > self.now]
        if len(self._ends) >= self.depth:
            self.now = self._ends[-self.depth]
        self.free = max(self.free, self.now) + lasts
        self._ends.append(self.free)
        return self.free

    def call(self) -> None:
        self.put(self.kernel)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        machine = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self) -> None:
                self.at = max(machine.free, machine.now)

            def query(self) -> bool:
                return machine.now >= self.at

            def synchronize(self) -> None:
                machine.now = max(machine.now, self.at)

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) * 1e3

        @contextmanager
        def stream(name: str) -> Iterator[None]:
            yield

        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "_sleep", lambda cycles: machine.put(cycles / 1e9))
        patch.setattr(torch.cuda, "synchronize", lambda: None)
        patch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda number: SimpleNamespace(clock_rate=1_000_000, L2_cache_size=1000),
        )
        patch.setattr(gpu, "launch_stream", stream)
        patch.setattr(gpu, "perf_counter", lambda: machine.now)


def events(machine: Machine, patch: pytest.MonkeyPatch, **more: Any) -> Block:
    machine.install(patch)
    return EventsBlock([machine.call], **more)


@pytest.mark.parametrize("launch", [2 * US, 20 * US, 300 * US])
def test_a_full_queue_times_the_device_and_not_the_launcher(
    monkeypatch: pytest.MonkeyPatch, launch: float
) -> None:
    """A kernel of 5 us, however slow the launcher."""
    block = events(Machine(kernel=5 * US, launch=launch), monkeypatch)
    assert block.run() == pytest.approx(0.005)
    assert block.queue_full and block.calls > 1


def test_a_long_kernel_needs_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    block = events(Machine(kernel=3e-3, launch=20 * US), monkeypatch)
    assert block.run() == pytest.approx(3.0) and block.calls == 2


def test_a_call_of_many_kernels_does_not_overflow_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backward of 300 kernels: the block shrinks until it fits into CUDA's queue."""
    machine = Machine(kernel=2 * US, launch=10 * US, depth=1000)
    machine.install(monkeypatch)

    def backward() -> None:
        for _ in range(300):
            machine.call()

    block = EventsBlock([backward])
    assert block.run() == pytest.approx(0.6)
    assert block.queue_full and block.calls <= 3


def test_a_queue_that_cannot_be_kept_full_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call has more kernels than the queue holds: the time is the launcher's, and says so."""
    machine = Machine(kernel=2 * US, launch=10 * US, depth=100)
    machine.install(monkeypatch)

    def endless() -> None:
        for _ in range(5000):
            machine.call()

    block = EventsBlock([endless])
    block.run()
    assert block.calls == 1 and block.queue_full is False


def test_a_call_that_waits_for_the_device_waits_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`.item()` in a wrapper: behind a spinning kernel each block would take 200 ms."""
    machine = Machine(kernel=1e-3, launch=10 * US)
    machine.install(monkeypatch)

    def reads_back() -> None:
        machine.call()
        machine.now = max(machine.now, machine.free)

    block = EventsBlock([reads_back])
    before = machine.now
    assert block.run() == pytest.approx(1.01, rel=0.02) and block.queue_full is False
    assert machine.now - before == pytest.approx(6 * 1.01e-3, rel=0.02)


def test_events_use_every_set_before_any_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(kernel=1e-3, launch=10 * US)
    machine.install(monkeypatch)
    used: list[int] = []

    def call(i: int) -> Callable[[], None]:
        def run() -> None:
            used.append(i)
            machine.call()

        return run

    block = EventsBlock([call(i) for i in range(7)])
    used.clear()
    for _ in range(5):
        block.run()
    steps = {(after - before) % 7 for before, after in pairwise(used)}
    assert steps == {1}


@pytest.mark.parametrize("kernel", [1e-3, 5 * US])
def test_what_is_brought_back_is_called_after_that(
    monkeypatch: pytest.MonkeyPatch, kernel: float
) -> None:
    """A backward in place returns its input's memory: bringing that back undoes the untimed call.

    One of liger-kernel was refused for a wrong result in a timed block.
    """
    machine = Machine(kernel=kernel, launch=10 * US)
    machine.install(monkeypatch)
    state = dict.fromkeys(range(7), "as it was")

    def call(number: int) -> Callable[[], None]:
        def run() -> None:
            assert state[number] == "as it was", "called twice on what it wrote over"
            state[number] = "right"
            machine.call()

        return run

    def bring_back() -> None:
        undone[:] = [number for number, found in state.items() if found == "right"]
        state.update(dict.fromkeys(state, "as it was"))

    undone: list[int] = []
    block = EventsBlock([*map(call, state)], before=bring_back)
    for _ in range(9):
        block.run()
        assert len(undone) == 1
        assert [state[number] for number in undone] == ["right"], "the untimed call is repeated"


def test_a_flush_comes_before_each_block_and_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(kernel=5 * US, launch=10 * US)
    flushed: list[float] = []
    block = events(machine, monkeypatch, before=lambda: flushed.append(machine.put(1e-3)))
    before = len(flushed)
    assert block.run() == pytest.approx(0.005)
    assert len(flushed) == before + 2 and block.calls == 1, "before the untimed call and the block"


@pytest.mark.parametrize(
    ("floats", "sets", "flushed"),
    [(100, 5, False), (500, 2, False), (10_000, 2, False), (1, 500, False), (0, 512, True)],
)
def test_the_pool_is_twice_the_cache_or_flushed(
    monkeypatch: pytest.MonkeyPatch, floats: int, sets: int, flushed: bool
) -> None:
    """The device says 1000 bytes of L2; a set is that many float32."""
    Machine(kernel=1.0, launch=1.0).install(monkeypatch)
    monkeypatch.setattr(cold, "flusher", lambda size: size)
    made: list[int] = []

    def make(i: int) -> tuple[Any, ...]:
        made.append(i)
        return (torch.zeros(floats), "no tensor")

    pool = input_pool(make, "cuda", lambda *given: None)
    assert set(made) == set(range(sets)) and len(pool.sets) == sets
    assert (pool.flush() is not None) == flushed
    assert asdict(ColdCache.of(pool)) == {
        "sets": sets,
        "set_bytes": 4 * floats,
        "l2_bytes": 1000,
        "flushed": flushed,
    }
    assert flushed or sets * 4 * floats >= 2 * 1000


@pytest.mark.parametrize(
    ("more", "mib"),
    [
        ({"gcnArchName": "gfx942:sramecc+:xnack-", "L2_cache_size": 4 << 20}, 256),
        ({"gcnArchName": "gfx950:sramecc+:xnack-", "L2_cache_size": 512 << 20}, 512),
        ({"gcnArchName": "gfx1100", "L2_cache_size": 6 << 20}, 6),
        ({"gcnArchName": "", "L2_cache_size": 50 << 20}, 50),
        ({"L2_cache_size": 50 << 20}, 50),
    ],
    ids=["table", "device", "no table", "NVIDIA", "an older torch"],
)
def test_inputs_go_round_twice_the_largest_shared_cache(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], mib: int
) -> None:
    """An MI300X names the L2 of one die only: 256 MiB of Infinity Cache lie behind it."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: SimpleNamespace(**more))
    monkeypatch.setattr(cold, "_call_ms", lambda call, first, inputs: 1e-3)
    pool = input_pool(lambda i: (torch.empty(64 << 20, device="meta"),), "cuda", torch.sum)
    assert pool.cache_bytes == mib << 20
    assert len(pool.sets) == max(2, 2 * mib // 256) and pool.flush() is None


@pytest.mark.parametrize(
    ("floats", "calls"),
    [(10, 11), (100, 1), (10_000, 1)],
    ids=["results fit as well", "they do not", "nothing fits"],
)
def test_a_warm_pool_is_one_set_that_stays_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, floats: int, calls: int
) -> None:
    """Half of the 1000 bytes of L2 are for a set and for results, one of the set's size a call."""
    Machine(kernel=10 * US, launch=1 * US).install(monkeypatch)
    monkeypatch.setattr(cold, "flusher", lambda size: size)
    arguments = (torch.zeros(floats),)
    pool = warm_pool(arguments, lambda x: x + 1)
    assert len(pool.sets) == calls and all(each is arguments for each in pool.sets)
    assert pool.flush() is None and pool.flush(is_written_to=True) is None


def test_the_cpu_has_one_set_and_no_flush() -> None:
    pool = input_pool(lambda i: (torch.zeros(4),), "cpu", torch.sum)
    assert len(pool.sets) == 1 and pool.flush() is None
    assert InputPool([], 0, 0).flush() is None


def test_a_long_call_has_few_sets_and_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round over all the sets it would take to fill the cache would outlast the block."""
    machine = Machine(kernel=2e-3, launch=10 * US)
    machine.install(monkeypatch)
    monkeypatch.setattr(cold, "flusher", lambda size: size)
    pool = input_pool(lambda i: (torch.zeros(1),), "cuda", lambda x: machine.call())
    assert len(pool.sets) == 3 and pool.flush() is not None


def test_the_slowest_of_the_versions_says_how_many_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline of a thousand launches would be captured hundreds of times over."""
    machine = Machine(kernel=10 * US, launch=1 * US)
    machine.install(monkeypatch)
    monkeypatch.setattr(cold, "flusher", lambda size: size)
    make = lambda i: (torch.zeros(1),)  # noqa: E731
    versions = [lambda x, lasts=lasts: machine.put(lasts) for lasts in (10 * US, 2e-3, 10 * US)]
    assert len(input_pool(make, "cuda", *versions).sets) == 3
    assert len(input_pool(make, "cuda", versions[0]).sets) == 500


def uncapturable(*given: Any) -> Block:
    raise CaptureFailed("operation not permitted when stream is capturing")


def test_a_failed_capture_falls_to_events_unless_a_graph_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(kernel=5 * US, launch=10 * US)
    machine.install(monkeypatch)
    monkeypatch.setattr(choice, "GraphBlock", uncapturable)
    block = prepare("auto", "cuda", False, [machine.call])
    assert block.engine == "events" and "not permitted" in block.not_captured
    with pytest.raises(CaptureFailed, match="not permitted"):
        prepare("graph", "cuda", False, [machine.call])


def test_do_bench_goes_round_the_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own function measures; the mean over its launches is the sample."""
    testing = pytest.importorskip("triton.testing")
    used: list[str] = []

    def stand_in(fn: Callable[[], object], **options: Any) -> list[float]:
        assert options == {"warmup": 25, "rep": 100, "return_mode": "all"}
        for _ in range(4):
            fn()
        return [1.0, 2.0, 3.0, 6.0]

    monkeypatch.setattr(testing, "do_bench", stand_in)
    block = gpu.DoBenchBlock([lambda: used.append("a"), lambda: used.append("b")])
    used.clear()
    assert block.run() == 3.0 and block.calls == 4
    assert used == ["a", "b", "a", "b"]


def test_engines_of_a_gpu_are_refused_on_the_cpu() -> None:
    for option in ("graph", "events", "do_bench"):
        with pytest.raises(BadInput, match="needs a GPU"):
            prepare(option, "cpu", False, [lambda: None])
