"""Engines on a GPU (CUDA, or HIP under torch's same names): graph replay, and a full queue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_kopt.measure.engine import Block, Call, CaptureFailed, Engine

_WARM_UP = 3
#: GPU cycles that keep the queue closed while launches pile up behind it, per launch.
_CYCLES_PER_LAUNCH = 60_000


@dataclass(frozen=True, slots=True)
class GraphEngine(Engine):
    """Replays of a captured graph: what the device does, without the launcher."""

    block_ms: float = 5.0
    name = "graph"

    def prepare(self, calls: Sequence[Call]) -> Block:
        """Capture `calls` one after the other into one graph.

        Raises CaptureFailed when they cannot be captured or nothing lands in the graph.
        """
        _warm_up(calls)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                # What a call returns has to stay alive, or its memory would be shared.
                kept: list[Any] = [call() for call in calls]
        except Exception as error:
            torch.cuda.synchronize()
            raise CaptureFailed(f"{type(error).__name__}: {error}") from error
        block = _GraphBlock(graph, kept, len(calls))
        block.calibrate(self.block_ms)
        return block


class _GraphBlock(Block):
    engine = "graph"

    def __init__(self, graph: torch.cuda.CUDAGraph, kept: list[Any], launches: int) -> None:
        self._graph = graph
        self.kept = kept
        self._launches = launches
        self._replays = 1
        self.calls = launches
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def calibrate(self, block_ms: float) -> None:
        self.run()
        once = self.run() * self._launches
        self._replays = max(1, math.ceil(block_ms / max(once, 1e-4)))
        self.calls = self._launches * self._replays

    def run(self) -> float:
        """Replay once untimed, so that every block starts from the same state, then the block."""
        self._graph.replay()
        self._start.record()
        for _ in range(self._replays):
            self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / (self._launches * self._replays)


@dataclass(frozen=True, slots=True)
class EventsEngine(Engine):
    """Device events around launches that were queued up behind a spinning kernel."""

    block_ms: float = 5.0
    name = "events"

    def prepare(self, calls: Sequence[Call]) -> Block:
        _warm_up(calls)
        trial = _EventsBlock(calls, len(calls))
        trial.run()
        count = max(len(calls), min(1000, math.ceil(self.block_ms / max(trial.run(), 1e-4))))
        return _EventsBlock(calls, count)


class _EventsBlock(Block):
    engine = "events"

    def __init__(self, calls: Sequence[Call], count: int) -> None:
        self.calls = count
        self._sequence = calls
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def run(self) -> float:
        self._sequence[0]()
        torch.cuda._sleep(_CYCLES_PER_LAUNCH * self.calls)
        self._start.record()
        for i in range(self.calls):
            self._sequence[i % len(self._sequence)]()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / self.calls


def _warm_up(calls: Sequence[Call]) -> None:
    """Run everything on a side stream first, as capture asks for, until nothing is compiled."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
