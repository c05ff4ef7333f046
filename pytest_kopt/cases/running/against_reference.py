"""A run of a kernel against its reference: what is compared, and by which tolerance.

If the tolerance of a dtype cannot tell right from wrong, kopt derives the gate from what torch
reaches in that dtype. A result outside its gate gets advice: whether gate or kernel is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from pytest_kopt.cases.case import RETURNED, Case, is_floating
from pytest_kopt.cases.nearby.variant import signs
from pytest_kopt.cases.order import Bench
from pytest_kopt.cases.running.execution import (
    CandidateFunction,
    ComputingIn,
    Pass,
    is_float,
    is_shaped,
    make_inputs,
    nans,
)
from pytest_kopt.cases.running.reference import Reference
from pytest_kopt.honesty.inputs import SCALABLE
from pytest_kopt.honesty.outputs import FEW, least_exact
from pytest_kopt.numerics.compare import Comparison, compare, compute_snr, wide
from pytest_kopt.numerics.gates import Gate, default_gate, relative_db, snr
from pytest_kopt.numerics.nested import bits, differing_rows, fresh_copies, mapped

#: Of a larger input only the rows that were written to are compared: the rest is memory alone.
_LARGE = 1 << 20
#: Gives the reference's results in float64, perhaps on changed inputs; None where that cannot be.
InFloat64 = Callable[..., Pass | None]
#: A result that is smaller than this share of its terms is zero in float64.
_CANCELLED = 1e-12
#: The seed of the signs that terms get.
_SIGNS = 20
#: dB below what torch reaches that a gate asks for: twice its error, for another order of sums. A
#: result of few elements may by chance have five times the error of others.
SLACK_DB, _FEW_SLACK_DB = 6.0, 14.0
#: dB that a result reaches at least whose products and sums were rounded to bfloat16.
_IN_HALF_DB = 40.0
#: Contents that show what torch reaches in a result of few elements.
_DRAWS = 4
#: The share of a tolerance that torch may use up: other contents have larger errors.
_MARGIN = 2 / 3
#: How near the truth a control may come without being a wrong answer.
_NEAR = 1e-6
#: A control that fails for so many elements, spread over the whole, fails.
_SPREAD = 1 << 16


def judge_twice(
    case: Case, expected: Pass, run: Pass, in_float64: InFloat64
) -> tuple[Pass, list[Comparison]]:
    """Judge a run by the reference and, where that finds it wrong, by the one in float64 as well.

    A run that is right by either is right, and so is one that errs less than the reference does;
    what found it so is returned. A reference may err in float32 by more than the case's tolerance.
    If a result is zero by cancellation, its error counts against the terms that cancel.
    """
    comparisons = judge(case, expected, run)
    if all(comparison.passed for comparison in comparisons) or (exact := in_float64()) is None:
        return expected, comparisons
    if run.outputs.keys() != exact.outputs.keys():
        return expected, comparisons
    signed = in_float64(_with_drawn_signs)
    has_terms = signed is not None and signed.outputs.keys() == run.outputs.keys()
    terms = {name: ref for name, ref, _ in pairs(signed, run)} if signed and has_terms else {}
    by_declared, by_exact = list[Comparison](), list[Comparison]()
    judgements = zip(comparisons, judge(case, exact, run), strict=True)
    results = zip(pairs(expected, run), pairs(exact, run), strict=True)
    for (first, second), ((name, ref, out), (_, truth, _)) in zip(judgements, results, strict=True):
        cancels = _cancels(truth, out, terms.get(name))
        by_declared.append(replace(first, passed=first.passed or cancels))
        is_right = second.passed or cancels or _errs_less(truth, out, ref)
        by_exact.append(replace(second, passed=is_right))
    if all(comparison.passed for comparison in by_exact):
        return exact, by_exact
    return expected, by_declared


def nearest(
    expected: Pass, run: Pass, in_float64: InFloat64
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield floating-point results, each with the reference's that it is nearest to.

    Which is that in float64, perhaps, where the declared one computes no finer than the result.
    """
    computed_in, exact = least_exact([*expected.outputs.values()]), None
    for name, ref, out in pairs(expected, run):
        if not (isinstance(out, torch.Tensor) and out.is_floating_point()):
            continue
        if torch.finfo(computed_in).eps >= torch.finfo(out.dtype).eps:
            exact = exact or in_float64() or expected
            (exact_ref,) = (truth for n, truth, _ in pairs(exact, run) if n == name)
            ref = max(ref, exact_ref, key=partial(compute_snr, actual=out))
        yield name, ref, out


