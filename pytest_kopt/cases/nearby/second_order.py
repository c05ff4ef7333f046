"""Whether gradients of a case's gradients are there: a penalty on a gradient needs them.

Of a version that has them they may be approximate, as where a saved statistic counts as constant;
one that gives zero without a word is wrong.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from pytest_kopt.cases.nearby.input_values import PLAINLY_RIGHT_DB
from pytest_kopt.cases.nearby.variant import Drawn, Variant
from pytest_kopt.honesty.inputs import leaves
from pytest_kopt.numerics.gates import snr
from pytest_kopt.numerics.nested import mapped, tensors

#: Of what is summed up before it is differentiated; any will do that versions have in common.
_SIGNS = 20


def twice(drawn: Drawn) -> Iterator[Variant]:
    """Have versions and reference say which gradients of their gradients are not zero."""
    case = drawn.case
    if case.backward:
        changed = replace(
            case,
            reference=_differentiated(case.reference),
            backward=False,
            writes=(),
            owed=(),
            consumes=(*case.consumes, *case.writes),
            gate=snr(PLAINLY_RIGHT_DB),
        )
        yield Variant(changed, of=_differentiated, counts=_depends_on_inputs)


def of_one_result(drawn: Drawn) -> Iterator[Variant]:
    """Have one of several results alone get a gradient: where a loss, say, reads no other."""
    case = drawn.case
    if not case.backward or case.writes:
        return
    results: list[torch.Tensor] = []
    with suppress(Exception):
        results = tensors(case.positional(case.reference)(*case.arguments()))
    differentiable = [number for number, x in enumerate(results) if x.requires_grad]
    for number in differentiable if len(differentiable) > 1 else ():
        alone = functools.partial(_detached_but, number)
        changed = replace(case, reference=alone(case.reference))
        yield Variant(changed, f"result {number}", of=alone)


def _detached_but(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results but one, counted in order, autograd knows nothing of."""

    @functools.wraps(function)
    def detached(*given: Any, **keywords: Any) -> Any:
        places = itertools.count()
        return mapped(
            function(*given, **keywords),
            lambda x: x if next(places) == number else x.detach(),
            (torch.Tensor,),
        )

    return detached


def _depends_on_inputs(given: Any, expected: Any) -> bool:
    return any(bool(each.any()) for each in tensors(expected))


def _differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what says, by 1 or 0, which second derivatives of a function are not zero."""

    @functools.wraps(function)
    def second(*given: Any, **keywords: Any) -> list[torch.Tensor]:
        wanted = list(leaves([*given, *keywords.values()]).values())
        results = [x for x in tensors(function(*given, **keywords)) if x.requires_grad]
        # torch's once_differentiable refuses only where these ask for a gradient as well.
        incoming = [_signs(x).requires_grad_() for x in results]
        first = torch.autograd.grad(results, wanted, incoming, create_graph=True, allow_unused=True)
        followed = [x for x in first if x is not None and x.requires_grad]
        asked = [*wanted, *incoming]
        for x in asked:
            x.grad = None
        # Not by `grad`, which takes a refusal for no dependence.
        torch.autograd.backward(followed, list(map(_signs, followed)))
        return [torch.tensor(float(x.grad is not None and bool(x.grad.any()))) for x in asked]

    return second


def _signs(x: torch.Tensor) -> torch.Tensor:
    """Return -1 and 1 on a tensor's device, the same for all of a shape there, in its dtype."""
    # A host draws and sends as many as a GPU holds in a second and more.
    generator = torch.Generator(x.device).manual_seed(_SIGNS)
    drawn = torch.randint(2, x.shape, generator=generator, device=x.device, dtype=torch.int8)
    return (2 * drawn - 1).to(x)
