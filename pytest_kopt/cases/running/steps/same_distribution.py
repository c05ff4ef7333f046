"""Calls that draw anew on equal content: results have the reference's distribution."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import Pass, make_inputs
from pytest_kopt.numerics.compare import Comparison
from pytest_kopt.numerics.nested import fresh_copies, tensors
from pytest_kopt.numerics.samples import CallFigures, difference, draws_for

#: Calls of the reference that say where its results lie.
_PILOT = 16

Named = dict[str, torch.Tensor]
#: By name of the result and of the figure, one number a call.
Figures = dict[str, dict[str, list[float]]]


def same_distribution(checking: Checking) -> None:
    """Compare many calls of the function with as many of the reference; see `distribution`.

    Raises BadInput where the reference gives one result in every call.
    """
    case, like, seed = checking.case, checking.last, checking.seeds["last"]

    def of_reference(arguments: Sequence[Any]) -> Named:
        return _tensors(checking.truth(arguments, like.live, seed))

    def of_function(arguments: Sequence[Any]) -> Named:
        return _tensors(checking.candidate(arguments, seed).copies)

    def drawn(call: Callable[[Sequence[Any]], Named], purpose: str, number: int) -> Named:
        return call(_arguments(checking, f"{purpose} {number}"))

    pilot = [drawn(of_reference, "pilot", number) for number in range(_PILOT)]
    names = [name for name, out in pilot[0].items() if out.numel()]
    if all(torch.equal(out[name], pilot[0][name]) for out in pilot for name in names):
        raise case.refusal(
            "statistical is declared, and the reference gives one result in every call",
            "inputs() with a torch.Generator, or a seed that is drawn in it: "
            "int(torch.randint(1 << 31, ()))",
        )
    figures = {name: CallFigures([out[name] for out in pilot]) for name in names}
    calls = draws_for(max(pilot[0][name].numel() for name in names))
    gate = case.gate_of("out")
    assert gate is not None and gate.error_rate is not None

    def figures_of(call: Callable[[Sequence[Any]], Named], purpose: str) -> Figures:
        by_call = []
        for number in range(calls):
            out = drawn(call, purpose, number)
            by_call.append({name: figures[name](out[name]) for name in names})
        return {
            name: {figure: [each[name][figure] for each in by_call] for figure in by_call[0][name]}
            for name in names
        }

    expected = figures_of(of_reference, "reference")
    reached = figures_of(of_function, "function")
    for name in names:
        reason = difference(expected[name], reached[name], gate.error_rate / len(names))
        if reason:
            checking.comparisons.append(Comparison(name, False, gate.describe(), reason))
    # Of draws an SNR says nothing.
    checking.facts.accuracy = {
        name: replace(accuracy, snr_db=math.nan)
        for name, accuracy in checking.facts.accuracy.items()
    }


def _arguments(checking: Checking, purpose: str) -> list[Any]:
    """Return inputs of the first content; numbers and generators, which may seed, are drawn anew.

    So is a tensor of one element. torch's global generator follows from the purpose as well.
    """
    digest = hashlib.sha256(f"{checking.seeds['disturb']} {purpose}".encode()).digest()
    fresh = make_inputs(checking.case, int.from_bytes(digest[:8], "big") >> 1)
    pairs = zip(fresh, checking.pristine, strict=True)
    return fresh_copies(
        [first if sum(x.numel() for x in tensors(first)) > 1 else new for new, first in pairs]
    )


def _tensors(of: Pass) -> Named:
    gradients = {f"grad of input {place}": x for place, x in of.gradients.items() if x is not None}
    return {
        name: torch.as_tensor(out).detach()
        for name, out in {**of.outputs, **gradients}.items()
        if isinstance(out, torch.Tensor | int | float)
    }