def _errs_less(truth: Any, out: Any, ref: Any) -> bool:
    if not (is_float(truth) and is_shaped(out, truth) and is_shaped(ref, truth)):
        return False
    out_error, ref_error = (
        (wide(tensor).to(truth.device) - wide(truth)).norm() for tensor in (out, ref)
    )
    return bool(out_error <= ref_error)


def _cancels(truth: Any, out: Any, terms: Any) -> bool:
    """Say whether a result is zero by cancellation, and its error small compared with the terms."""
    if not (is_float(truth) and is_shaped(out, truth) and is_shaped(terms, truth)):
        return False
    most = relative_db(out.dtype)
    size, of_terms = wide(truth).norm(), wide(terms).norm()
    # Any error is small compared with an infinite term.
    if most is None or not size <= _CANCELLED * of_terms < math.inf:
        return False
    error = (wide(out).to(truth.device) - wide(truth)).norm()
    return bool(error <= 10 ** (-most / 20) * of_terms)


def _with_drawn_signs(inputs: Sequence[Any]) -> Sequence[Any]:
    """Return inputs of the same size whose signs are drawn: terms that cancelled now add up."""
    generator = torch.Generator().manual_seed(_SIGNS)

    def signed(x: Any) -> Any:
        if type(x) is not torch.Tensor or not x.is_floating_point():
            return x
        return (x.detach().abs() * signs(x, generator)).requires_grad_(x.requires_grad)

    changed: Sequence[Any] = mapped(inputs, signed, (torch.Tensor,))
    return changed


def judge(case: Case, expected: Pass, run: Pass) -> list[Comparison]:
    if expected.outputs.keys() != run.outputs.keys():
        reason = f"returns {_listed(run.outputs)}, the reference {_listed(expected.outputs)}"
        if not run.outputs:
            reason += "; if it writes into an input, declare writes=(POSITION,)"
        return [Comparison("out", False, "the same outputs", reason)]
    return [_compared(expected, run, *pair) for pair in gated(case, expected, run)]


def _compared(
    expected: Pass, run: Pass, name: str, ref: Any, out: Any, gate: Gate | None
) -> Comparison:
    if expected.nan_is_equal and bool(nans(ref).any()):
        reason = f"has no NaN at {int(nans(ref).sum())} places where the reference has it"
        return Comparison(name, False, 'nan="equal"', reason)
    return _in_the_whole(compare(ref, out, gate, name), expected, run)


def gated(case: Case, expected: Pass, run: Pass) -> Iterator[tuple[str, Any, Any, Gate | None]]:
    """Yield the pairs with the case's gate for each, None where the dtype chooses it."""
    result_pairs = list(pairs(expected, run))
    # One gate is that of the floating-point outputs where there are any: indices are exact.
    inexact = any(is_float(ref) for _, ref, _ in result_pairs)
    is_single = inexact and not isinstance(case.gate, Mapping) and not case.is_statistical
    for name, ref, out in result_pairs:
        is_exact = is_single and not is_float(ref)
        yield name, ref, out, None if is_exact else case.gate_of(name)


def nearly_right(case: Case, expected: Pass, run: Pass, factor: float) -> frozenset[str]:
    """Return the names of floating-point results that pass their gate, wider by a factor."""
    names = set()
    for name, ref, out, gate in gated(case, expected, run):
        if isinstance(out, torch.Tensor) and out.is_floating_point():
            wider = (gate or default_gate(out.dtype)).wider(factor)
            if _compared(expected, run, name, ref, out, wider).passed:
                names.add(name)
    return frozenset(names)


def _without_nan(ref: Any, out: Any) -> tuple[Any, Any]:
    """Return zero for NaN that both results have; one of another shape has none in common."""
    if not (is_float(ref) and is_float(out)):
        return ref, out
    if not is_shaped(out, ref):
        return torch.nan_to_num(torch.as_tensor(ref)), out
    common = nans(ref) & nans(out).to(ref.device)
    return ref.masked_fill(common, 0), out.masked_fill(common.to(out.device), 0)


def pairs(expected: Pass, run: Pass) -> Iterable[tuple[str, Any, Any]]:
    """Yield name, reference and result of every output and of every gradient that exists.

    If the reference writes to an input, only the elements that it or the candidate changed are
    left, and zero stands for the rest. So one wrong row of a large cache weighs as much as any
    other result. Zero stands for NaN as well that is right.
    """
    for name, ref, out in _pairs(expected, run):
        yield name, *(_without_nan(ref, out) if expected.nan_is_equal else (ref, out))


