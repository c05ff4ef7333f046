"""Engines on a GPU (CUDA, or HIP under torch's names): graph replay, a full queue, do_bench."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from time import perf_counter
from typing import Any

import torch

from pytest_kopt.measure.cold import capture_stream, launch_stream
from pytest_kopt.measure.engine import EVENTS, NOTHING, Before, Block, Call, CaptureFailed

_WARM_UP = 3
_BLOCK_MS = 5.0
#: Launches that a block of events queues up at most: CUDA's queue holds about a thousand.
_MOST_QUEUED = 256
#: The spinning kernel lasts this many times what it takes to queue a block up behind it.
_HEADROOM = 1.5
_LONGEST_SPIN_MS = 200.0
#: More than a launch takes.
_LAUNCH_MS = 0.5
#: What `triton.testing.do_bench` is asked for, as others who give such figures ask.
_WARMUP_MS, _REP_MS = 25, 100


def graph_block(calls: Sequence[Call], before: Before = None) -> Block:
    """Capture `calls` one after the other into one graph: what the device does is timed.

    With `before` that is called, untimed, before every replay. Raises CaptureFailed when the calls
    cannot be captured or nothing lands in the graph.
    """
    _warm_up(calls, before)
    graph = torch.cuda.CUDAGraph()
    try:
        with warnings.catch_warnings(record=True) as said, _capturing(graph):
            warnings.simplefilter("always")
            # What a call returns has to stay alive, or its memory would be shared.
            kept: list[Any] = [call() for call in calls]
    except Exception as error:
        torch.cuda.synchronize()
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CaptureFailed(text) from error
    # The only sign that torch gives: kernels launched on a stream outside of the capture.
    if any("graph is empty" in str(warning.message).lower() for warning in said):
        raise CaptureFailed(NOTHING)
    block = _GraphBlock(graph, kept, len(calls), before)
    block.calibrate()
    return block


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture into `graph`, and leave the process usable when that fails.

    torch then stays on the capture's stream, and its generator believes that it is still captured.
    """
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    state = generator.clone_state()
    try:
        with torch.cuda.graph(graph, stream=capture_stream()):
            yield
    except BaseException:
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(state)
        raise


class _GraphBlock(Block):
    engine = "graph"

    def __init__(
        self, graph: torch.cuda.CUDAGraph, kept: list[Any], launches: int, before: Before
    ) -> None:
        self._graph = graph
        self.kept = kept
        self._launches = launches
        self._before = before
        self._set_replays(1)

    def calibrate(self) -> None:
        self.run()
        once = self.run() * self._launches
        self._set_replays(max(1, math.ceil(_BLOCK_MS / max(once, 1e-4))))

    def run(self) -> float:
        """Replay once untimed, so that every block starts from the same state, then the block."""
        self._ready()
        self._graph.replay()
        if self._before is None:
            spans = [_timed(self._graph.replay, self._replays)]
        else:
            spans = []
            for _ in range(self._replays):
                self._before()
                spans.append(_timed(self._graph.replay, 1))
        torch.cuda.current_stream().synchronize()
        total: float = sum(start.elapsed_time(end) for start, end in spans)
        return total / self.calls

    def run_after(self, write: Callable[[], object]) -> float:
        for _ in range(self._replays):
            self._ready()
            self._graph.replay()
        write()
        self._ready()
        # The replay has to be queued before the device gets to it.
        _spin(_LAUNCH_MS)
        start, end = _timed(self._graph.replay, 1)
        end.synchronize()
        return float(start.elapsed_time(end)) / self._launches

    def _ready(self) -> None:
        if self._before is not None:
            self._before()

    def _set_replays(self, count: int) -> None:
        self._replays = count
        self.calls = self._launches * count


