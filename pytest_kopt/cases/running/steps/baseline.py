"""What only a baseline is asked: whether its cases can tell right from wrong, and their FLOPs."""

from __future__ import annotations

import torch

from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import pairs
from pytest_kopt.cases.running.gate_advice import gate_line, least_db
from pytest_kopt.honesty.controls import passing_controls
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.compare import compare
from pytest_kopt.numerics.gates import default_gate
from pytest_kopt.numerics.nested import fresh_copies


def controls(checking: Checking) -> list[Finding]:
    """Refuse a case whose gate lets wrong answers pass."""
    found = [
        (name, ref, out)
        for name, ref, out in pairs(checking.expected, checking.last.kept)
        if isinstance(ref, torch.Tensor) and isinstance(out, torch.Tensor)
    ]
    if not found:
        return []
    name, ref, out = found[0]
    gate = checking.case.gate_of(name) or default_gate(out.dtype)
    passing = passing_controls(
        ref, checking.given, out.dtype, lambda control: compare(ref, control, gate).passed
    )
    if passing:
        least = least_db(name, out.dtype, checking.given, checking.expected_of)
        torchs = "" if least is None else f", such as {gate_line({name: least})}"
        checking.invalid = (
            f"the case takes wrong answers for right under {gate.describe()}: "
            f"{', '.join(passing)}; make inputs whose result is large against the tolerance, "
            f"or give the case a gate of its own{torchs}"
        )
    return []


def count_flops(checking: Checking) -> list[Finding]:
    """Count the reference's FLOPs, where the case declares some."""
    if checking.case.flops:
        like = checking.first[1].kept
        checking.counted_flops = checking.truth.flops(fresh_copies(checking.given), like)
    return []