def _pairs(expected: Pass, run: Pass) -> Iterable[tuple[str, Any, Any]]:
    for name, ref in expected.outputs.items():
        before, out = expected.before.get(name), run.outputs[name]
        if before is None or not is_shaped(out, ref):
            yield name, ref, out
        else:
            rows = touched_rows(before, ref, out)
            before, ref, out = before[rows], ref[rows], out[rows]
            untouched = (bits(ref) == bits(before)) & (bits(out) == bits(before))
            yield name, _without(ref, untouched), _without(out, untouched)
    for position, ref in expected.gradients.items():
        if ref is not None:
            yield f"grad of input {position}", ref, run.gradients.get(position)


def touched_rows(before: torch.Tensor, *after: torch.Tensor) -> Any:
    """Return which rows of a large tensor were written to; of a small one all count."""
    if before.numel() < _LARGE or before.ndim < 2:
        return ...
    return differing_rows(before, *after)


def _in_the_whole(comparison: Comparison, expected: Pass, run: Pass) -> Comparison:
    """Return a failed comparison of written rows with its worst element's index in the whole."""
    before, figures = expected.before.get(comparison.name), comparison.figures
    if comparison.passed or before is None or figures is None or not figures.worst_index:
        return comparison
    ref, out = expected.outputs[comparison.name], run.outputs[comparison.name]
    rows = touched_rows(before, ref, out)
    if rows is ...:
        return comparison
    index = (int(rows[figures.worst_index[0]]), *figures.worst_index[1:])
    return replace(comparison, figures=replace(figures, worst_index=index))


def _without(tensor: torch.Tensor, untouched: torch.Tensor) -> torch.Tensor:
    touched = bits(tensor).masked_fill(untouched.to(tensor.device), 0)
    return touched.view(tensor.dtype)


def _listed(outputs: Mapping[str, Any]) -> str:
    return ", ".join(outputs) or "nothing"


class DerivedGate(NamedTuple):
    """The gate of a result that its dtype's tolerance cannot judge, and the reason.

    `gate` is None where none can be derived; the reason then says what to declare. torch has
    `reached_db` of SNR.
    """

    gate: Gate | None
    reason: str
    reached_db: float = math.nan


class _Drawn(NamedTuple):
    """A result on inputs of a fixed seed: the reference's, and torch's in the dtype if it can."""

    inputs: Sequence[Any]
    ref: torch.Tensor
    torchs: torch.Tensor | None


def with_gates(case: Case, bench: Bench, function: Callable[..., Any]) -> Case:
    """Return an observed case with its derived gates: the baseline's, or without one its own.

    Names and dtypes of results are those of the `function`.
    """
    if bench.expected is not None:
        return replace(case, derived_gates=bench.frozen(case.nodeid).gates)
    if isinstance(case.gate, Gate):
        return case
    inputs = fresh_copies(make_inputs(case, 0))
    derived = derived_gates(case, CandidateFunction(case, function)(inputs, 0).live)
    return replace(case, derived_gates={name: d.gate for name, d in derived.items() if d.gate})


def derived_gates(case: Case, like: Pass) -> dict[str, DerivedGate]:
    """Return a gate for each result that the tolerance of its dtype cannot judge, by name.

    The tolerance is too tight where torch, which computes the reference in the dtype, uses up
    most of it. It is too wide where a wrong answer passes. Seeds are fixed, and the kernel
    gives names and dtypes alone (`like`): so two versions get the same gates.
    """
    dtypes = {} if case.is_statistical else dict(_without_gate(case, like))
    drawn: dict[str, list[_Drawn]] = {name: [] for name in dtypes}
    is_few = any(out.numel() < FEW for name, _, out in pairs(like, like) if name in dtypes)
    for seed in range((_DRAWS if is_few else 1) if dtypes else 0):
        inputs, reference = make_inputs(case, seed), Reference(case)
        run = partial(_run, reference, like, seed)
        expected = reference.exact(inputs, like, seed) or run(inputs)
        if expected.outputs.keys() != like.outputs.keys():
            return {}
        for dtype in {*dtypes.values()}:
            narrow = _computed_in(dtype, inputs, run)
            for name, ref, out in pairs(expected, narrow or expected):
                if dtypes.get(name) is dtype:
                    torchs = out.to(dtype) if narrow else None
                    drawn[name].append(_Drawn(inputs, ref, torchs))
    derived = {name: _derived(name, draws, dtypes[name]) for name, draws in drawn.items() if draws}
    return {name: gate for name, gate in derived.items() if gate is not None}


