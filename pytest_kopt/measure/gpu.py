"""Engines on a GPU (CUDA, or HIP under torch's names): graph replay, a full queue, do_bench."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import torch

from pytest_kopt.measure.cold import capture_stream, launch_stream
from pytest_kopt.measure.engine import BLOCK_MS, EVENTS, NOTHING, Before, Block, Call, CaptureFailed
from pytest_kopt.numerics.nested import mapped

#: Calls until a function is compiled and tuned; after that it is called once on each of its inputs.
_WARM_UP = 3
#: Launches that a block of events queues up at most: CUDA's queue holds about a thousand.
_MOST_QUEUED = 256
#: The spinning kernel lasts this many times what it takes to queue a block up behind it.
_HEADROOM = 1.5
_LONGEST_SPIN_MS = 200.0
#: More than a launch takes.
_LAUNCH_MS = 0.5
#: What `triton.testing.do_bench` is asked for, as others who give such figures ask.
_WARMUP_MS, _REP_MS = 25, 100


class GraphMemory:
    """Memory that the graphs of several versions take turns with.

    The place of results makes a kernel faster or slower. Two copies of an RMSNorm vary by 0.27 % on
    an H200, by 0.05 % with their results at the same addresses (docs/paired-evidence.md). So the
    memory of a captured version's results is given up to the next one: calls that allocate alike
    get the same addresses. A replay writes there again; what it gave has to be read before
    another's.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None

    def lay_out(self, calls: Sequence[Call], before: Before) -> None:
        """Take what calls need, if nobody has: the first version finds it as the others do then.

        Nobody else may hold what the calls return.
        """
        if self._first is None:
            _run_on_stream(calls, before)
            with suppress(CaptureFailed):
                self._first = _captured(calls, self.pool)

    def let_go(self, results: list[Any]) -> list[Any]:
        """Return results of captured calls as views that do not keep their memory from others."""
        places = [
            range(segment["address"], segment["address"] + segment["total_size"])
            for segment in torch.cuda.memory_snapshot()
            if segment["segment_pool_id"] == self.pool
        ]

        def view(tensor: Any) -> Any:
            if type(tensor) is not torch.Tensor or tensor.is_neg() or tensor.is_conj():
                return tensor
            storage = tensor.untyped_storage()
            # What was not allocated during a capture is freed for whoever comes next.
            if not any(storage.data_ptr() in place for place in places):
                return tensor
            memory = torch.as_tensor(_Bytes(storage.data_ptr(), storage.nbytes()), device="cuda")
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            place = tensor.storage_offset(), tensor.shape, tensor.stride()
            return empty.set_(memory.untyped_storage(), *place)

        # What cannot be built from its parts keeps its memory.
        with suppress(Exception):
            results = mapped(results, view)
        return results


class _Bytes:
    """Memory on the device that belongs to somebody else, as CUDA's array interface names it."""

    def __init__(self, address: int, size: int) -> None:
        place = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}
        self.__cuda_array_interface__ = place


def _captured(calls: Sequence[Call], pool: Any) -> torch.cuda.CUDAGraph:
    """Capture calls; their results are the caller's to keep, as long as he reads them."""
    graph = torch.cuda.CUDAGraph()
    try:
        with warnings.catch_warnings(record=True) as warned, _capturing(graph, pool):
            warnings.simplefilter("always")
            # What a call returns has to stay alive, or the next one's would lie there too.
            results: list[Any] = [call() for call in calls]
            del results
    except Exception as error:
        torch.cuda.synchronize()
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CaptureFailed(text) from error
    # The only sign that torch gives: kernels launched on a stream outside of the capture.
    if any("graph is empty" in str(warning.message).lower() for warning in warned):
        raise CaptureFailed(NOTHING)
    return graph


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture into `graph`; when that fails, put torch's stream and generator back."""
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    state = generator.clone_state()
    try:
        with torch.cuda.graph(graph, pool, capture_stream()):
            yield
    except BaseException:
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(state)
        raise


class GraphBlock(Block):
    """Calls captured one after the other into one graph: what the device does is timed."""

    engine = "graph"

    def __init__(
        self,
        calls: Sequence[Call],
        before: Before = None,
        memory: GraphMemory | None = None,
        block_ms: float = BLOCK_MS,
    ) -> None:
        """Capture calls; their results are in `memory`, or in memory of their own.

        Raises CaptureFailed when they cannot be captured or nothing lands in the graph.
        """
        _warm_up(calls, before)
        self._graph = _captured(calls, memory and memory.pool)
        self.before = before
        self._launches = self.calls = launches = len(calls)
        self._replays = 1
        self.run()
        once = self.run() * launches
        self._replays = max(1, math.ceil(block_ms / max(once, 1e-4)))
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

    def run_on(self, times: int) -> None:
        for _ in range(times * self._replays):
            self.ready()
            self._graph.replay()
        torch.cuda.current_stream().synchronize()

    def run_once(self, write: Callable[[], object]) -> float:
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


class EventsBlock(Block):
    """Times by device events around launches that were queued up behind a spinning kernel.

    It goes on where the last block stopped, so that a set rests until all others were used.
    """

    engine = EVENTS

    def __init__(
        self, calls: Sequence[Call], before: Before = None, block_ms: float = BLOCK_MS
    ) -> None:
        _warm_up(calls, before)
        self.calls = 1
        self._block_ms = block_ms
        self.queue_full = False
        self.before = before
        self._sequence = calls
        #: The place of the next call in the sequence.
        self._place = 0
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
        self.calls = max(1, min(most, math.ceil(self._block_ms / max(self.run(), 1e-4))))
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
        self._take(1)[0]()
        self.ready()
        if self.before is not None:
            # What is brought back may lie in the memory of the untimed call's result.
            self._place -= 1
        return self._queued(self.calls)

    def _take(self, count: int) -> list[Call]:
        """Return the next calls, from where the last ones ended."""
        begin = self._place % len(self._sequence)
        self._place = begin + count
        return [*islice(cycle(self._sequence), begin, begin + count)]

    def run_once(self, write: Callable[[], object]) -> float:
        self.ready()
        self._sequence[0]()
        write()
        self.ready()
        self._place = 0
        return self._queued(min(self.calls, len(self._sequence)))

    def _queued(self, count: int) -> float:
        calls = self._take(count)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self._spin_ms:
            _spin(self._spin_ms)
        began = perf_counter()
        start.record()
        for call in calls:
            call()
        end.record()
        # As long as the device has not passed the first event, everything is queued behind it.
        self.queue_full = not start.query()
        queued_ms = (perf_counter() - began) * 1e3
        end.synchronize()
        if self._spin_ms:
            self._spin_ms = min(_LONGEST_SPIN_MS, max(self._spin_ms, _HEADROOM * queued_ms))
        return float(start.elapsed_time(end)) / count


class DoBenchBlock(Block):
    """Launches one at a time for 100 ms and gives their mean; it clears the L2 cache itself."""

    engine = "do_bench"

    def __init__(self, calls: Sequence[Call]) -> None:
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
    for some in (*[calls[:1]] * (_WARM_UP - 1), calls):
        _run_on_stream(some, before)
    torch.cuda.synchronize()


def _run_on_stream(calls: Sequence[Call], before: Before) -> None:
    with launch_stream("cuda"):
        if before is not None:
            before()
        for call in calls:
            call()
