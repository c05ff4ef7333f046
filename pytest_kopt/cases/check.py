"""Correctness of a case: out and every gradient against the reference, before anything is timed."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.interpreter import watch_interpreter
from pytest_kopt.cases.result import Check
from pytest_kopt.cases.seeds import derive, seed_everything
from pytest_kopt.cases.traffic import input_dtype, io_bytes
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.compare import Comparison, InvalidReference, compare
from pytest_kopt.numerics.determinism import fresh_copy, tensors


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of checking one case.

    SNRs are in dB; `gradients` maps an input's position to its gradient's SNR. `findings` are
    signs that the kernel serves the check instead of computing. `io_bytes` are the compulsory bytes
    by direction and `dtype` is the inputs', for the roofline.
    """

    check: Check
    diagnosis: str = ""
    out_snr: float = math.nan
    gradients: dict[int, float] = field(default_factory=dict)
    max_abs_error: float = math.nan
    mismatch_share: float = math.nan
    gate: str = ""
    interpreted: bool = False
    findings: tuple[Finding, ...] = ()
    seeds: dict[str, int] = field(default_factory=dict)
    io_bytes: dict[str, int] = field(default_factory=dict)
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """Outputs and gradients of one run on one set of inputs."""

    outputs: list[Any]
    gradients: dict[int, torch.Tensor | None]


def check_case(case: Case, session_seed: int) -> CheckReport:
    """Check the candidate on fresh inputs, then on new content at the same addresses.

    The candidate runs before the reference and on copies of its own, so that neither the
    reference's result nor a changed input can help it.

    Raises BadInput when the case itself cannot be checked (no input requires grad, a dtype without
    a gate, inputs that are no tuple).
    """
    seeds = {purpose: derive(session_seed, case.nodeid, purpose) for purpose in ("check", "again")}
    try:
        given = make_inputs(case, seeds["check"])
        if case.backward and not _leaves(given):
            raise BadInput(
                "backward=True, but no input requires grad",
                where=f"case {case.nodeid}",
                legal="inputs() returning tensors with requires_grad=True",
            )
        used = [fresh_copy(item) for item in given]
        with watch_interpreter() as watch:
            first = _run(case, case.function, used, seeds["check"])
        comparisons = judge(case, first, given, seeds["check"])
        findings: tuple[Finding, ...] = ()
        if all(item.passed for item in comparisons):
            again, findings = _same_address(case, used, first, seeds["again"])
            comparisons = [*comparisons, *again]
        moved = io_bytes(given, first.outputs, first.gradients.values())
    except BadInput:
        raise
    except InvalidReference as error:
        return CheckReport("ERROR", str(error), seeds=seeds)
    except Exception:
        return CheckReport("ERROR", _kernel_traceback(), seeds=seeds)
    report = _report(comparisons, watch.seen, findings, seeds)
    return replace(report, io_bytes=moved, dtype=input_dtype(given))


def check_once(case: Case, seed: int) -> tuple[str, str] | None:
    """Check a case once on fresh inputs: what is wrong, and what the kernel raised ("" each).

    None where the reference cannot judge it.
    """
    given = make_inputs(case, seed)
    raised, run = "", Pass([], {})
    try:
        run = _run(case, case.function, [fresh_copy(item) for item in given], seed)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        comparisons = judge(case, run, given, seed)
    except Exception:
        return None
    return "\n".join(item.diagnosis() for item in comparisons if not item.passed), raised


def make_inputs(case: Case, seed: int) -> tuple[Any, ...]:
    """Return fresh inputs of a case made under a seed."""
    seed_everything(seed)
    given = case.inputs()
    if not isinstance(given, tuple | list):
        raise BadInput(
            f"inputs() returned {type(given).__name__}",
            where=f"case {case.nodeid}",
            legal="a tuple of the function's arguments",
        )
    return tuple(given)


def _run(case: Case, function: Any, given: Sequence[Any], seed: int) -> Pass:
    result = function(*given)
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    leaves = _leaves(given)
    if not case.backward:
        return Pass(outputs, {})
    differentiable = [out for out in tensors(outputs) if out.requires_grad]
    if not differentiable:
        return Pass(outputs, dict.fromkeys(leaves))
    found = torch.autograd.grad(
        differentiable,
        list(leaves.values()),
        [grad_out(out, seed) for out in differentiable],
        allow_unused=True,
    )
    return Pass(outputs, dict(zip(leaves, found, strict=True)))


