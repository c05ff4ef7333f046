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

    Raises CaptureFailed when the calls cannot be captured or nothing lands in the graph.
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
    return _GraphBlock(graph, kept, len(calls), before)


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture into `graph`; when that fails, put torch's stream and generator back."""
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
        self.before = before
        self._launches = self.calls = launches
        self._replays = 1
        self.run()
        once = self.run() * launches
        self._replays = max(1, math.ceil(_BLOCK_MS / max(once, 1e-4)))
        self.calls = launches * self._replays

    def run(self) -> float:
        """Replay once untimed, so that every block starts from the same state, then the block."""
        self.ready()
        self._graph.replay()
        at_once = 1 if self.before else self._replays
        spans = []
        for _ in range(0, self._replays, at_once):
            if self.before is not None:
                self.before()
            spans.append(_timed(self._graph.replay, at_once))
        torch.cuda.current_stream().synchronize()
        total: float = sum(start.elapsed_time(end) for start, end in spans)
        return total / self.calls

    def run_after(self, write: Callable[[], object]) -> float:
        for _ in range(self._replays):
            self.ready()
            self._graph.replay()
        write()
        self.ready()
        # The replay has to be queued before the device gets to it.
        _spin(_LAUNCH_MS)
        start, end = _timed(self._graph.replay, 1)
        end.synchronize()
        return float(start.elapsed_time(end)) / self._launches


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
    return _EventsBlock(calls, before)


class _EventsBlock(Block):
    """Goes on where the last block stopped, so that a set rests until all others were used."""

    engine = EVENTS

    def __init__(self, calls: Sequence[Call], before: Before) -> None:
        self.calls = 1
        self.queue_full = False
        self.before = before
        self._sequence = calls
        self._next = cycle(calls)
        self._spin_ms = 1.0
        self._calibrate()

    def _calibrate(self) -> None:
        """Find the block's size, and a spin that outlasts its launches; none where a call waits."""
        most = min(_MOST_QUEUED, len(self._sequence)) if self.before else _MOST_QUEUED
        self.run()
        if not self.queue_full:
            self._spin_ms = _LONGEST_SPIN_MS
            self.run()
        # No spin where even a single call comes back only after the longest.
        self._spin_ms = 1.0 if self.queue_full else 0.0
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
        self.ready()
        next(self._next)()
        self.ready()
        return self._queued(self.calls)

    def run_after(self, write: Callable[[], object]) -> float:
        self.ready()
        for _ in range(self.calls):
            next(self._next)()
        write()
        self.ready()
        return self._queued(min(self.calls, len(self._sequence)))

    def _queued(self, calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self._spin_ms:
            _spin(self._spin_ms)
        began = perf_counter()
        start.record()
        for _ in range(calls):
            next(self._next)()
        end.record()
        # As long as the device has not passed the first event, everything is queued behind it.
        self.queue_full = not start.query()
        queued_ms = (perf_counter() - began) * 1e3
        end.synchronize()
        if self._spin_ms:
            self._spin_ms = min(_LONGEST_SPIN_MS, max(self._spin_ms, _HEADROOM * queued_ms))
        return float(start.elapsed_time(end)) / calls


class DoBenchBlock(Block):
    """Launches one at a time for 100 ms and gives their mean; it clears the L2 cache itself."""

    engine = "do_bench"

    def __init__(self, calls: Sequence[Call], before: Before = None) -> None:
        self.calls = 1
        self._next = cycle(calls)
        for call in calls:
            call()

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
