"""Spot checks: results of timed calls, taken at random and judged when the clock has stopped.

On the CPU every call of a block has inputs of its own, new in each block. All results are held
until one of them is drawn, after the block. On a GPU a block is timed with the same calls whether
it will be inspected or not. Then a call gets new content where the old one was, without a change of
any counter.
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
from typing import Any

from pytest_kopt.cases.order import PLACES, RESULTS
from pytest_kopt.cases.running.inspected_results import (
    Spot,
    expected_of,
    plainly_wrong,
    wrong_result,
)
from pytest_kopt.cases.running.timed_calls import (
    Backward,
    Content,
    Forward,
    Gradients,
    write_content,
)
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.outputs import snapshots
from pytest_kopt.honesty.renewal import known_content_finding, known_content_gain, wipe
from pytest_kopt.measure.cold import forbid_persisting_lines
from pytest_kopt.measure.engine import Block
from pytest_kopt.numerics.nested import fresh_copies, tensors

_NOWHERE = memoryview(array("Q", [0] * PLACES))


class Recorder:
    """A call whose last result can be taken without its knowledge; replays write to that memory.

    The places of results are written into `places` as soon as a call returns: other processes read
    it.
    """

    __slots__ = ("call", "has_run", "places", "result", "written")

    def __init__(self, call: Forward | Backward, places: memoryview | None = None) -> None:
        self.call = call
        self.has_run = False
        self.result: Any = None
        self.places = places
        self.written = tensors(call.written)

    def __call__(self) -> object:
        result = self.result = self.call()
        self.has_run = True
        if self.places is not None:
            self._say_where(self.places, result)
        return result

    def _say_where(self, places: memoryview, result: Any) -> None:
        for number, tensor in enumerate((*tensors(result), *self.written)[:RESULTS], start=1):
            offset = int(tensor.storage_offset()) * tensor.element_size()
            places[0] = number
            places[2 * number - 1] = tensor.data_ptr()
            places[2 * number] = tensor.untyped_storage().nbytes() - offset

    def clear(self) -> None:
        """Forget the last run, and where its results lay."""
        self.has_run = False
        if self.places is not None:
            self.places[:] = _NOWHERE

    def take(self) -> dict[str, Any]:
        named_results = self.call.named(self.result)
        return dict(zip(named_results, snapshots(list(named_results.values())), strict=True))

    def spot(self, results: Mapping[str, Any], seed: int, number: int) -> Spot:
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


def recorded(
    calls: Sequence[Forward | Backward], content: Content | Gradients | None = None
) -> list[Recorder]:
    """Return a recorder of each call; those that meet new `content` write down their results."""
    if content is None:
        return [Recorder(call) for call in calls]
    places = memoryview(array("Q", [*_NOWHERE] * len(calls)))
    return [Recorder(call, places[number * PLACES :][:PLACES]) for number, call in enumerate(calls)]


#: What one call of a block gave: the block's seed, its set of inputs, and its results.
_Kept = tuple[int, int, Mapping[str, Any]]


class Spotted(Block):
    """A block that runs as the one inside does; results of some calls are judged later."""

    def __init__(
        self,
        inner: Block,
        recorders: Sequence[Recorder],
        content: Content | Gradients | None = None,
        arm: str = "",
        dice: random.Random | None = None,
        rounds: int = 1,
        forward: Spotted | None = None,
    ) -> None:
        """Wrap an arm's block of recorded calls; backwards go over the graphs of a `forward`'s.

        `content` is what calls meet in each run, None: the same in all. If no other process orders
        the blocks, `dice` draw their content and the one to inspect; a run then has `rounds`
        rounds.
        """
        self.engine, self.calls = inner.engine, inner.calls * rounds
        self.not_captured = inner.not_captured
        places = recorders[0].places
        #: The address of what says where the results of the last run's calls lie, 0: nothing.
        self.places = addressof(c_char.from_buffer(places)) if places is not None else 0
        self._inner = inner
        self.case, self._arm = recorders[0].call.case, arm
        self._recorders, self._content = recorders, content
        self._dice = dice or random.SystemRandom()
        self._rounds = rounds
        self._forward = forward
        self._runs = 0
        self._seed, self._number = 0, -1
        self._kept_calls: dict[int, _Kept] = {}
        self._spots: list[Spot] = []

    def run(self) -> float:
        """Run on content of its own drawing; one of all runs is looked at, each as likely."""
        self._runs += 1
        is_looked_at = self._dice.randrange(self._runs) == 0
        times = []
        for _ in range(self._rounds):
            self.write(self._dice.getrandbits(62), is_looked_at=is_looked_at)
            times.append(self.run_written())
        if is_looked_at:
            self._spots.clear()
            self.keep(0, self._dice.randrange(len(self._recorders)))
            self.look()
        return statistics.fmean(times)

    def write(self, seed: int, *, is_looked_at: bool = False) -> None:
        """Write what the next run meets: the content of a seed, or a call's own on a GPU."""
        self._seed, self._number = seed, -1
        if self.engine != "wall":
            forbid_persisting_lines()
        for recorder in self._recorders:
            recorder.clear()
            recorder.call.take_new_tensors()
        if self._content is not None:
            self.release()
            self._content.write(seed, self._arm)
            for recorder in self._recorders:
                recorder.call.restore()
            if self._forward is not None:
                self._follow(self._forward, seed)
        elif is_looked_at:
            place = random.Random(seed).randrange(min(len(self._recorders), self.calls))
            self._number = (self._inner.first + place) % len(self._recorders)
            write_content(self.case, self._recorders[self._number].call, seed)

    def _follow(self, forward: Spotted, seed: int) -> None:
        """Take over the graphs of the forward's block of a seed; run it where nobody has.

        Work that a forward prepares for its backward is then timed with the forward.
        """
        if forward._seed != seed:
            forward.write(seed)
            forward.run_written()
        for recorder, ran in zip(self._recorders, forward._recorders, strict=True):
            _go_back_over(recorder, ran)

    def run_written(self, seconds: float = 0.0) -> float:
        """Run without the garbage collector, as timing loops do; return the time in ms per call.

        With `seconds` the block runs again and again for that time.
        """
        with _without_collector():
            ms = self._inner.run_for(seconds) if seconds else self._inner.run()
        self.queue_full = self._inner.queue_full
        return ms

    def run_on(self, times: int) -> None:
        with _without_collector():
            self._inner.run_on(times)

    def keep(self, place: int, number: int) -> None:
        """Have a call of the last run, drawn after it, judged, not what had this place before."""
        if self._content is None:
            return
        recorder = self._recorders[number]
        results = recorder.take() if recorder.has_run else {}
        self._kept_calls[place] = self._seed, number, results

    def release(self) -> None:
        """Give back the memory of the last run's results; a GPU's graph writes to it again.

        If the other arms meet the same content, answers to it are wiped out before.
        """
        if self._content is None:
            return
        for recorder in self._recorders:
            if not self._content.is_free:
                wipe(recorder.result, recorder.call.live)
            recorder.result = None

    def look(self) -> None:
        """Have what the last run gave for a call's own content be judged."""
        if self._number < 0:
            return
        recorder = self._recorders[self._number]
        # A graph's replay calls nothing; of launches a block may end before all sets had a turn.
        if recorder.has_run or self.engine == "graph":
            self._spots.append(recorder.spot(recorder.take(), self._seed, self._number))

    @property
    def spots(self) -> list[Spot]:
        """The spots to judge; writes to the inputs, and calls once more on each content."""
        return [*self._spots, *(timed for _, timed in map(self._again, self._kept_calls.values()))]

    def spots_with(self, floors: Mapping[str, float]) -> Iterator[tuple[Spot, Mapping[str, float]]]:
        """Yield the spots to judge, and calls that nobody timed, which may only be inexact."""
        yield from ((spot, floors) for spot in self._spots)
        for own, timed in map(self._again, self._kept_calls.values()):
            yield own, {}
            yield timed, floors

    def known_gain(self) -> float:
        """Return how much faster calls are for content that they know; writes to the inputs."""
        changing = [tensor for recorder in self._recorders for tensor in recorder.call.changing]
        seed = self._dice.getrandbits(62)
        in_order = self.case.keeps_order
        return known_content_gain(self._inner, changing, seed, in_order=in_order)

    def _again(self, kept_call: _Kept) -> tuple[Spot, Spot]:
        """Return a call on what the case draws, and a kept one with what a call gives there now."""
        seed, number, results = kept_call
        recorder = self._recorders[number]
        # What knows content as a multiple of its last call's must not find that one there.
        self._write_own(number, seed ^ 1)
        own = replace(recorder.spot({}, seed, number), results=self._results_now(number))
        self._write_timed(number, seed)
        timed = recorder.spot(results, seed, number)
        return own, replace(timed, again=self._results_now(number))

    def _write_own(self, number: int, seed: int) -> None:
        """Write what the case draws under a seed where a call looks."""
        if self._forward is not None:
            self._forward._write_own(number, seed)
        write_content(self.case, self._recorders[number].call, seed)

    def _write_timed(self, number: int, seed: int) -> None:
        """Write what a call met in the block of a seed."""
        assert self._content is not None
        if self._forward is not None:
            self._forward._write_timed(number, seed)
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
    for block in blocks:
        for spot, least in block.spots_with(floors):
            expected = expected_of(block.case, replace(spot, results=spot.again or spot.results))
            if wrong := plainly_wrong(block.case, spot, spot.again, least, expected):
                findings.append(wrong_result(wrong))
                break
    return findings


def known_content(blocks: Sequence[Spotted]) -> list[Finding]:
    return [known_content_finding(gain) for block in blocks if (gain := block.known_gain())]
