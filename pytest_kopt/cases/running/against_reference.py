"""A run of a kernel against its reference: what is compared, by which tolerance, and advice.

The advice is about a result outside its gate: whether the gate or the kernel is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pytest_kopt.cases.case import Case, declare, is_floating
from pytest_kopt.cases.running.execution import (
    ComputingIn,
    Pass,
    is_float,
    is_shaped,
    make_inputs,
    nans,
)
from pytest_kopt.cases.running.reference import Reference, observed
from pytest_kopt.honesty.inputs import leaves
from pytest_kopt.honesty.outputs import least_exact
from pytest_kopt.numerics.compare import Comparison, compare, compute_snr, wide
from pytest_kopt.numerics.gates import Gate, default_gate
from pytest_kopt.numerics.nested import bits, differing_rows, fresh_copies

#: Of a larger input only the rows that were written to are compared: the rest is memory alone.
_LARGE = 1 << 20
#: Runs the case's reference on arguments.
Run = Callable[[Sequence[Any]], Pass]
#: dB below what torch reaches that a gate may ask for: twice its error, for another order of sums.
SLACK_DB = 6.0


def judge_twice(
    case: Case, expected: Pass, run: Pass, in_float64: Callable[[], Pass | None]
) -> tuple[Pass, list[Comparison]]:
    """Judge a run by the reference and, where that finds it wrong, by the one in float64 as well.

    A run that is right by either is right, and so is one that errs less than the reference does;
    what found it so is returned. A reference may err in float32 by more than the case's tolerance.
    """
    comparisons = judge(case, expected, run)
    if all(comparison.passed for comparison in comparisons) or (exact := in_float64()) is None:
        return expected, comparisons
    if run.outputs.keys() != exact.outputs.keys():
        return expected, comparisons
    triples = zip(judge(case, exact, run), pairs(exact, run), pairs(expected, run), strict=True)
    nearer = [
        comparison if comparison.passed else replace(comparison, passed=_errs_less(truth, out, ref))
        for comparison, (_, truth, out), (_, ref, _) in triples
    ]
    return (
        (exact, nearer)
        if all(comparison.passed for comparison in nearer)
        else (expected, comparisons)
    )


def nearest(
    expected: Pass, run: Pass, in_float64: Callable[[], Pass | None]
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


def proposed(reached_db: float) -> float | None:
    """Return the SNR in dB that a gate may ask for where torch reaches so much; None: none."""
    least = reached_db - SLACK_DB
    return math.floor(least) if math.isfinite(least) and least > 0 else None


def advised(
    case: Case,
    comparisons: Sequence[Comparison],
    outputs: Pass,
    inputs: Sequence[Any],
    expected: Pass,
    reference: Run,
) -> dict[str, str]:
    """Return what to do about results outside their gates, by name; none may let NaN pass.

    `expected` is the most exact that the reference gives, `reference` runs it as it is declared.
    One `gate=` has the gates of all results that need one.
    """
    wrong = {
        comparison.name.partition(" (")[0]: comparison
        for comparison in comparisons
        if not comparison.passed and comparison.figures and math.isfinite(comparison.snr_db)
    }
    if not wrong:
        return {}
    result_pairs = {name: (ref, out) for name, ref, out in pairs(expected, outputs)}
    is_single = [*result_pairs] == ["out"] and case.gate is None
    narrow: dict[torch.dtype, Mapping[str, Any]] = {}
    advice, torch_reached, defensible = {}, dict[str, Comparison](), dict[str, float]()
    for name, comparison in wrong.items():
        ref, out = result_pairs.get(name, (None, None))
        before = expected.before.get(name)
        if before is not None and bool((bits(outputs.outputs[name]) == bits(before)).all()):
            advice[comparison.name] = (
                f"  the reference writes to {name} and the function does not. Fix: have "
                "the function write it as well, or the reference work on a copy"
            )
            continue
        if not is_floating(out):
            continue
        if out.dtype not in narrow:
            narrow[out.dtype] = _computed_in(out.dtype, expected, inputs, reference)
        torchs = narrow[out.dtype].get(name)
        if torchs is None:
            advice[comparison.name] = (
                "  torch cannot compute the reference in "
                f"{str(out.dtype).removeprefix('torch.')}, so no gate is proposed. Fix: correct "
                "the kernel, or declare a gate that its rounding explains"
            )
            continue
        gate = case.gate_of(name) or default_gate(out.dtype)
        reached = compare(ref, torchs.to(out.dtype), gate, name)
        if reached.snr_db <= SLACK_DB:
            # It draws numbers of its own, or is no sum of small errors: zeros would pass.
            continue
        torch_reached[name] = reached
        least = proposed(reached.snr_db)
        if least is not None and comparison.snr_db >= least:
            defensible[name] = least
    for name, reached in torch_reached.items():
        dtype = result_pairs[name][1].dtype
        advice[wrong[name].name] = _words(
            wrong[name], reached, dtype, name, defensible, is_single=is_single
        )
    return advice


def torchs_db(name: str, dtype: torch.dtype, inputs: Sequence[Any], reference: Run) -> float:
    """Return the SNR in dB of a result that torch computes in a dtype."""
    expected = reference(inputs)
    ref = {result_name: ref for result_name, ref, _ in pairs(expected, expected)}[name]
    narrow = _computed_in(dtype, expected, inputs, reference)
    return compute_snr(ref, narrow.get(name, ref).to(dtype))


def _computed_in(
    dtype: torch.dtype, expected: Pass, inputs: Sequence[Any], reference: Run
) -> Mapping[str, Any]:
    """Return what the reference gives in a dtype, by name; nothing where torch cannot do it."""
    mode = ComputingIn(dtype)
    arguments = mode.arguments(inputs)
    with suppress(Exception), mode:
        return {name: out for name, _, out in pairs(expected, reference(arguments))}
    return {}


def _words(
    own: Comparison,
    reached: Comparison,
    dtype: torch.dtype,
    name: str,
    defensible: Mapping[str, float],
    *,
    is_single: bool,
) -> str:
    """Say what is at fault where a result misses its gate; `defensible` gates are met."""

    def line(number: float) -> str:
        return gate_line({name: number}, is_single=is_single)

    narrow = str(dtype).removeprefix("torch.")
    least = proposed(reached.snr_db)
    much = f"{reached.snr_db:.1f} dB" if math.isfinite(reached.snr_db) else "every bit"
    torchs = f"torch reaches {much} for the reference in {narrow}"
    where = "within the tolerance" if reached.passed else "outside the tolerance as well"
    if name in defensible:
        tight = "" if reached.passed else f", which is tighter than {narrow} can be"
        passing = gate_line(defensible, is_single=is_single)
        return (
            f"  {torchs}, {where}{tight}. Fix: declare {passing}; it requires {SLACK_DB:g} dB "
            "less than torch reaches"
        )
    verdict = f"the kernel is wrong, or computes in less than {narrow}"
    if reached.passed or least is None:
        return (
            f"  {torchs}, {where}: {verdict}. Fix: correct the kernel. Do not declare "
            f"{line(math.floor(own.snr_db))}: wrong kernels would pass"
        )
    return (
        f"  {torchs}, {where}: the tolerance is tighter than {narrow} can be, and {verdict}. Fix: "
        f"correct the kernel and declare {line(least)}, which it does not pass yet"
    )


def gate_line(least: Mapping[str, float], *, is_single: bool = False) -> str:
    """Return the argument of a case that asks for these SNRs in dB, by result or for all."""
    gates = [f"{name!r}: snr({number:.1f})" for name, number in least.items()]
    return f"gate=snr({least['out']:.1f})" if is_single else f"gate={{{', '.join(gates)}}}"


def propose_gate(
    reference: Callable[..., Any],
    inputs: Callable[[], Sequence[Any] | Mapping[str, Any]],
    dtype: torch.dtype,
) -> str:
    """Return the `gate=` to write into a test whose function's outputs have a dtype.

    `reference` and `inputs` are those of the case; gradients count where an input requires one.
    torch computes what the reference computes, in `dtype`, for three draws. A result within the
    dtype's own gate needs no line (`gate=None` if that is all). The gate of every other result is 6
    dB below what torch reaches. Raises BadInput as a case does.
    """
    declaration = {"inputs": inputs, "reference": reference, "dims": {"n": 1}, "nbytes": 1.0}
    case = observed(declare("propose_gate", "memory", reference, **declaration), 0)
    case = replace(case, backward=bool(leaves(make_inputs(case, 0))))
    compared = [pair for seed in range(3) for pair in _torchs(case, dtype, seed)]
    reached = {name: min(c.snr_db for n, c in compared if n == name) for name, _ in compared}
    missed = {name for name, comparison in compared if not comparison.passed}
    least = {name: proposed(snr_db) for name, snr_db in reached.items() if name in missed}
    gates = {name: number for name, number in least.items() if number is not None}
    return gate_line(gates, is_single=[*reached] == ["out"]) if gates else "gate=None"


def _torchs(case: Case, dtype: torch.dtype, seed: int) -> Iterator[tuple[str, Comparison]]:
    """Compare what torch gives in a dtype with the reference, each result by its own gate."""
    inputs, called = fresh_copies(make_inputs(case, seed)), Reference(case)
    results = called.forward(fresh_copies(inputs), ()).outputs
    like = Pass({n: out.to(dtype) if is_floating(out) else out for n, out in results.items()}, {})

    def run(arguments: Sequence[Any]) -> Pass:
        return called(fresh_copies(arguments), like, seed)

    expected = run(inputs)
    narrow = _computed_in(dtype, expected, inputs, run)
    for name, ref, _ in pairs(expected, expected):
        if is_floating(ref):
            yield name, compare(ref, narrow.get(name, ref).to(dtype))
