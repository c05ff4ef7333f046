"""Whether a case can tell right from wrong; a later round has its baseline's answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pytest_kopt.cases.case import is_floating
from pytest_kopt.cases.running.against_reference import gated, pairs
from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import Pass
from pytest_kopt.cases.running.gate_advice import SLACK_DB, gate_line, proposed, torchs_db
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.precision import narrow_reference
from pytest_kopt.numerics.compare import compare
from pytest_kopt.numerics.gates import Gate, default_gate
from pytest_kopt.numerics.snr import wide

#: How near the truth a control may come without being a wrong answer.
_NEAR = 1e-6
#: The share of elements that two references may round otherwise.
_STEPS = 1e-3
#: A control that fails for so many elements, spread over the whole, fails.
_FEW = 1 << 16


def controls(checking: Checking) -> Iterator[Finding]:
    """Refuse a case that lets wrong answers pass, or whose reference draws numbers of its own."""
    declared, exact = checking.steady(), checking.in_float64()
    pristine, like = checking.pristine, checking.last.copies
    if exact and not _agree(checking, declared, exact):
        yield from narrow_reference()
    for number, (name, ref, out, gate) in enumerate(gated(checking.case, checking.expected, like)):
        if not (isinstance(ref, torch.Tensor) and isinstance(out, torch.Tensor)):
            continue
        gate = gate or default_gate(out.dtype)
        # A result takes after an input by accident; the first one is why the case is there.
        passing = passing_controls(ref, [] if number else pristine, out.dtype, gate)
        reached = torchs_db(name, out.dtype, pristine, checking.expected_of) if passing else 0.0
        # Of what is zero but for rounding no gate can tell anything apart.
        if passing and reached > SLACK_DB:
            least = proposed(reached)
            torchs = "" if least is None else f", such as {gate_line({name: least})}"
            checking.invalid = (
                f"the case accepts wrong answers for {name} under {gate.describe()}: "
                f"{', '.join(passing)}; make inputs whose result is large compared with the "
                f"tolerance, or give the case a gate of its own{torchs}"
            )
            return


def _agree(checking: Checking, declared: Pass, exact: Pass) -> bool:
    """Say whether the declared reference lies within the gates of the one in float64.

    A few elements that were rounded to another step of a quantiser do not count.
    """
    like = checking.last.copies
    results = zip(gated(checking.case, exact, like), pairs(declared, like), strict=True)
    compared = (
        compare(ref, narrow.to(out.dtype), gate, name)
        for (name, ref, out, gate), (_, narrow, _) in results
        if is_floating(ref) and is_floating(out)
    )
    return all(
        comparison.passed
        or (comparison.figures is not None and comparison.figures.mismatch_share < _STEPS)
        for comparison in compared
    )


def passing_controls(
    expected: torch.Tensor, inputs: Sequence[Any], dtype: torch.dtype, gate: Gate
) -> list[str]:
    """Return the wrong answers that a gate lets pass for an output of `dtype`.

    One that happens to be right, zeros where the reference has zeros, says nothing.
    """
    return [
        name
        for name, control in _controls(expected, inputs, dtype)
        if _passes(expected, control, gate) and not _is_right(control, expected)
    ]


def _passes(expected: torch.Tensor, control: torch.Tensor, gate: Gate) -> bool:
    step = max(1, expected.numel() // _FEW)
    ref, out = (tensor.detach().reshape(-1)[::step] for tensor in (expected, control))
    return compare(ref, out, gate).passed and compare(expected, control, gate).passed


def _controls(
    expected: torch.Tensor, inputs: Sequence[Any], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    truth = expected.detach()
    yield "zeros", torch.zeros_like(truth).to(dtype)
    if truth.is_floating_point():
        yield "the answer with the other sign", (-truth).to(dtype)
    if truth.numel() > 1:
        yield "the answer in another order", truth.flatten().roll(1).view(truth.shape).to(dtype)
    for position, value in enumerate(inputs):
        if (
            isinstance(value, torch.Tensor)
            and value.shape == truth.shape
            and not value.is_complex()
        ):
            yield f"a copy of input {position}", value.detach().to(truth.device).to(dtype)


def _is_right(control: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether a control is as near the truth as its dtype allows."""
    truth, answer = wide(expected), wide(control)
    step = torch.finfo(control.dtype).eps if control.dtype.is_floating_point else 0.0
    error = (truth - answer).abs()
    return bool((error <= max(_NEAR, step) * truth.abs()).all())
