"""Advice about a result outside its gate: whether the gate or the kernel is at fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from pytest_kopt.cases.case import Case, declare, is_floating
from pytest_kopt.cases.running.against_reference import pairs
from pytest_kopt.cases.running.execution import ComputingIn, Pass, make_inputs
from pytest_kopt.cases.running.reference import Reference, observed
from pytest_kopt.honesty.inputs import leaves
from pytest_kopt.numerics.compare import Comparison, compare, compute_snr
from pytest_kopt.numerics.gates import default_gate
from pytest_kopt.numerics.nested import bits, fresh_copies

#: Runs the case's reference on arguments.
Run = Callable[[Sequence[Any]], Pass]
#: dB below what torch reaches that a gate may ask for: twice its error, for another order of sums.
SLACK_DB = 6.0


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
        torchs = narrow[out.dtype].get(name, ref)
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
    torchs = f"torch reaches {reached.snr_db:.1f} dB for the reference in {narrow}"
    where = "within the tolerance" if reached.passed else "outside the tolerance as well"
    if name in defensible:
        tight = "" if reached.passed else f", which is tighter than {narrow} can be"
        passing = gate_line(defensible, is_single=is_single)
        return (
            f"  {torchs}, {where}{tight}. Fix: {passing} passes and is defensible, as it "
            f"requires {SLACK_DB:g} dB less than torch reaches"
        )
    verdict = f"the kernel is wrong, or computes in less than {narrow}"
    if reached.passed or least is None:
        return (
            f"  {torchs}, {where}: {verdict}. Fix: correct the kernel; "
            f"{line(math.floor(own.snr_db))} would pass and is not defensible"
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
