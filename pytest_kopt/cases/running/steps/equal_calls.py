"""Calls on equal content: equal bits, or right results; and rows of a batch; and distributions.

Dimension 0 of the first tensor input that is no weight is the batch. Every tensor input that is no
weight and has this size there carries it, and so does every result.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pytest_kopt.cases.running.against_reference import pairs
from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import CandidateFunction, Pass, make_inputs, nans
from pytest_kopt.honesty import outputs
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import SCALABLE
from pytest_kopt.numerics.compare import (
    CallFigures,
    Comparison,
    compute_snr,
    difference,
    digest,
    draws_for,
    repetition,
)
from pytest_kopt.numerics.nested import (
    bits,
    differing_rows,
    fresh_copies,
    mapped,
    same_bits,
    tensors,
)

#: So many calls, and so long at most: in 400 a kernel that errs once in 85 errs at least once, with
#: 99 %. So many that all gave equal bits say that it owes them.
_CALLS, _SECONDS, _STABLE = 400, 0.1, 20
#: Results are held for as long as they take no more: two calls do not show a ring of buffers.
_HELD_BYTES = 1 << 28
#: dB by which two calls on equal inputs may differ less than each of them errs, and the error still
#: be what differs.
_SLACK_DB = 12.0
_Cut = Callable[[torch.Tensor], torch.Tensor]
#: Calls of the reference that say where its results lie.
_PILOT = 16
Named = dict[str, torch.Tensor]
#: By name of the result and of the figure, one number a call.
Figures = dict[str, dict[str, list[float]]]


def equal_calls(checking: Checking) -> Iterator[Finding]:
    """Compare results bit by bit; judge those that differ from the first.

    Other bits that are right are a mistake where the case is `deterministic`, or the incumbent's
    calls gave equal bits. No result may come in the memory of an earlier one that is still held.
    """
    seed = checking.seeds["disturb"]
    first, expected, before = None, None, checking.expected
    calls = differing = wrong = 0
    share, is_early = 0.0, False
    shareable = checking.candidate.shareable_memory(checking.used)
    held, taken, nbytes = list[Sequence[torch.Tensor]](), set[int](), 0
    end = time.perf_counter() + _SECONDS
    while calls < _CALLS and time.perf_counter() < end:
        checking.restore()
        run = checking.candidate(checking.used, seed)
        calls += 1
        results, places = run.copies.results, outputs.places(run.live.results, shareable)
        if taken & places:
            yield outputs.SHARED
            break
        if nbytes < _HELD_BYTES:
            # The memory and not the object: a view of a result is all that a caller may keep.
            held.append([result.detach() for result in run.live.results])
            taken |= places
            nbytes += sum(result.nbytes for result in results)
        if expected is None or first is None:
            first = results
            expected = checking.expected = checking.truth(
                fresh_copies(checking.pristine), run.live, seed
            )
        elif len(first) == len(results) and all(map(same_bits, first, results)):
            continue
        else:
            differing += 1
            # Of the current best more calls may not have been made.
            is_early |= calls <= _STABLE
            share = max(share, _differing_share(first, results))
        wrong += not all(comparison.passed for comparison in checking.judged(run))
    # Results of steps before and after it are not judged by this one's.
    checking.expected = before
    case = checking.case
    if differing or calls >= _STABLE:
        checking.bitwise_stable = not differing
    if differing and wrong:
        yield Finding(
            "not-deterministic",
            f"not deterministic: {differing} of {calls} calls on equal inputs differ from the "
            f"first, and {wrong} are wrong",
            advice="look for a race, or for state that a call leaves to the next",
            rejects=False,
        )
    elif differing:
        was_stable = checking.bench.frozen(case.nodeid).bitwise_stable
        owed = "the case is declared deterministic" if case.deterministic else ""
        if was_stable and is_early:
            owed = owed or "the current best's calls all gave equal bits"
        yield Finding(
            "not-deterministic" if owed else "other-bits",
            f"not deterministic: {differing} of {calls} calls differ, in up to {100 * share:.2g} % "
            f"of the elements of a result, and all are right{owed and f'; {owed}'}",
            where=case.label,
            advice="add up in a fixed order: store partial sums separately, use no atomics",
            rejects=False,
        )


def _differing_share(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> float:
    """Return the largest share of elements whose bits differ, 1 for results that are not alike."""
    shares = [
        float((bits(one) != bits(other)).double().mean())
        for one, other in zip(first, second, strict=False)
        if one.shape == other.shape and one.dtype == other.dtype and one.element_size() <= 8
        if one.numel()
    ]
    return max(shares, default=1.0) if len(first) == len(second) else 1.0


def stale_memory(checking: Checking, reached: dict[str, Accuracy]) -> Iterator[Finding]:
    """Say why the results in `reached` are no more exact, if a workspace is the reason."""
    if places := _read_workspaces(checking):
        yield Finding(
            "unwritten-output",
            (
                f"the result depends on the values of input {places[0]} before the call; "
                "the reference's does not"
            ),
            advice="write all of a workspace before reading it",
            rejects=False,
        )
        return
    before = _run(checking, checking.pristine)
    _run(checking, make_inputs(checking.case, checking.seeds["again"]))
    after = _run(checking, checking.pristine)
    for name, first, second in pairs(before, after):
        error = reached.get(name)
        if error and compute_snr(first, second) < error.snr_db + _SLACK_DB:
            yield Finding(
                "not-deterministic",
                (
                    f"{name} depends on earlier calls, by as much as its error: "
                    f"{compute_snr(first, second):.1f} dB of SNR between two calls on equal "
                    "inputs"
                ),
                advice="write all of a workspace that the kernel keeps before reading it",
                rejects=False,
            )
            return


def _run(checking: Checking, inputs: Sequence[Any]) -> Pass:
    return checking.candidate(fresh_copies(inputs), checking.seeds["last"]).copies


def _read_workspaces(checking: Checking) -> list[int]:
    """Return the inputs whose content before a call shows in the candidate's result alone."""
    read = []
    for place in sorted(checking.case.rewritten):
        spoiled = fresh_copies(checking.pristine)
        for tensor in tensors(spoiled[place]):
            if tensor.dtype in SCALABLE:
                tensor.detach().fill_(math.nan)
        if not _has_nan(checking.expected_of(spoiled)) and _has_nan(_run(checking, spoiled)):
            read.append(place)
    return read


