"""Calls on other content, and traces that a call leaves: threads, processes, generators.

The controls of a case, which show whether it can tell right from wrong, stand here as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from pytest_kopt.cases.case import is_floating
from pytest_kopt.cases.groups import find_groups, has_skew
from pytest_kopt.cases.order import drawn_so_far, seed_everything
from pytest_kopt.cases.running.against_reference import (
    SLACK_DB,
    controls,
    gated,
    pairs,
    passing_controls,
    torchs_db,
)
from pytest_kopt.cases.running.checking import (
    IDLE_SHARE,
    LONG_SECONDS,
    Checking,
    seconds_of_others,
)
from pytest_kopt.cases.running.execution import Pass, make_inputs
from pytest_kopt.cases.skew import DISTRIBUTIONS
from pytest_kopt.honesty import inputs
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.outputs import NARROW_REFERENCE
from pytest_kopt.numerics.compare import InvalidReference, compare
from pytest_kopt.numerics.nested import fresh_copies
from pytest_kopt.process_tree import children, stat_of

#: A look at the idle process, longer where children's ticks have to be told, and how many busy ones
#: in a row are no after-effect of the call.
_LOOK_SECONDS, _TICKING_SECONDS, _LOOKS = 0.02, 0.05, 25
#: How many looks have to find it idle: on a crowded machine a thread that never rests may get no
#: core for the length of one.
_IDLE_LOOKS = 2
#: The share of elements that two references may round otherwise.
_STEPS = 1e-3
#: So few elements of a weight change that samples of one in a hundred miss them.
_FEW = 4


def same_addresses(checking: Checking) -> None:
    _call_on_new_content(checking, checking.seeds["again"], "new content at the same addresses")
    checking.is_settled = True


def after_many_calls(checking: Checking) -> None:
    _call_on_new_content(checking, checking.seeds["last"], "new content after many calls")


def _call_on_new_content(checking: Checking, seed: int, call_name: str) -> None:
    checking.renew(make_inputs(checking.case, seed))
    checking.call(call_name, seed)


def few_of_a_weight(checking: Checking) -> None:
    """Change a few elements of the weights in place: one in a hundred, then too few for samples."""
    seed, weights = checking.seeds["last"], checking.case.weights
    updated = inputs.updated(make_inputs(checking.case, seed), weights, checking.generator)
    if not _works_in_another_order(checking, updated, "weights", seed):
        return
    for most in (None, _FEW):
        checking.renew(inputs.updated(checking.pristine, weights, checking.generator, most))
        checking.is_renewed_a_little = True
        checking.call("a few elements of the weights changed in place", seed)


def _works_in_another_order(checking: Checking, fresh: Sequence[Any], what: str, seed: int) -> bool:
    """Call on content in another order; say whether kernel and reference work with it, and agree.

    They cannot where order means something. New content follows then, and of the call only a
    finding stands that rejects: an old answer is one on whatever content.
    """
    before = [*checking.comparisons], [*checking.findings], [*checking.broken]
    checking.renew(fresh)
    with suppress(Exception):
        checking.call(f"{what} in another order", seed)
        if checking.passed:
            return True
    if not any(finding.rejects for finding in checking.findings[len(before[1]) :]):
        checking.comparisons, checking.findings, checking.broken = before
        _call_on_new_content(checking, seed, f"other {what}")
    return False


def other_groups(checking: Checking) -> Iterator[Finding]:
    """Draw the sizes of a grouped GEMM's groups again; BadInput where nothing works with others."""
    checked = checking.groups
    if checked is None or not has_skew(checking.case):
        return
    for place, name in enumerate(DISTRIBUTIONS):
        seed = checking.seeds["groups"] + place
        drawn = make_inputs(checking.case, seed)
        groups = find_groups(checking.case, drawn)
        if name == "uniform" and groups.are_uniform:
            # What the case draws itself has been checked.
            checked[name] = groups.sizes
            continue
        sizes = groups.drawn(name)
        checking.renew(groups.replaced(drawn, sizes))
        call_name = f"groups of {min(sizes)} to {max(sizes)} rows, {name}"
        try:
            checking.call(call_name, seed)
        except Exception as error:
            raise _why_not(checking, call_name, error) from error
        if not all(comparison.passed for comparison in checking.comparisons):
            yield _wrong(call_name, groups.are_uniform)
        if not checking.passed:
            return
        checked[name] = sizes


def _why_not(checking: Checking, call_name: str, error: Exception) -> Exception:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        checking.truth.forward(fresh_copies(checking.pristine), ())
    except Exception:
        return checking.case.refusal(
            f"the reference raises for {call_name}: {text}",
            fix="have the reference take any sizes; with group_multiple=N all are multiples of N",
        )
    if isinstance(error, InvalidReference):
        return error
    return RuntimeError(f"{_wrong(call_name, False)}: {text}")


