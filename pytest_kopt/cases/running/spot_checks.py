"""Spot checks: results of timed calls, taken at random and judged when the clock has stopped.

On the CPU every call of a block has inputs of its own, new in each block. All results are held
until one of them is drawn, after the block. A GPU's block goes round the same calls again and
again. Some of its blocks are looks: one round on content that no call met before. One of its calls,
which follows from the seed, is judged, and no gain is larger than the one that looks show.
"""

from __future__ import annotations

import gc
import random
import statistics
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import addressof, c_char
from dataclasses import replace
from itertools import chain, compress, count
from typing import Any

import torch

from pytest_kopt.cases.case import RETURNED
from pytest_kopt.cases.order import NUMBER, PLACES, RESULTS
from pytest_kopt.cases.running.inspected_results import (
    Spot,
    bits_of,
    expected_of,
    plainly_wrong,
    wrong_result,
)
from pytest_kopt.cases.running.timed_calls import (
    Backward,
    Content,
    Forward,
    Gradients,
    write_own,
)
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import plain_inputs, span_bytes
from pytest_kopt.honesty.outputs import snapshots
from pytest_kopt.measure.cold import forbid_persisting_lines
from pytest_kopt.measure.engine import Block
from pytest_kopt.numerics.nested import Filled, flatten, fresh_copies, stored

#: The part of the places that a run fills in.
_OF_RUN = slice(0, PLACES - 3)
_NOWHERE = memoryview(array("Q", [0] * PLACES))[_OF_RUN]