def _has_nan(run: Pass) -> bool:
    return any(bool(nans(result).any()) for result in run.results)


def parts_of_a_batch(checking: Checking) -> Iterator[Finding]:
    """Compare rows of parts with those of the whole, bit by bit; BadInput without a batch.

    It is rule 12 of docs/honesty.md.
    """
    case, inputs, seed = checking.case, checking.pristine, checking.seeds["last"]
    carriers = [place for place in range(len(inputs)) if place not in case.weights]
    sizes = [len(x) for place in carriers for x in tensors(inputs[place]) if x.ndim]
    if not sizes:
        raise case.refusal(
            "batch_invariant=True, and every tensor of inputs() is a weight",
            fix="leave the tensor that carries the batch in its dimension 0 out of weights=",
        )
    rows = sizes[0]
    call = CandidateFunction(replace(case, backward=False), case.function)

    def results(cut: _Cut) -> dict[str, torch.Tensor]:
        def part(leaf: Any) -> Any:
            is_carrier = isinstance(leaf, torch.Tensor) and leaf.ndim and len(leaf) == rows
            return cut(leaf.detach()) if is_carrier else leaf

        arguments = [mapped(x, part) if place in carriers else x for place, x in enumerate(inputs)]
        outputs = call(fresh_copies(arguments), seed).copies.outputs
        return {name: out for name, out in outputs.items() if isinstance(out, torch.Tensor)}

    whole = {
        name: out for name, out in results(torch.clone).items() if out.ndim and len(out) == rows
    }
    if not whole:
        raise case.refusal(
            f"batch_invariant=True, and no result has the batch of {rows} rows in dimension 0",
            fix="return results with a row for each row of the batch",
        )
    for text, cut in _cuts(rows):
        try:
            of_part = results(cut)
        except Exception as error:
            problem = f"raises {type(error).__name__} for {text}"
        else:
            differing = {name: _rows_unlike(cut(out), of_part[name]) for name, out in whole.items()}
            name = max(differing, key=lambda name: differing[name])
            if not differing[name]:
                continue
            problem = f"{name} has other bits in {differing[name]} rows for {text}"
        at_first = "; a baseline has to be batch-invariant too" * checking.bench.freezes
        yield Finding(
            "batch-variant",
            f"not batch-invariant: {problem}, of a batch of {rows}{at_first}",
            where=case.label,
            advice=(
                "choose tile sizes and split-K without the number of rows, so that the "
                "order of additions stays the same"
            ),
            rejects=False,
        )
        return


