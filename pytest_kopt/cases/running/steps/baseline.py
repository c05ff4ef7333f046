"""Asked of the baseline only: whether its cases can tell right from wrong, and their FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import pairs
from pytest_kopt.cases.running.gate_advice import gate_line, least_db
from pytest_kopt.honesty.precision import most_terms
from pytest_kopt.numerics.compare import compare
from pytest_kopt.numerics.gates import default_gate
from pytest_kopt.numerics.nested import fresh_copies
from pytest_kopt.numerics.snr import wide

#: How near the truth a control may come without being a wrong answer.
_NEAR = 1e-6


def controls(checking: Checking) -> None:
    """Refuse a case whose gate lets wrong answers pass."""
    found = [
        (name, ref, out)
        for name, ref, out in pairs(checking.expected, checking.last.kept)
        if isinstance(ref, torch.Tensor) and isinstance(out, torch.Tensor)
    ]
    if not found:
        return
    name, ref, out = found[0]
    gate = checking.case.gate_of(name) or default_gate(out.dtype)
    passing = passing_controls(
        ref, checking.given, out.dtype, lambda control: compare(ref, control, gate).passed
    )
    if passing:
        least = least_db(name, out.dtype, checking.given, checking.expected_of)
        torchs = "" if least is None else f", such as {gate_line({name: least})}"
        checking.invalid = (
            f"the case accepts wrong answers under {gate.describe()}: "
            f"{', '.join(passing)}; make inputs whose result is large compared with the tolerance, "
            f"or give the case a gate of its own{torchs}"
        )


def count_flops(checking: Checking) -> None:
    if checking.case.flops:
        like = checking.first[1].kept
        counted = checking.truth.flops(fresh_copies(checking.given), like)
        checking.counted_flops = counted
        terms = most_terms(checking.given, like.all, counted) if counted else None
        for name, reached in checking.accuracy.items():
            checking.accuracy[name] = replace(reached, terms=terms)


def passing_controls(
    expected: torch.Tensor,
    given: Sequence[Any],
    dtype: torch.dtype,
    passes: Callable[[torch.Tensor], bool],
) -> list[str]:
    """Return the wrong answers that a gate lets pass for an output of `dtype`.

    One that happens to be right, zeros where the reference has zeros, says nothing.
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