def _wrong(call_name: str, rejects: bool) -> Finding:
    """Return the finding about a kernel that is right for its own groups only."""
    return Finding(
        "uneven-groups",
        f"wrong for {call_name}",
        advice=(
            "read every group's size at run time, also of empty groups; if the "
            "kernel takes multiples of a block only, declare group_multiple=N in the "
            "case"
        ),
        rejects=rejects,
    )


def aftermath(checking: Checking) -> Iterator[Finding]:
    """See whether the process comes to rest."""
    end = perf_counter() + LONG_SECONDS

    def call() -> None:
        if checking.is_short and perf_counter() < end:
            checking.call_unjudged()

    if not checking.is_at_rest() or children():
        yield from still_busy(call)


def seeds_anew(checking: Checking) -> Iterator[Finding]:
    """Say when calls seed torch's global generator, and the reference does not."""

    def states(call: Callable[[], object]) -> set[bytes]:
        left = set()
        for number in range(2):
            seed_everything(checking.seeds["disturb"] + number)
            call()
            left.add(drawn_so_far(checking.bench.device))
        return left

    if len(states(checking.call_unjudged)) == 1 and len(states(checking.again)) > 1:
        yield Finding(
            "generator-left",
            (
                "every call leaves torch's global generator in the same state: later "
                "draws of the program repeat"
            ),
            advice="draw from a torch.Generator of your own, or seed under torch.random.fork_rng()",
            rejects=False,
        )


def still_busy(call: Callable[[], object]) -> Iterator[Finding]:
    """Say when the process or its children compute on while nobody calls the kernel.

    Torch's own pool, and a compiler's workers, run dry soon after a call.
    """
    call()
    shares: list[float] = []
    idle = 0
    while len(shares) < _LOOKS:
        share = _busy_share()
        idle += share < IDLE_SHARE
        if idle == _IDLE_LOOKS:
            return
        shares.append(share)
    yield Finding(
        "background-work",
        (
            f"threads or child processes used {100 * sum(shares) / len(shares):.0f} % "
            "of a core in every measurement while no call was running"
        ),
        advice="do all work within the call, and wait for it before returning",
    )


def _busy_share() -> float:
    processes = children()
    theirs = _seconds_of(processes)
    others_before, start = seconds_of_others(), perf_counter()
    time.sleep(_TICKING_SECONDS if processes else _LOOK_SECONDS)
    spent = seconds_of_others() - others_before + _seconds_of(processes) - theirs
    return spent / (perf_counter() - start)


def _seconds_of(processes: Iterable[int]) -> float:
    total = 0.0
    for number in processes:
        with suppress(OSError, IndexError):
            words = stat_of(number)
            total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


def wrong_answers(checking: Checking) -> Iterator[Finding]:
    """Refuse a case that lets wrong answers pass, or whose reference draws numbers of its own."""
    declared, exact = checking.steady(), checking.in_float64()
    pristine, like = checking.pristine, checking.last.copies
    if exact and not _agree(checking, declared, exact):
        yield NARROW_REFERENCE
    for name, derived in checking.derived.items():
        if derived.gate is None:
            checking.invalid = f"the case accepts wrong answers for {name}: {derived.reason}"
            return
    for number, (name, ref, out) in enumerate(pairs(checking.expected, like)):
        gate = checking.case.declared_gate_of(name)
        if not (gate and isinstance(ref, torch.Tensor) and isinstance(out, torch.Tensor)):
            continue
        # A result takes after an input by accident; the first one is why the case is there.
        wrong = controls(ref, [] if number else pristine, out.dtype)
        passing = passing_controls(ref, wrong, gate)
        reached = torchs_db(name, out.dtype, pristine, checking.expected_of) if passing else 0.0
        # Of what is zero but for rounding no gate can tell anything apart.
        if passing and reached > SLACK_DB:
            checking.invalid = (
                f"the case accepts wrong answers for {name} under {gate.describe()}: "
                f"{', '.join(passing)}. Fix: draw inputs whose result is large "
                "compared with the tolerance, or remove gate=, and kopt derives one"
            )
            return


def _agree(checking: Checking, declared: Pass, exact: Pass) -> bool:
    """Say whether the declared reference lies within the tolerances of the one in float64.

    A few elements that were rounded to another step of a quantiser do not count.
    """
    # A derived gate allows for what float32 costs: the tolerance of the dtype is meant.
    like, case = checking.last.copies, replace(checking.case, derived_gates={})
    results = zip(gated(case, exact, like), pairs(declared, like), strict=True)
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