def _run(reference: Reference, like: Pass, seed: int, arguments: Sequence[Any]) -> Pass:
    return reference(fresh_copies(arguments), like, seed)


def _without_gate(case: Case, like: Pass) -> Iterator[tuple[str, torch.dtype]]:
    """Yield name and dtype of the results that the case leaves to their dtype's tolerance."""
    for name, _, out in pairs(like, like):
        if is_floating(out) and relative_db(out.dtype) and case.gate_of(name) is None:
            yield name, out.dtype


def _derived(name: str, draws: Sequence[_Drawn], dtype: torch.dtype) -> DerivedGate | None:
    """Return the gate of a result, None where the tolerance of its dtype can judge it."""
    tolerance, most = default_gate(dtype), relative_db(dtype)
    assert most is not None
    expected = torch.cat([draw.ref.flatten() for draw in draws])
    # Only the first result is there for its own sake; others take after an input by accident.
    is_first = name in (RETURNED, f"{RETURNED}[0]")
    of_draws = [
        [*controls(draw.ref, draw.inputs if is_first else (), dtype), _rounded(draw.ref, dtype)]
        for draw in draws
    ]
    wrong = {
        alike[0][0]: torch.cat([control.flatten() for _, control in alike])
        for alike in zip(*of_draws, strict=True)
    }
    passing = passing_controls(expected, wrong.items(), tolerance)
    accepts = f"{', '.join(passing)}: they pass {tolerance.describe()}"
    fix = "Fix: draw inputs whose result is large compared with it, or declare a gate"
    torchs = [draw.torchs.flatten() for draw in draws if draw.torchs is not None]
    if not torchs:
        line = f"gate={{{name!r}: snr({most:.1f})}}"
        return DerivedGate(None, f"{accepts}. {fix}, such as {line}") if passing else None
    computed = torch.cat(torchs)
    is_missed = not compare(expected, computed, tolerance.wider(_MARGIN)).passed
    reached = compute_snr(expected, computed)
    # Of what is zero but for rounding no gate can tell anything apart.
    if not (passing or is_missed) or not reached > SLACK_DB:
        return None
    least = min(most, reached - (SLACK_DB if draws[0].ref.numel() >= FEW else _FEW_SLACK_DB))
    size = wide(expected).square().mean().sqrt().item()
    gate = replace(snr(math.floor(least)), rms_error=_rounded_down(size * 10 ** (-least / 20)))
    if least < 1 or passing_controls(expected, wrong.items(), gate):
        return DerivedGate(None, f"{accepts}. {fix}") if passing else None
    narrow = str(dtype).removeprefix("torch.")
    uses_up = f"torch in {narrow} uses up the tolerance {tolerance.rtol:g}"
    accepting = f"the tolerance {tolerance.rtol:g} accepts zeros or other wrong answers"
    return DerivedGate(gate, accepting if passing else uses_up, reached)


def _rounded(expected: torch.Tensor, dtype: torch.dtype) -> tuple[str, torch.Tensor]:
    """Return an answer that a kernel in the next dtype below gives."""
    narrower = torch.bfloat16 if dtype == torch.float32 else torch.float8_e5m2
    name = f"the answer in {str(narrower).removeprefix('torch.')}"
    return name, expected.detach().to(narrower).to(dtype)


def _rounded_down(number: float) -> float:
    """Return the power of two below a number: rounding in another process has to give the same."""
    return math.ldexp(0.5, math.frexp(number)[1]) if number else 0.0


