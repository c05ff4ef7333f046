"""Spot checks: results of timed calls, taken at random and judged when the clock has stopped.

On the CPU a result of every block is kept, of whichever call, and which blocks are judged is said
afterwards. On a GPU a block is timed with the same calls whether it will be looked at or not; then
a call gets new content where the old one was, behind the back of every counter.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.running.execution import (
    Pass,
    drawn_like,
    judge,
    leaves,
    make_inputs,
    results,
    results_of,
    roots,
)
from pytest_kopt.cases.running.reference import Reference
from pytest_kopt.cases.seeds import derive
from pytest_kopt.honesty import inputs
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.outputs import taken
from pytest_kopt.honesty.renewal import Renewal
from pytest_kopt.honesty.reuse import known_content_gain, reuse_finding
from pytest_kopt.measure.engine import Block
from pytest_kopt.numerics.compare import Comparison
from pytest_kopt.numerics.nested import contents, fresh_copies, tensors

#: Takes from an expected result, by its name, the part of it that is judged.
Drawn = Callable[[str, Any], Any]
#: SNR in dB below which a result is plainly wrong where nothing is known of its accuracy.
_WRONG_DB = 5.0
#: How far below its SNR on the case's own content, in dB, a result that misses its gate may lie on
#: timed content, and from where on that SNR says no more.
_BELOW_OWN_DB, _EXACT_DB = 10.0, 60.0


@dataclass(frozen=True, slots=True)
class Looks:
    """Which runs of a block are looked at: `count` of the first `runs`, drawn under a secret seed.

    Nothing that the kernel can see tells them from the others.
    """

    runs: int
    count: int
    seed: int

    def drawn(self) -> tuple[frozenset[int], random.Random]:
        """Return the numbers of the runs, and the dice for everything else about them."""
        dice = random.Random(self.seed)
        return frozenset(dice.sample(range(self.runs), self.count)), dice


@dataclass(frozen=True, slots=True)
class Spot:
    """What a call worked on and what it gave, by name.

    A backward has incoming gradients by name of the output, and its gradients in order as results.
    `seed` is that of its block, `number` says which set of inputs it worked on, `call` which call
    of the block it was (0: one on content of its own). `again` is what a call gave on the same
    content after the blocks, `own` a call then on what the case draws.
    """

    given: Sequence[Any]
    incoming: Mapping[str, torch.Tensor] | None
    results: Mapping[str, Any]
    seed: int = 0
    number: int = 0
    call: int = 0
    again: Mapping[str, Any] | None = None
    own: Spot | None = None


class Forward:
    """A forward call on arguments of its own, of which those at `weights` stay as they are.

    The case, where there is one, says which of them hold results after it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        held: inputs.Held,
        weights: Container[int],
        case: Case | None = None,
    ) -> None:
        self._function = function
        self._case = case
        self._held = held
        self.restore = held.restore
        self.given = held.source
        self.incoming: dict[str, torch.Tensor] | None = None
        self.changing = inputs.activations(self.given, weights)

    def __call__(self) -> Any:
        return self._function(*self._held.live)

    def named(self, returned: Any) -> dict[str, Any]:
        """Return what a call gave."""
        return _results(self._case, returned, self._held.live)


def _results(case: Case | None, returned: Any, given: Sequence[Any]) -> dict[str, Any]:
    return results_of(case, returned, given) if case else results(returned, given, ())