def _cuts(rows: int) -> Iterator[tuple[str, _Cut]]:
    """Yield what is called, and what cuts it out of a tensor of the whole batch."""
    if rows > 1:
        yield f"the first {rows // 2}", lambda x: x[: rows // 2]
    for row in sorted({0, rows // 2, rows - 1}):
        yield f"row {row} alone", partial(torch.narrow, dim=0, start=row, length=1)
    yield "the rows in another place", lambda x: torch.empty_like(x).copy_(x.roll(1 + rows // 3, 0))


def _rows_unlike(expected: torch.Tensor, out: torch.Tensor) -> int:
    if out.shape != expected.shape or out.dtype != expected.dtype:
        return len(expected)
    return len(differing_rows(out.contiguous(), expected.contiguous()))


def same_distribution(checking: Checking) -> None:
    """Compare many calls of the function with as many of the reference; see `CallFigures`.

    The function may repeat its results no more often. Raises BadInput where the reference gives one
    result in every call.
    """
    case, like, seed = checking.case, checking.last, checking.seeds["last"]

    def of_reference(arguments: Sequence[Any]) -> Named:
        return _tensors(checking.truth(arguments, like.live, seed))

    def of_function(arguments: Sequence[Any]) -> Named:
        return _tensors(checking.candidate(arguments, seed).copies)

    def drawn(call: Callable[[Sequence[Any]], Named], purpose: str, number: int) -> Named:
        return call(_arguments(checking, f"{purpose} {number}"))

    pilot = [drawn(of_reference, "pilot", number) for number in range(_PILOT)]
    names = [name for name, out in pilot[0].items() if out.numel()]
    if all(torch.equal(out[name], pilot[0][name]) for out in pilot for name in names):
        raise case.refusal(
            "statistical is declared, but all calls of the reference give the same result",
            fix="have inputs() return a torch.Generator, or draw a seed in it: "
            "int(torch.randint(1 << 31, ()))",
        )
    figures = {name: CallFigures([out[name] for out in pilot]) for name in names}
    calls = draws_for(max(pilot[0][name].numel() for name in names))
    # A continuous reference repeats nothing that the function's dtype does not.
    dtypes = {name: out.dtype for name, out in _tensors(like.copies).items()}
    gate = case.gate_of("out")
    assert gate is not None and gate.error_rate is not None

    def figures_of(
        call: Callable[[Sequence[Any]], Named], purpose: str
    ) -> tuple[Figures, dict[str, list[int]]]:
        by_call, digests = [], dict[str, list[int]]()
        for number in range(calls):
            out = drawn(call, purpose, number)
            by_call.append({name: figures[name](out[name]) for name in names})
            for name in names:
                digests.setdefault(name, []).append(digest(out[name], dtypes[name]))
        by_name = {
            name: {figure: [each[name][figure] for each in by_call] for figure in by_call[0][name]}
            for name in names
        }
        return by_name, digests

    expected, expected_digests = figures_of(of_reference, "reference")
    reached, digests = figures_of(of_function, "function")
    # Each result is tested twice.
    error_rate = gate.error_rate / (2 * len(names))
    for name in names:
        reason = difference(expected[name], reached[name], error_rate)
        reason = reason or repetition(expected_digests[name], digests[name], error_rate)
        if reason:
            checking.comparisons.append(Comparison(name, False, gate.describe(), reason))
    # Of draws an SNR says nothing.
    checking.accuracy = {
        name: replace(accuracy, snr_db=math.nan) for name, accuracy in checking.accuracy.items()
    }


def _arguments(checking: Checking, purpose: str) -> list[Any]:
    """Return inputs of the first content; numbers and generators, which may seed, are drawn again.

    So is a tensor of one element. torch's global generator follows from the purpose as well.
    """
    digest = hashlib.sha256(f"{checking.seeds['disturb']} {purpose}".encode()).digest()
    fresh = make_inputs(checking.case, int.from_bytes(digest[:8], "big") >> 1)
    pairs = zip(fresh, checking.pristine, strict=True)
    return fresh_copies(
        [first if sum(x.numel() for x in tensors(first)) > 1 else new for new, first in pairs]
    )


def _tensors(of: Pass) -> Named:
    gradients = {f"grad of input {place}": x for place, x in of.gradients.items() if x is not None}
    return {
        name: torch.as_tensor(out).detach()
        for name, out in {**of.outputs, **gradients}.items()
        if isinstance(out, torch.Tensor | int | float)
    }
