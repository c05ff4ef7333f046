"""Negative controls: answers that a case's own gate must refuse, or the case checks nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pytest_kopt.numerics.snr import wide

#: How near the truth a control may come without being a wrong answer.
_NEAR = 1e-6


def passing_controls(
    expected: torch.Tensor,
    given: Sequence[Any],
    dtype: torch.dtype,
    passes: Callable[[torch.Tensor], bool],
) -> list[str]:
    """Return the wrong answers that a gate lets pass for an output of `dtype`.

    `expected` is the reference's output. A control that happens to be right (zeros where the answer
    is zero, the input where nothing has to change) says nothing and is left out.
    """
    return [
        name
        for name, control in _controls(expected, given, dtype)
        if not _is_right(control, expected) and passes(control)
    ]


def _controls(
    expected: torch.Tensor, given: Sequence[Any], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    truth = expected.detach()
    yield "zeros", torch.zeros_like(truth).to(dtype)
    if truth.numel() > 1:
        yield "the answer in another order", truth.flatten().roll(1).view(truth.shape).to(dtype)
    for position, item in enumerate(given):
        if isinstance(item, torch.Tensor) and item.shape == truth.shape and not item.is_complex():
            yield f"a copy of input {position}", item.detach().to(truth.device).to(dtype)


def _is_right(control: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether a control is as near the truth as its dtype allows."""
    truth, answer = wide(expected), wide(control)
    step = torch.finfo(control.dtype).eps if control.dtype.is_floating_point else 0.0
    error = (truth - answer).abs()
    return bool((error <= max(_NEAR, step) * truth.abs()).all())
