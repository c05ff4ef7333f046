"""Calls on equal content: each result is the same, or right, and follows from no earlier memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pytest_kopt.cases.running.against_reference import nans, pairs
from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import Pass, make_inputs
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import SCALABLE
from pytest_kopt.numerics.determinism import bits, same_bits
from pytest_kopt.numerics.nested import fresh_copies, tensors
from pytest_kopt.numerics.snr import compute_snr

#: So many calls, and so long at most: one wrong result in a hundred calls shows.
_CALLS, _SECONDS = 600, 0.1
#: So many calls that all gave equal bits say that a kernel owes them.
_TELLING = 20
#: dB by which two calls on equal inputs may differ less than each of them errs, and the error still
#: be what differs.
_SLACK_DB = 12.0


def equal_calls(checking: Checking) -> Iterator[Finding]:
    """Compare results bit by bit; judge those that differ from the first.

    Other bits that are right are a mistake where the case is `deterministic`, or the incumbent's
    calls gave equal bits.
    """
    seed = checking.seeds["disturb"]
    first, expected, before = None, None, checking.expected
    calls = differing = wrong = 0
    share = 0.0
    end = time.perf_counter() + _SECONDS
    while calls < _CALLS and time.perf_counter() < end:
        checking.restore()
        run = checking.candidate(checking.used, seed)
        calls += 1
        results = run.copies.results
        if expected is None or first is None:
            first = results
            expected = checking.expected = checking.truth(
                fresh_copies(checking.pristine), run.live, seed
            )
        elif len(first) == len(results) and all(map(same_bits, first, results)):
            continue
        else:
            differing += 1
            share = max(share, _differing_share(first, results))
        wrong += not all(comparison.passed for comparison in checking.judged(run))
    # Results of steps before and after it are not judged by this one's.
    checking.expected = before
    case, facts = checking.case, checking.facts
    if differing or calls >= _TELLING:
        facts.bitwise_stable = not differing
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
        owed = owed or ("the current best's calls all gave equal bits" if was_stable else "")
        yield Finding(
            "not-deterministic" if owed else "other-bits",
            f"not deterministic: {differing} of {calls} calls differ, in up to {100 * share:.2g} % "
            f"of the elements of a result, and all are right{owed and f'; {owed}'}",
            where=case.label,
            advice="add up in a fixed order: partial sums in places of their own, no atomics",
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
            f"the result depends on what input {places[0]} holds before the call, and the "
            "reference's does not",
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
                f"{name} depends on the calls before, by as much as it errs: "
                f"{compute_snr(first, second):.1f} dB of SNR between two calls on equal inputs",
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
