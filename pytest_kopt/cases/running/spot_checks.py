"""Spot checks: results of timed calls, taken at random and judged when the clock has stopped.

On the CPU a result of every block is kept, of whichever call, and which blocks are judged is said
afterwards. On a GPU a block is timed with the same calls whether it will be looked at or not; then
a call gets new content where the old one was, behind the back of every counter.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.running.execution import HOOKED
from pytest_kopt.cases.running.looks import Spot, whole_look, wrong_result
from pytest_kopt.cases.running.timed_calls import (
    Backward,
    Forward,
    Redraw,
    begin_content,
    write_content,
)
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.outputs import taken
from pytest_kopt.honesty.renewal import Renewal
from pytest_kopt.honesty.reuse import known_content_gain, reuse_finding
from pytest_kopt.measure.engine import Block
from pytest_kopt.numerics.compare import Comparison
from pytest_kopt.numerics.nested import fresh_copies


class Recorder:
    """A call whose last result can be taken without its knowledge; replays write to that memory."""

    __slots__ = ("call", "has_run", "result")

    def __init__(self, call: Forward | Backward) -> None:
        self.call = call
        self.has_run = False
        self.result: Any = None

    def __call__(self) -> object:
        result = self.result = self.call()
        self.has_run = True
        return result

    def take(self) -> dict[str, Any]:
        found = self.call.named(self.result)
        return dict(zip(found, taken(list(found.values())), strict=True))

    def spot(self, results: Mapping[str, Any], seed: int, number: int, call: int = 0) -> Spot:
        incoming = self.call.incoming
        return Spot(
            fresh_copies(self.call.given),
            None if incoming is None else {name: item.clone() for name, item in incoming.items()},
            results,
            seed,
            number,
            call,
        )


#: What one call of a block gave: the block's seed, which of its calls it was, and its results.
_Kept = tuple[int, int, Mapping[str, Any]]


class Keeper:
    """Stands in front of every call on the CPU, and keeps the result of one call of each block.

    Which is drawn, untimed, when the call has returned: nothing tells it from the others before.
    """

    def __init__(self, recorders: Sequence[Recorder], before: Callable[[], object]) -> None:
        self._recorders = recorders
        self._before = before
        self._dice = random.SystemRandom()
        self._count, self._is_on = 0, False
        self._kept: tuple[int, dict[str, Any]] = (0, {})

    def begin(self) -> None:
        for recorder in self._recorders:
            recorder.has_run, recorder.result = False, None
        self._count, self._is_on = 0, True

    def end(self, seed: int) -> _Kept:
        self._settle()
        self._is_on = False
        kept, self._kept = self._kept, (0, {})
        return seed, *kept

    def __call__(self) -> None:
        self._settle()
        self._before()

    def _settle(self) -> None:
        recorder = self._recorders[self._count % len(self._recorders)]
        if not (self._is_on and recorder.has_run):
            return
        self._count += 1
        if self._dice.randrange(self._count) == 0:
            self._kept = self._count, recorder.take()
        recorder.has_run, recorder.result = False, None


class Spotted(Block):
    """A block that runs as the one inside does; results of some calls are judged later."""

    def __init__(
        self,
        inner: Block,
        case: Case,
        recorders: Sequence[Recorder],
        renewal: Renewal | Redraw | None,
        keeper: Keeper | None = None,
        dice: random.Random | None = None,
        runs: int = 0,
        arm: str = "",
    ) -> None:
        """Wrap a block of an arm's calls; `renewal` is called before each, None: nothing.

        A `keeper` belongs to a renewal. Of the first `runs` one is looked at, drawn by secret
        `dice`: nothing that the kernel can see tells it from the others. Where another process
        orders the blocks, that says which are.
        """
        self.engine, self.calls = inner.engine, inner.calls
        self.not_captured = inner.not_captured
        self._inner = inner
        self._case = case
        self._arm = arm
        self._recorders = recorders
        self._renewal = renewal
        self._keeper = keeper
        self._dice = dice or random.SystemRandom()
        # Counted down to the run that is looked at.
        self._left = self._dice.randrange(runs) if runs else -1
        self._last: _Kept | None = None
        self._kept: dict[int, _Kept] = {}
        self._spots: list[Spot] = []

    def run(self) -> float:
        is_looked_at, self._left = self._left == 0, self._left - 1
        milliseconds = self.run_on(self._dice.getrandbits(62), is_looked_at=is_looked_at)
        if is_looked_at:
            self.keep(0)
        return milliseconds

    def run_on(self, seed: int, *, is_looked_at: bool = False) -> float:
        """Run on content drawn under a seed; on a GPU a call that is looked at gets its own."""
        if self._keeper is None:
            return self._on_new_content(seed) if is_looked_at else self._undisturbed()
        self._begin(seed)
        self._keeper.begin()
        milliseconds = self._undisturbed()
        self._last = self._keeper.end(seed)
        return milliseconds

    def keep(self, place: int) -> None:
        """Have what is left of the last block be judged, and not what had this place before."""
        if self._last is not None:
            self._kept[place] = self._last

    @property
    def spots(self) -> list[Spot]:
        """What is to be judged; writes to the inputs, and calls once more on each content."""
        return [*self._spots, *map(self._spot, self._kept.values())]

    def plainly_wrong(self, floors: Mapping[str, float]) -> Comparison | None:
        """Judge what was kept; return a result that is plainly wrong."""
        for spot in self.spots:
            wrong, beyond = whole_look(self._case, spot, floors)
            if wrong is not None and beyond is None:
                return wrong
        return None

    def known_gain(self) -> float:
        """Return how much faster calls are for content that they know; writes to the inputs."""
        changing = [tensor for recorder in self._recorders for tensor in recorder.call.changing]
        seed = self._dice.getrandbits(62)
        in_order = self._case.keeps_order
        return known_content_gain(self._inner, changing, seed, in_order=in_order)

    def _on_new_content(self, seed: int) -> float:
        number = random.Random(seed).randrange(min(len(self._recorders), self.calls))
        recorder = self._recorders[number]
        write_content(self._case, recorder.call, seed)
        recorder.has_run = False
        milliseconds = self._undisturbed()
        # A graph's replay calls nothing; of launches a block may end before all sets had a turn.
        if recorder.has_run or self.engine == "graph":
            self._spots.append(recorder.spot(recorder.take(), seed, number))
        return milliseconds

    def _begin(self, seed: int) -> None:
        assert self._renewal is not None
        forward = [r.call.given for r in self._recorders if r.call.incoming is None]
        begin_content(self._case, forward, self._renewal, seed, self._arm)

    def _spot(self, kept: _Kept) -> Spot:
        assert self._renewal is not None
        seed, call, results = kept
        number = (call - 1) % len(self._recorders)
        recorder = self._recorders[number]
        # What knows content as a multiple of its last call's must not find that one there.
        write_content(self._case, recorder.call, seed ^ 1)
        _results_now(recorder)
        self._begin(seed)
        for _ in range(call):
            self._renewal()
        spot = recorder.spot(results, seed, number, call)
        again = _results_now(recorder)
        write_content(self._case, recorder.call, seed)
        own = recorder.spot({}, seed, number)
        return replace(spot, again=again, own=replace(own, results=_results_now(recorder)))

    def _undisturbed(self) -> float:
        """Run the block without the garbage collector, as timing loops do, looked at or not."""
        was_on = gc.isenabled()
        gc.disable()
        try:
            return self._inner.run()
        finally:
            if was_on:
                gc.enable()
            inner = self._inner
            self.queue_full, self.between = inner.queue_full, inner.between
            self.is_hooked = inner.is_hooked


def _results_now(recorder: Recorder) -> Mapping[str, Any]:
    """Call once more; return what that gave, nothing where it raised."""
    recorder.call.restore()
    try:
        recorder()
    except Exception:
        return {}
    return recorder.take()


def wrong_results(blocks: Sequence[Spotted], floors: Mapping[str, float]) -> list[Finding]:
    return [wrong_result(item) for block in blocks if (item := block.plainly_wrong(floors))]


def hooked(blocks: Sequence[Spotted]) -> list[Finding]:
    return [HOOKED for block in blocks if block.is_hooked][:1]


def known_content(blocks: Sequence[Spotted]) -> list[Finding]:
    return [reuse_finding([gain]) for block in blocks if (gain := block.known_gain())]
