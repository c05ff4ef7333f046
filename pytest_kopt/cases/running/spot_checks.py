"""Spot checks: results of timed calls, taken at random and judged when the clock has stopped.

A block is timed with the same calls whether it will be looked at or not. The call that is looked at
gets new content where the old one was, behind the back of every counter.
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
from pytest_kopt.numerics.nested import fresh_copies, tensors

#: Takes from an expected result, by its name, the part of it that is judged.
Drawn = Callable[[str, Any], Any]
#: SNR in dB below which a result is plainly wrong where nothing is known of its accuracy.
_WRONG_DB = 5.0


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
    `seed` is that of its block, `number` says which set of inputs it worked on.
    """

    given: Sequence[Any]
    incoming: Mapping[str, torch.Tensor] | None
    results: Mapping[str, Any]
    seed: int = 0
    number: int = 0


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
    """A call whose result can be kept without the call's knowledge, with what it worked on.

    On a GPU results stay in place: replays of a graph write to the memory that the captured call
    returned. On the CPU one call of a block is copied the moment it returns, which the median of
    the block does not notice.
    """

    __slots__ = ("_is_kept_in_place", "_left", "_result", "_spot", "call", "has_run")

    def __init__(self, call: Forward | Backward, device: str) -> None:
        self.call = call
        self._is_kept_in_place = device == "cuda"
        self._left = 0
        self.has_run = False
        self._result: Any = None
        self._spot = Spot([], None, {})

    def wait_for(self, number: int) -> None:
        """Keep the result of the call of this number, counted from 1."""
        self._left = number
        self.has_run = False

    def __call__(self) -> object:
        result = self.call()
        self._left -= 1
        self.has_run = True
        if self._is_kept_in_place:
            self._result = result
        elif self._left == 0:
            self._spot = self._take(result)
        return result

    def spot(self) -> Spot:
        """Return what was kept."""
        return self._take(self._result) if self._is_kept_in_place else self._spot

    def _take(self, result: Any) -> Spot:
        given, incoming, found = self.call.given, self.call.incoming, self.call.named(result)
        return Spot(
            fresh_copies(given),
            None if incoming is None else {name: item.clone() for name, item in incoming.items()},
            dict(zip(found, taken(list(found.values())), strict=True)),
        )


class Spotted(Block):
    """A block that runs as the one inside does, some of its runs on new content and remembered."""

    def __init__(
        self,
        inner: Block,
        case: Case,
        recorders: Sequence[Recorder],
        looks: Looks | None,
        renewal: Renewal | None,
    ) -> None:
        """Wrap a block of the recorders' calls; `renewal` is called before each, None: nothing.

        `looks` are for `run`: where another process orders the blocks it is None.
        """
        self.engine, self.calls = inner.engine, inner.calls
        self.not_captured = inner.not_captured
        self._inner = inner
        self._case = case
        self._recorders = recorders
        self._renewal = renewal
        self._chosen, self._dice = looks.drawn() if looks else (frozenset(), random.SystemRandom())
        self._run = 0
        self.spots: list[Spot] = []

    def run(self) -> float:
        number, self._run = self._run, self._run + 1
        return self.run_on(self._dice.getrandbits(62), is_looked_at=number in self._chosen)

    def run_on(self, seed: int, *, is_looked_at: bool) -> float:
        """Run on content drawn under a seed; keep a result where it is looked at."""
        if self._renewal is not None:
            self._renewal.begin(seed)
        if not is_looked_at:
            return self._undisturbed()
        dice = random.Random(seed)
        number = dice.randrange(min(len(self._recorders), self.calls))
        recorder = self._recorders[number]
        write = new_content(self._case, recorder.call, content_seed(seed))
        place = 1 + dice.randrange(max(1, self.calls // len(self._recorders)))
        if self._renewal is None:
            write()
        else:
            # Calls take turns, and each is renewed before.
            self._renewal.instead((place - 1) * len(self._recorders) + number + 1, write)
        recorder.wait_for(place)
        milliseconds = self._undisturbed()
        # A graph's replay calls nothing; of launches a block may end before all sets had a turn.
        if recorder.has_run or self.engine == "graph":
            self.spots.append(replace(recorder.spot(), seed=seed, number=number))
        return milliseconds

    def plainly_wrong(self, floors: Mapping[str, float]) -> Comparison | None:
        """Judge what was remembered; return a result that is plainly wrong."""
        wrong = (plainly_wrong(self._case, spot, floors) for spot in self.spots)
        return next(filter(None, wrong), None)

    def known_gain(self) -> float:
        """Return how much faster calls are for content that they know; writes to the inputs."""
        changing = [tensor for recorder in self._recorders for tensor in recorder.call.changing]
        return known_content_gain(self._inner, changing, self._dice.getrandbits(62))

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


def _judged(case: Case, spot: Spot, drawn: Drawn) -> list[Comparison]:
    reference = Reference(case)
    nothing: dict[int, torch.Tensor | None] = {}
    if spot.incoming is None:
        found = reference.forward(spot.given, list(spot.results))
        outputs, before = (
            {name: drawn(name, item) for name, item in of.items()}
            for of in (found.outputs, found.before)
        )
        return judge(case, Pass(outputs, nothing, before), Pass(dict(spot.results), nothing))
    names = dict(zip(leaves(spot.given), spot.results, strict=True))
    wanted = reference.backward(spot.given, list(spot.incoming), spot.incoming)
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
