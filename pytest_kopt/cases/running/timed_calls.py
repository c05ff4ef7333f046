"""The calls that are timed, and what they work on: content that follows from a block's seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.running.execution import (
    drawn_like,
    grad_out,
    leaves,
    make_inputs,
    results_of,
    roots,
)
from pytest_kopt.cases.seeds import derive
from pytest_kopt.honesty import inputs
from pytest_kopt.honesty.renewal import Renewal
from pytest_kopt.numerics.nested import contents, fresh_copies, tensors


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
        self.leaves = list(leaves(forward.live).values())
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


def begin_content(case: Case, sets: Sequence[Sequence[Any]], renewal: Renewal, seed: int) -> None:
    """Write what the first call of a block meets, but for the renewal before every call.

    A case draws what a renewal does not change (integers, generators).
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