class Recorder:
    """A call whose last result can be taken without its knowledge; replays write to that memory.

    The places of results are written into `places` as soon as a call returns, those of inputs
    before: other processes read it.
    """

    __slots__ = ("are_results", "call", "has_run", "inputs", "places", "result", "written")

    def __init__(self, call: Forward | Backward, places: memoryview | None = None) -> None:
        self.call = call
        self.has_run = False
        self.result: Any = None
        self.places = places
        self.written = stored(call.written)
        #: Of all that a call returns, whether it is no input that it writes to; found out once.
        self.are_results: list[bool] | None = None
        if places is not None:
            case = call.case
            parts = plain_inputs(
                *(call.live, case.weights, case.rewritten, call.gradients),
                are_consumed=case.consumes_incoming,
            )
            inputs = [n for x in chain(*parts) for n in (x.data_ptr(), span_bytes(x))]
            #: Where the inputs lie, and how many bytes they take.
            self.inputs = array("Q", inputs)
            address, numbers = self.inputs.buffer_info()
            places[-3:] = array("Q", [address, len(parts[0]), numbers // 2])

    def __call__(self) -> object:
        result = self.result = self.call()
        self.has_run = True
        if self.places is not None:
            self._say_where(self.places, result)
        return result

    def _say_where(self, places: memoryview, result: Any) -> None:
        returned = stored(result)
        if self.written and returned and not isinstance(result, Filled):
            if self.are_results is None:
                named = self.call.named(result)
                self.are_results = [
                    name in named
                    for name, leaf in flatten(result, RETURNED).items()
                    if stored(leaf)
                ]
            returned = [*compress(returned, self.are_results)]
        for number, leaf in enumerate((*returned, *self.written)[:RESULTS], start=1):
            places[0] = number
            if isinstance(leaf, torch.Tensor):
                offset = int(leaf.storage_offset()) * leaf.element_size()
                # Many views of one storage would each be read to its end.
                is_dense = leaf.is_contiguous()
                size = leaf.nbytes if is_dense else leaf.untyped_storage().nbytes() - offset
                places[2 * number - 1], places[2 * number] = leaf.data_ptr(), size
            else:
                places[2 * number - 1], places[2 * number] = bits_of(leaf), NUMBER

    def clear(self) -> None:
        """Forget the last run, and where its results lay."""
        self.has_run = False
        if self.places is not None:
            self.places[_OF_RUN] = _NOWHERE

    def take(self) -> dict[str, Any]:
        named_results = self.call.named(self.result)
        return dict(zip(named_results, snapshots(list(named_results.values())), strict=True))

    def spot(self, results: Mapping[str, Any], seed: int, number: int) -> Spot:
        """Return what this call is to be judged by, on what it looks at now."""
        incoming = self.call.incoming
        return Spot(
            fresh_copies(self.call.inputs),
            None
            if incoming is None
            else {name: gradient.clone() for name, gradient in incoming.items()},
            results,
            seed,
            number,
        )


def recorded(calls: Sequence[Forward | Backward], *, says_where: bool = False) -> list[Recorder]:
    """Return a recorder of each call, which writes down where its results lie, if asked."""
    if not says_where:
        return [Recorder(call) for call in calls]
    places = memoryview(array("Q", [0] * PLACES * len(calls)))
    return [Recorder(call, places[number * PLACES :][:PLACES]) for number, call in enumerate(calls)]


class Spotted:
    """A block that runs as the one inside does; results of some calls are judged later."""

    def __init__(
        self,
        inner: Block,
        recorders: Sequence[Recorder],
        content: Content | Gradients | None = None,
        arm: str = "",
        forward: Spotted | None = None,
        own_sets: int = 0,
    ) -> None:
        """Wrap an arm's block of recorded calls; backwards go over the graphs of a `forward`'s.

        `content` is what calls meet in each run, None: the same in all. The first `own_sets` of
        calls that a block repeats have inputs of their own (0: each call runs once).
        """
        self.engine, self.calls = inner.engine, inner.calls
        self.not_captured = inner.not_captured
        self.queue_full: bool | None = None
        places = recorders[0].places
        #: The address of what says where the results of the last run's calls lie, 0: nothing.
        self.places = addressof(c_char.from_buffer(places)) if places is not None else 0
        self._inner = inner
        self.case, self._arm = recorders[0].call.case, arm
        self._recorders, self._content = recorders, content
        self._forward = forward
        self._own_sets = own_sets
        self._seed = 0
        #: How many of its calls the next run has, 0: all.
        self._first = 0
        #: Calls to judge: their block's seed, the number of their inputs, and their results. What
        #: they returned stays, as a call after them must not write there.
        self._kept_calls: dict[int, tuple[int, int, Mapping[str, Any], Any]] = {}

    def drawn_runs(self, dice: random.Random, rounds: int) -> Iterator[float]:
        """Yield the ms per call of runs on content that `dice` draw, where nobody else orders them.

        A run goes several rounds, each on new content. One of all runs is looked at, each as
        likely. Calls that are repeated are looked at once, before the first run.
        """
        if self._own_sets:
            self.look(dice.getrandbits(62))
        while self._own_sets:
            yield self.run_written()
        for run in count(1):
            is_looked_at = dice.randrange(run) == 0
            times = []
            for _ in range(rounds):
                self.write(dice.getrandbits(62))
                times.append(self.run_written())
            if is_looked_at:
                self.keep(0, dice.randrange(len(self._recorders)))
            yield statistics.fmean(times)

    def look(self, seed: int) -> float:
        """Run repeated calls once on the content of a seed, and keep what one of them gives.

        Returns the time in ms per call.
        """
        self.write(seed)
        number = random.Random(seed).randrange(min(self._own_sets or self.calls, self.calls))

        def write() -> None:
            if self._content is not None:
                self._content.write(seed, self._arm)

        with _without_collector():
            ms = self._inner.run_once(write)
        if self._content is not None:
            kept = seed, number, self._recorders[number].take(), None
            self._kept_calls[len(self._kept_calls)] = kept
        return ms

    def write(self, seed: int, calls: int = 0) -> None:
        """Write what the next run meets, all or its first calls: the content of a seed."""
        self._seed, self._first = seed, calls
        if self.engine != "wall":
            forbid_persisting_lines()
        for recorder in self._recorders:
            recorder.clear()
            recorder.call.take_new_tensors()
        if self._content is None or self._own_sets:
            return
        self.release()
        self._content.write(seed, self._arm, calls)
        for recorder in self._recorders:
            recorder.call.restore()
        if self._forward is not None:
            self._follow(self._forward, seed)

    def _follow(self, forward: Spotted, seed: int) -> None:
        """Take over the graphs of the forward's block of a seed; run it where nobody has.

        Work that a forward prepares for its backward is then timed with the forward.
        """
        if forward._seed != seed:
            forward.write(seed, self._first)
            forward.run_written()
        for recorder, ran in zip(self._recorders, forward._recorders, strict=True):
            if ran.has_run:
                _go_back_over(recorder, ran)

    def run_written(self, seconds: float = 0.0) -> float:
        """Run without the garbage collector, as timing loops do; return the time in ms per call.

        With `seconds` the block runs again and again for that time.
        """
        with _without_collector():
            if self._first:
                ms = self._inner.run_first(self._first)
            else:
                ms = self._inner.run_for(seconds) if seconds else self._inner.run()
        self.queue_full = self._inner.queue_full
        return ms

    def run_on(self, times: int) -> None:
        with _without_collector():
            self._inner.run_on(times)

    def keep(self, place: int, number: int) -> None:
        """Have a call of the last run, drawn after it, judged, not what had this place before."""
        if self._content is None or self._own_sets:
            return
        recorder = self._recorders[number]
        results = recorder.take() if recorder.has_run else {}
        self._kept_calls[place] = self._seed, number, results, recorder.result

    def release(self) -> None:
        """Give back the memory of the last run's results, but for repeated calls."""
        if self._content is None or self._own_sets:
            return
        for recorder in self._recorders:
            recorder.result = None

    def spots(self) -> Iterator[tuple[Spot, Spot]]:
        """Yield calls that nobody timed, on what the case draws, each with a timed one to judge.

        Writes to the inputs, and calls once more on each content.
        """
        for seed, number, results, _ in self._kept_calls.values():
            recorder = self._recorders[number]
            # What knows content as a multiple of its last call's must not find that one there.
            self._write_own(number, seed ^ 1)
            own = recorder.spot(self._results_now(number), seed, number)
            self._write_timed(number, seed)
            timed = recorder.spot(results, seed, number)
            yield own, replace(timed, again=self._results_now(number))

    def _write_own(self, number: int, seed: int) -> None:
        """Write what the case draws under a seed where a call looks."""
        if self._forward is not None:
            self._forward._write_own(number, seed)
        call = self._recorders[number].call
        write_own(self.case, call, seed, is_captured=self._own_sets > 0)

    def _write_timed(self, number: int, seed: int) -> None:
        """Write what a call met in its block."""
        if self._forward is not None:
            self._forward._write_timed(number, seed)
        if self._content is not None:
            self._content.write_one(number, seed, self._arm)

    def _results_now(self, number: int) -> Mapping[str, Any]:
        """Call once more; return what that gave, nothing where it raised."""
        recorder = self._recorders[number]
        recorder.call.restore()
        try:
            if self._forward is not None:
                self._forward._results_now(number)
                _go_back_over(recorder, self._forward._recorders[number])
            recorder()
        except Exception:
            return {}
        return recorder.take()


def _go_back_over(backward: Recorder, forward: Recorder) -> None:
    assert isinstance(backward.call, Backward)
    backward.call.follow(forward.result)


@contextmanager
def _without_collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def wrong_results(blocks: Sequence[Spotted], floors: Mapping[str, float]) -> list[Finding]:
    """Judge what was kept; return a finding for each block with a result that is plainly wrong."""
    findings = []
    # Calls that nobody timed may be inexact.
    no_floors: Mapping[str, float] = {}
    for block in blocks:
        spots = (
            pair for two in block.spots() for pair in zip(two, (no_floors, floors), strict=True)
        )
        for spot, least in spots:
            expected = expected_of(block.case, spot, spot.again or spot.results)
            if wrong := plainly_wrong(block.case, spot, spot.again, least, expected):
                findings.append(wrong_result(wrong))
                break
    return findings