def _timed(call: Callable[[], object], count: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    return start, end


def events_block(calls: Sequence[Call], before: Before = None) -> Block:
    """Time by device events around launches that were queued up behind a spinning kernel."""
    _warm_up(calls, before)
    block = _EventsBlock(calls, before)
    block.calibrate()
    return block


class _EventsBlock(Block):
    """Goes on where the last block stopped, so that a set rests until all others were used.

    A call that waits for the device would wait for the spinning kernel too: it gets none.
    """

    engine = EVENTS

    def __init__(self, calls: Sequence[Call], before: Before) -> None:
        self.calls = 1
        self.queue_full = False
        self._sequence = calls
        self._before = before
        self._place = 0
        self._spin_ms = 1.0

    def calibrate(self) -> None:
        """Find the block's size, then a spin that outlasts its launches.

        A call of many kernels fills CUDA's queue early; then fewer calls make a block.
        """
        most = min(_MOST_QUEUED, len(self._sequence)) if self._before else _MOST_QUEUED
        self._spin_ms = self._shortest_spin()
        self.run()
        self.calls = max(1, min(most, math.ceil(_BLOCK_MS / max(self.run(), 1e-4))))
        while self._spin_ms:
            self.run()
            if self.queue_full:
                return
            if self._spin_ms < _LONGEST_SPIN_MS:
                self._spin_ms = min(_LONGEST_SPIN_MS, 2 * self._spin_ms)
            elif self.calls > 1:
                self.calls = max(1, self.calls // 2)
            else:
                return

    def run(self) -> float:
        self._ready()
        self._next()
        self._ready()
        return self._queued(self.calls)

    def run_after(self, write: Callable[[], object]) -> float:
        self._ready()
        for _ in range(self.calls):
            self._next()
        write()
        self._ready()
        return self._queued(min(self.calls, len(self._sequence)))

    def _shortest_spin(self) -> float:
        """Return 1 ms, or 0 where even a single call comes back only after the longest spin."""
        self.run()
        if self.queue_full:
            return 1.0
        self._spin_ms = _LONGEST_SPIN_MS
        self.run()
        return 1.0 if self.queue_full else 0.0

    def _ready(self) -> None:
        if self._before is not None:
            self._before()

    def _queued(self, calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self._spin_ms:
            _spin(self._spin_ms)
        began = perf_counter()
        start.record()
        for _ in range(calls):
            self._next()
        end.record()
        # As long as the device has not passed the first event, everything is queued behind it.
        self.queue_full = not start.query()
        queued_ms = (perf_counter() - began) * 1e3
        end.synchronize()
        if self._spin_ms:
            self._spin_ms = min(_LONGEST_SPIN_MS, max(self._spin_ms, _HEADROOM * queued_ms))
        return float(start.elapsed_time(end)) / calls

    def _next(self) -> None:
        self._sequence[self._place]()
        self._place = (self._place + 1) % len(self._sequence)


def do_bench_block(calls: Sequence[Call], before: Before = None) -> Block:
    """Launch one at a time; a block is the mean of 100 ms. do_bench clears the L2 cache itself."""
    for call in calls:
        call()
    return _DoBenchBlock(calls)


class _DoBenchBlock(Block):
    engine = "do_bench"

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = 1
        self._next = cycle(calls)

    def run(self) -> float:
        from triton.testing import do_bench

        times = do_bench(
            lambda: next(self._next)(), warmup=_WARMUP_MS, rep=_REP_MS, return_mode="all"
        )
        self.calls = len(times)
        return statistics.fmean(times)


def _spin(milliseconds: float) -> None:
    """Keep the device busy; the clock rate is that of its properties, in kHz."""
    properties = torch.cuda.get_device_properties(0)
    khz = getattr(properties, "clock_rate", 2_000_000)
    torch.cuda._sleep(int(milliseconds * khz))


def _warm_up(calls: Sequence[Call], before: Before) -> None:
    """Run everything on the capture's stream first, as capture asks for, until all is compiled."""
    with launch_stream("cuda"):
        for _ in range(_WARM_UP):
            if before is not None:
                before()
            for call in calls:
                call()
    torch.cuda.synchronize()