class Backward:
    """One backward over a graph that was built once, on inputs of its own.

    It finds what it writes over as the forward left it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        given: Sequence[Any],
        seeds: Any,
        case: Case | None = None,
    ) -> None:
        """Run the forward; `seeds` makes the incoming gradient of an output.

        Without a case nothing is written over.
        """
        rewritten = case.rewritten if case else frozenset[int]()
        forward = inputs.Held(fresh_copies(given), rewritten)
        self.given = forward.source
        self.leaves = list(leaves(forward.live).values())
        self._outputs = roots(_results(case, function(*forward.live), forward.live))
        drawn = [seeds(out) for out in self._outputs.values()]
        consumed = range(len(drawn)) if case and case.consumes_incoming else ()
        self._incoming = inputs.Held(drawn, consumed)
        self.changing = self._incoming.source
        self.incoming: dict[str, torch.Tensor] | None = dict(
            zip(self._outputs, self.changing, strict=True)
        )
        self._saved = inputs.Held(forward.live, rewritten)
        # torch refuses a backward over memory whose version is another than the forward's.
        self._versions = [
            _unsafe_preserve_version_counter(item)
            for place in rewritten
            for item in tensors(forward.live[place])
        ]

    def __call__(self) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = torch.autograd.grad(
            list(self._outputs.values()),
            self.leaves,
            self._incoming.live,
            retain_graph=True,
            allow_unused=True,
        )
        return found

    def restore(self) -> None:
        """Bring what a call has to find."""
        self._saved.restore()
        self._incoming.restore()
        for version in self._versions:
            version.__exit__(None, None, None)

    def named(self, returned: Any) -> dict[str, Any]:
        """Return the gradients."""
        return {str(place): gradient for place, gradient in enumerate(returned)}


class Recorder:
    """A call whose last result can be taken without the call's knowledge.

    A graph's replays write to the memory that the captured call returned.
    """

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
        """Return a copy of what the last call gave, by name."""
        found = self.call.named(self.result)
        return dict(zip(found, taken(list(found.values())), strict=True))

    def spot(self, results: Mapping[str, Any], seed: int, number: int, call: int = 0) -> Spot:
        """Return results with a copy of what the call finds now."""
        incoming = self.call.incoming
        return Spot(
            fresh_copies(self.call.given),
            None if incoming is None else {name: item.clone() for name, item in incoming.items()},
            results,
            seed,
            number,
            call,
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    """What one call of a block gave: the `call`-th of the block with this seed."""

    seed: int
    call: int
    results: Mapping[str, Any]


class Keeper:
    """Stands in front of every call on the CPU, and keeps the result of one call of each block.

    Whether a result is kept is drawn, untimed, when its call has returned: until then nothing in
    the process tells it from the others.
    """

    def __init__(self, recorders: Sequence[Recorder], before: Callable[[], object]) -> None:
        self._recorders = recorders
        self._before = before
        self._dice = random.SystemRandom()
        self._count, self._is_on = 0, False
        self._kept: tuple[int, dict[str, Any]] = (0, {})

    def begin(self) -> None:
        """Begin a block."""
        for recorder in self._recorders:
            recorder.has_run, recorder.result = False, None
        self._count, self._is_on = 0, True

    def end(self, seed: int) -> _Kept:
        """End a block; return what was kept of it."""
        self._settle()
        self._is_on = False
        (call, results), self._kept = self._kept, (0, {})
        return _Kept(seed, call, results)

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
        looks: Looks | None,
        renewal: Renewal | None,
        keeper: Keeper | None = None,
    ) -> None:
        """Wrap a block of the recorders' calls; `renewal` is called before each, None: nothing.

        A `keeper` belongs to a renewal. `looks` are for `run`: where another process orders the
        blocks it is None.
        """
        self.engine, self.calls = inner.engine, inner.calls
        self.not_captured = inner.not_captured
        self._inner = inner
        self._case = case
        self._recorders = recorders
        self._renewal = renewal
        self._keeper = keeper
        self._chosen, self._dice = looks.drawn() if looks else (frozenset(), random.SystemRandom())
        self._run = 0
        self._last: _Kept | None = None
        self._kept: dict[int, _Kept] = {}
        self._spots: list[Spot] = []

    def run(self) -> float:
        number, self._run = self._run, self._run + 1
        is_looked_at = number in self._chosen
        milliseconds = self.run_on(self._dice.getrandbits(62), is_looked_at=is_looked_at)
        if is_looked_at:
            self.keep(number)
        return milliseconds

    def run_on(self, seed: int, *, is_looked_at: bool = False) -> float:
        """Run on content drawn under a seed.

        On the CPU a result of every block may be kept afterwards (`keep`); on a GPU, of one that is
        looked at, a call gets content of its own, and its result is judged.
        """
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
        return known_content_gain(self._inner, changing, self._dice.getrandbits(62))

    def _on_new_content(self, seed: int) -> float:
        number = random.Random(seed).randrange(min(len(self._recorders), self.calls))
        recorder = self._recorders[number]
        new_content(self._case, recorder.call, content_seed(seed))()
        recorder.has_run = False
        milliseconds = self._undisturbed()
        # A graph's replay calls nothing; of launches a block may end before all sets had a turn.
        if recorder.has_run or self.engine == "graph":
            self._spots.append(recorder.spot(recorder.take(), seed, number))
        return milliseconds

    def _begin(self, seed: int) -> None:
        assert self._renewal is not None
        forward = [r.call.given for r in self._recorders if r.call.incoming is None]
        begin_content(self._case, forward, self._renewal, seed)

    def _spot(self, kept: _Kept) -> Spot:
        assert self._renewal is not None
        number = (kept.call - 1) % len(self._recorders)
        recorder = self._recorders[number]
        self._begin(kept.seed)
        for _ in range(kept.call):
            self._renewal()
        spot = recorder.spot(kept.results, kept.seed, number, kept.call)
        again = _results_now(recorder)
        new_content(self._case, recorder.call, content_seed(kept.seed))()
        own = recorder.spot({}, kept.seed, number)
        return replace(spot, again=again, own=replace(own, results=_results_now(recorder)))

    def _undisturbed(self) -> float:
        """Run the block without the garbage collector, as timing loops do, looked at or not."""
        was_on = gc.isenabled()
        gc.disable()
        try:
            milliseconds = self._inner.run()
        finally:
            if was_on:
                gc.enable()
        self.queue_full = self._inner.queue_full
        return milliseconds


def _results_now(recorder: Recorder) -> Mapping[str, Any]:
    """Call once more; return what that gave, nothing where it raised."""
    recorder.call.restore()
    try:
        recorder()
    except Exception:
        return {}
    return recorder.take()


def begin_content(case: Case, sets: Sequence[Sequence[Any]], renewal: Renewal, seed: int) -> None:
    """Write what the first call of a block meets, but for the renewal before every call.

    Where a renewal does not change all that is content (integers, generators), the case draws it.
    """
    renewal.begin(seed)
    if len(sets) == 1 and not all(
        isinstance(item, torch.Tensor) and item.dtype in inputs.SCALABLE
        for place, held in enumerate(sets[0])
        if place not in case.weights
        for item in contents(held)
    ):
        drawn = make_inputs(case, content_seed(seed))
        inputs.overwrite(sets[0], drawn, case.weights, only_activations=True)


def content_seed(seed: int) -> int:
    """Return the seed of what a call that is looked at meets, by that of its block."""
    return derive(seed, "", "looked at")


def new_content(case: Case, call: Forward | Backward, seed: int) -> Callable[[], None]:
    """Draw content as the case draws it; return what writes it where a call looks."""
    if call.incoming is None:
        given, drawn = call.given, make_inputs(case, seed)
        return lambda: inputs.overwrite(given, drawn, case.weights, only_activations=True)
    pairs = [*zip(call.changing, drawn_gradients(call.changing, seed), strict=True)]

    def write() -> None:
        for old, new in pairs:
            old.data.copy_(new)

    return write


def drawn_gradients(like: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Return incoming gradients like others, drawn where the first of these lies."""
    generator = torch.Generator(like[0].device).manual_seed(seed)
    return [drawn_like(item, generator) for item in like]


