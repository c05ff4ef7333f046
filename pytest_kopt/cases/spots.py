"""Spot checks: results of timed calls, taken at random and judged when the clock has stopped.

A block is timed with the same calls whether it will be looked at or not. Before a block that will
be, new content is written where the old one was, behind the back of every counter.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.passes import Pass, Reference, judge, leaves, make_inputs
from pytest_kopt.honesty import inputs
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.outputs import taken
from pytest_kopt.honesty.precision import Accuracy
from pytest_kopt.measure.engine import Block
from pytest_kopt.numerics.compare import Comparison
from pytest_kopt.numerics.determinism import fresh_copy, tensors

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


class Recorder:
    """A call whose result can be kept without the call's knowledge.

    On a GPU results stay in place: replays of a graph write to the memory that the captured call
    returned. On the CPU one call of a block is copied the moment it returns, which the median of
    the block does not notice.
    """

    __slots__ = ("_call", "_is_kept_in_place", "_left", "result")

    def __init__(self, call: Callable[[], Any], device: str) -> None:
        self._call = call
        self._is_kept_in_place = device == "cuda"
        self._left = 0
        self.result: list[Any] = []

    def wait_for(self, number: int) -> None:
        """Keep the result of the call of this number, counted from 1."""
        self._left = number

    def __call__(self) -> object:
        result = self._call()
        self._left -= 1
        if self._is_kept_in_place:
            self.result = _as_list(result)
        elif self._left == 0:
            self.result = taken(_as_list(result))
        return result


class Backward:
    """One backward over a graph that was built once, on inputs of its own."""

    def __init__(self, function: Callable[..., Any], given: Sequence[Any], seeds: Any) -> None:
        """Run the forward; `seeds` makes the incoming gradient of an output."""
        self.given = [fresh_copy(item) for item in given]
        self._outputs = [out for out in tensors(function(*self.given)) if out.requires_grad]
        self.leaves = list(leaves(self.given).values())
        self.incoming = [seeds(out) for out in self._outputs]

    def __call__(self) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = torch.autograd.grad(
            self._outputs, self.leaves, self.incoming, retain_graph=True, allow_unused=True
        )
        return found


@dataclass(frozen=True, slots=True)
class _Spot:
    content: list[Any]
    incoming: list[torch.Tensor] | None
    results: list[Any]


class Spotted(Block):
    """A block that runs as the one inside does, some of its runs on new content and remembered."""

    def __init__(
        self,
        inner: Block,
        case: Case,
        recorders: Sequence[Recorder],
        contents: Sequence[Sequence[Any] | Backward],
        looks: Looks,
    ) -> None:
        """Wrap a block of the recorders' calls; `contents` are what those work on."""
        self.engine, self.calls = inner.engine, inner.calls
        self._inner = inner
        self._case = case
        self._recorders = recorders
        self._contents = contents
        self._chosen, self._dice = looks.drawn()
        self._run = 0
        self._spots: list[_Spot] = []

    def run(self) -> float:
        number, self._run = self._run, self._run + 1
        if number not in self._chosen:
            return self._undisturbed()
        place = self._dice.randrange(len(self._recorders))
        recorder, content = self._recorders[place], self._contents[place]
        self._renew(content)
        recorder.wait_for(1 + self._dice.randrange(max(1, self.calls // len(self._recorders))))
        milliseconds = self._undisturbed()
        given = content.given if isinstance(content, Backward) else content
        incoming = content.incoming if isinstance(content, Backward) else None
        self._spots.append(
            _Spot(
                [fresh_copy(item) for item in given],
                None if incoming is None else [item.clone() for item in incoming],
                taken(recorder.result),
            )
        )
        return milliseconds

    def findings(self, floors: Mapping[str, float]) -> list[Finding]:
        """Judge what was remembered.

        Only a result that is plainly wrong counts, one below its floor (an SNR in dB by name of the
        result): the gate itself was asked in the check.
        """
        for spot in self._spots:
            for item in self._judged(spot):
                if not item.passed and _is_plainly_wrong(item, floors):
                    return [
                        Finding(
                            "timed-result",
                            f"a timed call returned a wrong result: {item.name} {item.reason}, "
                            f"SNR {item.snr_db:.1f} dB",
                            advice="a call that is timed does the work that a checked one does",
                            bucket="W2",
                        )
                    ]
        return []

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

    def _renew(self, content: Sequence[Any] | Backward) -> None:
        seed = self._dice.getrandbits(62)
        if isinstance(content, Backward):
            generator = torch.Generator().manual_seed(seed)
            for incoming in content.incoming:
                fresh = torch.randn(incoming.shape, generator=generator)
                incoming.data.copy_(fresh)
            return
        fresh_inputs = make_inputs(self._case, seed)
        inputs.overwrite(content, fresh_inputs, self._case.weights, only_activations=True)

    def _judged(self, spot: _Spot) -> list[Comparison]:
        reference = Reference(self._case)
        nothing: dict[int, torch.Tensor | None] = {}
        if spot.incoming is None:
            expected = reference.forward(spot.content)
            return judge(self._case, Pass(expected, nothing), Pass(spot.results, nothing))
        wanted = reference.backward(spot.content, spot.incoming)
        positions = leaves(spot.content)
        gradients = dict(zip(positions, spot.results, strict=True))
        return judge(self._case, Pass([], wanted), Pass([], gradients))


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _is_plainly_wrong(item: Comparison, floors: Mapping[str, float]) -> bool:
    return not item.snr_db >= floors.get(item.name, _WRONG_DB)


def floors(accuracy: Mapping[str, Accuracy], slack_db: float) -> dict[str, float]:
    """Return the SNR in dB, by name of the result, that lies so far below a known accuracy."""
    return {
        name: min(found.snr_db, found.rounding_db) - slack_db for name, found in accuracy.items()
    }