def advised(
    case: Case,
    comparisons: Sequence[Comparison],
    outputs: Pass,
    inputs: Sequence[Any],
    expected: Pass,
    reference: Callable[[Sequence[Any]], Pass],
) -> dict[str, str]:
    """Return what to do about results outside their gates, by name.

    `expected` is the most exact that the reference gives, `reference` runs it as it is declared.
    """
    wrong = {
        comparison.name.partition(" (")[0]: comparison
        for comparison in comparisons
        if not comparison.passed and comparison.figures and math.isfinite(comparison.snr_db)
    }
    results: dict[str, Any] = {n: out for n, _, out in pairs(expected, outputs)} if wrong else {}
    narrow = {
        out.dtype: _computed_in(out.dtype, inputs, reference)
        for name, out in results.items()
        if name in wrong and is_floating(out)
    }
    advice = {}
    for name, comparison in wrong.items():
        out, before = results.get(name), expected.before.get(name)
        if before is not None and bool((bits(outputs.outputs[name]) == bits(before)).all()):
            advice[comparison.name] = (
                f"  the reference writes to {name} and the function does not. Fix: have "
                "the function write it as well, or the reference work on a copy"
            )
        elif out is not None and is_floating(out):
            gate = case.gate_of(name) or default_gate(out.dtype)
            is_declared = case.declared_gate_of(name) is not None
            advice[comparison.name] = _at_fault(
                name, out.dtype, expected, narrow[out.dtype], gate, is_declared=is_declared
            )
            # Torch code that computes in bfloat16 and returns float32 reaches what that holds.
            if out.dtype == torch.float32 and comparison.snr_db >= _IN_HALF_DB:
                line = f"gate={{{name!r}: snr({math.floor(comparison.snr_db - SLACK_DB)})}}"
                advice[comparison.name] += (
                    f"; only if half precision is meant, declare {line}, in a new campaign or at "
                    "the base first"
                )
    return advice


def _at_fault(
    name: str,
    dtype: torch.dtype,
    expected: Pass,
    computed: Pass | None,
    gate: Gate,
    *,
    is_declared: bool,
) -> str:
    """Say whether kernel or gate is at fault, by what torch `computed` in the dtype."""
    narrow = str(dtype).removeprefix("torch.")
    if computed is None:
        return (
            f"  torch cannot compute the reference in {narrow}. Fix: correct the kernel, or "
            "declare a gate that its rounding explains"
        )
    (reached,) = (
        compare(ref, out.to(dtype), gate, name)
        for each, ref, out in pairs(expected, computed)
        if each == name
    )
    much = f"{reached.snr_db:.1f} dB" if math.isfinite(reached.snr_db) else "every bit"
    torchs = f"  torch reaches {much} for the reference in {narrow}"
    if reached.passed:
        return (
            f"{torchs}, within the tolerance: the kernel is wrong, or computes in less than "
            f"{narrow}. Fix: correct the kernel"
        )
    fix = "remove gate=, and kopt derives one" if is_declared else "declare a gate"
    return f"{torchs}, outside the tolerance as well. Fix: correct the kernel, or {fix}"


def torchs_db(
    name: str,
    dtype: torch.dtype,
    inputs: Sequence[Any],
    reference: Callable[[Sequence[Any]], Pass],
) -> float:
    """Return the SNR in dB of a result that torch computes in a dtype, +inf where it cannot."""
    expected = reference(inputs)
    computed = _computed_in(dtype, inputs, reference) or expected
    results = {each: (ref, out) for each, ref, out in pairs(expected, computed)}
    ref, out = results[name]
    return compute_snr(ref, out.to(dtype))


def _computed_in(
    dtype: torch.dtype, inputs: Sequence[Any], reference: Callable[[Sequence[Any]], Pass]
) -> Pass | None:
    """Return what the reference gives in a dtype, None where torch cannot do it."""
    mode = ComputingIn(dtype)
    arguments = mode.arguments(inputs)
    with suppress(Exception), mode:
        return reference(arguments)
    return None


def passing_controls(
    expected: torch.Tensor, wrong: Iterable[tuple[str, torch.Tensor]], gate: Gate
) -> list[str]:
    """Return which `wrong` answers, by their names, a gate lets pass.

    One that happens to be right, zeros where the reference has zeros, says nothing.
    """
    return [
        name
        for name, control in wrong
        if _passes(expected, control, gate) and not _is_right(control, expected)
    ]


def _passes(expected: torch.Tensor, control: torch.Tensor, gate: Gate) -> bool:
    step = max(1, expected.numel() // _SPREAD)
    ref, out = (tensor.detach().reshape(-1)[::step] for tensor in (expected, control))
    return compare(ref, out, gate).passed and compare(expected, control, gate).passed


def controls(
    expected: torch.Tensor, inputs: Sequence[Any], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield wrong answers to a case, by their names."""
    # torch has no operators for float8, and few for uint16 to uint64.
    is_float = expected.dtype.is_floating_point
    truth = expected.detach()
    if expected.dtype not in SCALABLE:
        truth = truth.to(torch.float32 if is_float else torch.int64)
    yield "zeros", torch.zeros_like(truth).to(dtype)
    if is_float:
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
