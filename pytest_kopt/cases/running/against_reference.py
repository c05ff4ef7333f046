"""A run of a kernel against its reference: what is compared, and by which tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.running.execution import Pass
from pytest_kopt.honesty.inputs import SCALABLE
from pytest_kopt.honesty.outputs import least_exact
from pytest_kopt.numerics.compare import Comparison, compare, compute_snr, wide
from pytest_kopt.numerics.gates import Gate, default_gate
from pytest_kopt.numerics.nested import bits, differing_rows

#: Of a larger input only the rows that were written to are compared: the rest is memory alone.
_LARGE = 1 << 20


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
    if not (_is_floating(truth) and is_shaped(out, truth) and is_shaped(ref, truth)):
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
    inexact = any(_is_floating(ref) for _, ref, _ in result_pairs)
    is_single = inexact and not isinstance(case.gate, Mapping) and not case.is_statistical
    for name, ref, out in result_pairs:
        is_exact = is_single and not _is_floating(ref)
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


def _is_floating(value: Any) -> bool:
    return (
        value.is_floating_point() if isinstance(value, torch.Tensor) else isinstance(value, float)
    )


def nans(value: Any) -> torch.Tensor:
    """Return where a result is NaN."""
    if not _is_floating(value):
        return torch.zeros(1)
    value = torch.as_tensor(value)
    return (value if value.dtype in SCALABLE else wide(value)).isnan()


def _without_nan(ref: Any, out: Any) -> tuple[Any, Any]:
    """Return zero for NaN that both results have; one of another shape has none in common."""
    if not (_is_floating(ref) and _is_floating(out)):
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


def is_shaped(out: Any, ref: Any) -> bool:
    are_tensors = isinstance(out, torch.Tensor) and isinstance(ref, torch.Tensor)
    return are_tensors and out.shape == ref.shape


def _without(tensor: torch.Tensor, untouched: torch.Tensor) -> torch.Tensor:
    touched = bits(tensor).masked_fill(untouched.to(tensor.device), 0)
    return touched.view(tensor.dtype)


def _listed(outputs: Mapping[str, Any]) -> str:
    return ", ".join(outputs) or "nothing"