def grad_out(out: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the incoming gradient of an output: standard normal in float32, then out's dtype.

    Drawn from a generator of its own so that candidate and reference get the same values whatever
    they did to the global one.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    values = torch.randn(out.shape, generator=generator, dtype=torch.float32)
    return values.to(device=out.device, dtype=out.dtype)


def _leaves(given: Sequence[Any]) -> dict[int, torch.Tensor]:
    return {
        i: item
        for i, item in enumerate(given)
        if isinstance(item, torch.Tensor) and item.requires_grad
    }


def judge(case: Case, run: Pass, given: Sequence[Any], seed: int) -> list[Comparison]:
    """Run the reference on the pristine inputs and judge every output and gradient."""
    expected = _reference_pass(case, run, given, seed)
    if len(expected.outputs) != len(run.outputs):
        reason = f"returns {len(run.outputs)} values, the reference {len(expected.outputs)}"
        return [Comparison("out", False, "same number of outputs", reason)]
    several = len(expected.outputs) > 1
    results = [
        compare(ref, out, case.gate, f"out[{i}]" if several else "out")
        for i, (ref, out) in enumerate(zip(expected.outputs, run.outputs, strict=True))
    ]
    for position, ref in expected.gradients.items():
        name = f"grad of input {position}"
        if ref is not None:
            results.append(compare(ref, run.gradients[position], case.gate, name))
    return results


def _reference_pass(case: Case, run: Pass, given: Sequence[Any], seed: int) -> Pass:
    result = case.reference(*given)
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    if not case.backward:
        return Pass(outputs, {})
    pairs = [
        (ref, out)
        for ref, out in zip(outputs, run.outputs, strict=False)
        if isinstance(ref, torch.Tensor) and ref.requires_grad
    ]
    leaves = _leaves(given)
    # The candidate's rounding of grad_out is part of its input, not of its error.
    seeds = [
        grad_out(out if isinstance(out, torch.Tensor) and out.shape == ref.shape else ref, seed).to(
            device=ref.device, dtype=ref.dtype
        )
        for ref, out in pairs
    ]
    found = torch.autograd.grad(
        [ref for ref, _ in pairs], list(leaves.values()), seeds, allow_unused=True
    )
    return Pass(outputs, dict(zip(leaves, found, strict=True)))


def _same_address(
    case: Case, used: Sequence[Any], before: Pass, seed: int
) -> tuple[list[Comparison], tuple[Finding, ...]]:
    """Write new content into the very tensors the candidate has seen and check again."""
    fresh = make_inputs(case, seed)
    kept = [item.detach().clone() for item in tensors(before.outputs)]
    with torch.no_grad():
        for old, new in zip(used, fresh, strict=True):
            if isinstance(old, torch.Tensor) and old.shape == new.shape:
                old.copy_(new)
    run = _run(case, case.function, used, seed)
    comparisons = judge(case, run, fresh, seed)
    if all(item.passed for item in comparisons):
        return comparisons, ()
    repeated = [
        torch.equal(old, new)
        for old, new in zip(kept, tensors(run.outputs), strict=False)
        if old.shape == new.shape
    ]
    if repeated and all(repeated):
        stale = Finding(
            "stale-result",
            "new content at the same addresses gave the old result",
            advice="a cache keyed on id, data_ptr or the call serves no real step: compute it",
            bucket="W2",
        )
        return comparisons, (stale,)
    return comparisons, ()


def _report(
    comparisons: Sequence[Comparison],
    interpreted: bool,
    findings: tuple[Finding, ...],
    seeds: dict[str, int],
) -> CheckReport:
    outs = [item for item in comparisons if item.name.startswith("out")]
    gradients: dict[int, float] = {}
    for item in comparisons:
        if item.name.startswith("grad of input "):
            position = int(item.name.removeprefix("grad of input "))
            gradients[position] = min(item.snr_db, gradients.get(position, math.inf))
    figures = [item.figures for item in outs if item.figures]
    failed = [item for item in comparisons if not item.passed]
    return CheckReport(
        check="FAIL" if failed else "PASS",
        diagnosis="\n".join(item.diagnosis() for item in failed),
        out_snr=_worst(item.snr_db for item in outs),
        gradients=gradients,
        max_abs_error=max((item.max_abs for item in figures), default=math.nan),
        mismatch_share=max((item.mismatch_share for item in figures), default=math.nan),
        gate=outs[0].gate if outs else "",
        interpreted=interpreted,
        findings=findings,
        seeds=seeds,
    )


def _worst(values: Any) -> float:
    found = list(values)
    return math.nan if any(math.isnan(item) for item in found) else min(found, default=math.nan)


def _kernel_traceback() -> str:
    return traceback.format_exc(limit=-8).rstrip()