def plainly_wrong(
    case: Case, spot: Spot, floors: Mapping[str, float], drawn: Drawn = lambda _, item: item
) -> Comparison | None:
    """Return a result that is plainly wrong: below its floor, an SNR in dB by name of the result.

    The gate itself was asked in the check. `drawn` takes from an expected result, by the name of
    what was given for it, the part of it that the spot has.
    """
    return next(
        (
            item
            for item in _judged(case, spot, drawn)
            if not item.passed and not item.snr_db >= floors.get(item.name, _WRONG_DB)
        ),
        None,
    )


def whole_look(
    case: Case, spot: Spot, floors: Mapping[str, float], drawn: Drawn = lambda _, item: item
) -> tuple[Comparison | None, Mapping[str, float] | None]:
    """Judge a call and those after the blocks; return what is plainly wrong.

    Blocks meet content that is like the content before: an old answer is a few percent off. So
    where a result misses its gate it may not lie far below what the function reaches on the
    content that the case draws. Where it is wrong there only, timed or not, the floors that it
    misses are returned as well: no test has said that the kernel can work with scaled content.
    """
    if spot.own is None or spot.again is None:
        return plainly_wrong(case, spot, floors, drawn), None
    if wrong := plainly_wrong(case, spot.own, floors, drawn):
        return wrong, None
    reached = {item.name: item.snr_db for item in _judged(case, spot.own, drawn)}
    near = {
        name: max(floors.get(name, _WRONG_DB), min(snr_db, _EXACT_DB) - _BELOW_OWN_DB)
        for name, snr_db in reached.items()
        if getattr(spot.own.results.get(name), "is_floating_point", lambda: True)()
    }
    floors = {**floors, **near}
    wrong = plainly_wrong(case, spot, floors, drawn)
    again = replace(spot, results=spot.again)
    if wrong is None or plainly_wrong(case, again, floors, drawn) is None:
        return wrong, None
    return wrong, floors


