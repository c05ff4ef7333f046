"""The calls that are timed, and what they work on: content that follows from a block's seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.running.execution import drawn_like, grad_out, make_inputs, results_of, roots
from pytest_kopt.cases.seeds import derive
from pytest_kopt.honesty import inputs
from pytest_kopt.honesty.renewal import Renewal
from pytest_kopt.numerics.nested import contents, fresh_copies, tensors

#: Bytes of inputs that are drawn anew before every call on the CPU, at most: a millisecond's, and
#: of numbers alone less, since of 512 KiB calls vary by half as much again. Integers, masks and
#: generators cannot be changed in another way.
_MOST_FLOATS, _MOST_DRAWN = 1 << 18, 1 << 20


class Forward:
    """A forward call of one version of a case's function, on arguments of its own."""

    def __init__(self, case: Case, function: Callable[..., Any], held: inputs.Held) -> None:
        self._function = case.positional(function)
        self._case = case
        self._held = held
        self.restore = held.restore
        self.given = held.source
        self.incoming: dict[str, torch.Tensor] | None = None
        self.changing = inputs.activations(self.given, case.weights)

    def __call__(self) -> Any:
        return self._function(*self._held.live)

    def named(self, returned: Any) -> dict[str, Any]:
        return results_of(self._case, returned, self._held.live)


class Backward:
    """One backward over a graph that was built once, on inputs as the forward left them."""

    def __init__(
        self, case: Case, function: Callable[..., Any], given: Sequence[Any], seed: int
    ) -> None:
        """Run the forward; the incoming gradients are drawn under `seed`."""
        forward = inputs.Held(fresh_copies(given), case.rewritten)
        self.given = forward.source
        self.leaves = list(inputs.leaves(forward.live).values())
        returned = case.positional(function)(*forward.live)
        self._outputs = roots(results_of(case, returned, forward.live))
        drawn = [grad_out(out, seed) for out in self._outputs.values()]
        consumed = range(len(drawn)) if case.consumes_incoming else ()
        self._incoming = inputs.Held(drawn, consumed)
        self.changing = self._incoming.source
        self.incoming: dict[str, torch.Tensor] | None = dict(
            zip(self._outputs, self.changing, strict=True)
        )
        self._saved = inputs.Held(forward.live, case.rewritten)
        # torch refuses a backward over memory whose version is another than the forward's.
        self._versions = [
            _unsafe_preserve_version_counter(item)
            for place in case.rewritten
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
        self._saved.restore()
        self._incoming.restore()
        for version in self._versions:
            version.__exit__(None, None, None)

    def named(self, returned: Any) -> dict[str, Any]:
        return {str(place): gradient for place, gradient in enumerate(returned)}


class Redraw:
    """Content that a case draws anew for every call: of what was met before, nothing helps."""

    def __init__(self, case: Case, given: Sequence[Any]) -> None:
        """Write to the activations among `given`."""
        self._case, self._given = case, given
        self._origin = fresh_copies(given)
        self._shapes = [item.shape for item in tensors(given)]
        self._seed = self._calls = 0

    def begin(self, seed: int) -> None:
        """Begin anew, with what was there at first."""
        self._seed, self._calls = seed, 0
        self._write(self._origin)

    def __call__(self) -> None:
        self._calls += 1
        drawn = make_inputs(self._case, derive(self._seed, str(self._calls), "drawn"))
        # Where sizes are drawn as well, half of it would be written.
        if [item.shape for item in tensors(drawn)] == self._shapes:
            self._write(drawn)

    def _write(self, content: Sequence[Any]) -> None:
        inputs.overwrite(self._given, content, self._case.weights, only_activations=True)


def drawing(case: Case, sets: Sequence[Sequence[Any]], seed: int) -> Renewal | Redraw:
    """Return what gives every call on these sets new content, drawn where that takes no time."""
    most = _MOST_FLOATS if _is_free(case, sets) else _MOST_DRAWN
    if len(sets) == 1 and sum(item.nbytes for item in tensors(sets[0])) <= most:
        return Redraw(case, sets[0])
    return scaling(case, sets, seed)


def scaling(case: Case, sets: Sequence[Sequence[Any]], seed: int) -> Renewal:
    """Return what scales the content of these sets for every call, and moves a little of it."""
    content = [item for held in sets for item in inputs.activations(held, case.weights)]
    return Renewal(content, seed, restores=True, in_order=case.keeps_order)


def _is_free(case: Case, sets: Sequence[Sequence[Any]]) -> bool:
    """Say whether nothing in the content says how much there is to do: it is numbers alone."""
    return all(
        isinstance(item, torch.Tensor) and item.dtype in inputs.SCALABLE
        for held in sets
        for place, given in enumerate(held)
        if place not in case.weights
        for item in contents(given)
    )


def begin_renewal(renewal: Renewal | Redraw, seed: int, arm: str) -> None:
    """Have content change as in no other arm's block: its results must be no answers here."""
    renewal.begin(derive(seed, arm, "renewed"))


def begin_content(
    case: Case, sets: Sequence[Sequence[Any]], renewal: Renewal | Redraw, seed: int, arm: str
) -> None:
    """Write what the first call of an arm's block meets, but for the renewal before every call.

    What is no floating-point number (integers, generators) can say how much there is to do: the
    arms get the same.
    """
    is_free = _is_free(case, sets)
    begin_renewal(renewal, seed, arm if is_free or isinstance(renewal, Renewal) else "")
    if len(sets) == 1 and not is_free and isinstance(renewal, Renewal):
        drawn = make_inputs(case, content_seed(seed))
        inputs.overwrite(sets[0], drawn, case.weights, only_activations=True)


def content_seed(seed: int) -> int:
    return derive(seed, "", "looked at")


def write_content(case: Case, call: Forward | Backward, seed: int) -> None:
    """Write content as the case draws it where a call looks, by the seed of its block."""
    if call.incoming is not None:
        write_gradients(call.changing, seed)
        return
    drawn = make_inputs(case, content_seed(seed))
    inputs.overwrite(call.given, drawn, case.weights, only_activations=True)


def write_gradients(incoming: Sequence[torch.Tensor], seed: int) -> None:
    """Write incoming gradients, drawn where the first of them lies."""
    generator = torch.Generator(incoming[0].device).manual_seed(content_seed(seed))
    for item in incoming:
        item.data.copy_(drawn_like(item, generator))