def _judged(case: Case, spot: Spot, drawn: Drawn) -> list[Comparison]:
    reference, given = Reference(case), fresh_copies(spot.given)
    nothing: dict[int, torch.Tensor | None] = {}
    if spot.incoming is None:
        found = reference.forward(given, list(spot.results))
        outputs, before = (
            {name: drawn(name, item) for name, item in of.items()}
            for of in (found.outputs, found.before)
        )
        return judge(case, Pass(outputs, nothing, before), Pass(dict(spot.results), nothing))
    positions = leaves(given)
    if len(spot.results) != len(positions):
        return [Comparison("grad", False, "a gradient of each input", "gives others")]
    names = dict(zip(positions, spot.results, strict=True))
    wanted = reference.backward(given, list(spot.incoming), spot.incoming)
    expected = {place: drawn(names[place], item) for place, item in wanted.items()}
    gradients = {place: spot.results[name] for place, name in names.items()}
    return judge(case, Pass({}, expected), Pass({}, gradients))


def wrong_results(blocks: Sequence[Spotted], floors: Mapping[str, float]) -> list[Finding]:
    """Return a finding for each block with a timed call whose result was plainly wrong."""
    return [wrong_result(item) for block in blocks if (item := block.plainly_wrong(floors))]


def wrong_result(item: Comparison) -> Finding:
    """Return the finding about a timed call's result."""
    return Finding(
        "timed-result",
        f"wrong in a timed block, on content that it had not seen: {item.name} {item.reason}, "
        f"SNR {item.snr_db:.1f} dB",
        advice="do the same work in timed calls as in checked ones",
        bucket="W2",
    )


def known_content(blocks: Sequence[Spotted]) -> list[Finding]:
    """Return a finding for each block whose calls are only fast for content that they know."""
    return [reuse_finding([gain]) for block in blocks if (gain := block.known_gain())]


def floors(accuracy: Mapping[str, Accuracy], slack_db: float) -> dict[str, float]:
    """Return the SNR in dB, by name of the result, that lies so far below a known accuracy."""
    return {
        name: min(found.snr_db, found.rounding_db) - slack_db for name, found in accuracy.items()
    }
