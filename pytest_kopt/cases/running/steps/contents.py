"""Calls on other content, at the same addresses and at others, and after many calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

from pytest_kopt.cases.groups import find_groups, has_skew
from pytest_kopt.cases.running.checking import Checking, named
from pytest_kopt.cases.running.execution import make_inputs, runs_compiled
from pytest_kopt.cases.skew import DISTRIBUTIONS
from pytest_kopt.honesty import inputs, outputs, poisoned_memory
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.compare import InvalidReference
from pytest_kopt.numerics.nested import fresh_copies, tensors


def same_addresses(checking: Checking) -> None:
    checking.renew(make_inputs(checking.case, checking.seeds["again"]))
    checking.call("new content at the same addresses", checking.seeds["again"])
    checking.is_settled = True


def few_elements(checking: Checking) -> None:
    """Change a few elements only; a kernel that is right about one such content is about two.

    First content in another order: where kernel or reference cannot work with that, because order
    means something, nothing follows.
    """
    seed, weights = checking.seeds["disturb"], checking.case.weights
    before = list(checking.comparisons), list(checking.findings)
    if inputs.can_be_disturbed(checking.pristine, weights):
        fresh = make_inputs(checking.case, seed)
        checking.renew(inputs.disturbed(fresh, weights, checking.generator))
        try:
            checking.call("content in another order", seed)
            works = checking.passed
        except Exception:
            works = False
        if works or len(checking.findings) > len(before[1]):
            if works:
                checking.renew_a_little()
                checking.call("the same content except for a few elements", seed)
            return
    checking.comparisons, checking.findings = before
    checking.is_disturbable = False
    checking.renew(make_inputs(checking.case, seed))
    checking.call("new content at the same addresses", seed)


def other_groups(checking: Checking) -> Iterator[Finding]:
    """Draw the sizes of a grouped GEMM's groups anew; BadInput where nothing works with others."""
    for place, name in enumerate(DISTRIBUTIONS if has_skew(checking.case) else ()):
        seed = checking.seeds["groups"] + place
        drawn = make_inputs(checking.case, seed)
        groups = find_groups(checking.case, drawn)
        if name == "uniform" and groups.are_uniform:
            # What the case draws itself has been checked.
            checking.facts.groups[name] = groups.sizes
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
        checking.facts.groups[name] = sizes


def _why_not(checking: Checking, call_name: str, error: Exception) -> Exception:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        checking.truth.forward(fresh_copies(checking.pristine), ())
    except Exception:
        return checking.case.refusal(
            f"the reference raises for {call_name}: {text}",
            "a reference that takes any sizes; with group_multiple=N they are multiples of N",
        )
    if isinstance(error, InvalidReference):
        return error
    return RuntimeError(f"{_wrong(call_name, False)}: {text}")


def _wrong(call_name: str, rejects: bool) -> Finding:
    """Return the finding about a kernel that is right for its own groups only."""
    return Finding(
        "uneven-groups",
        f"not right for {call_name}",
        advice="read every group's size at run time, empty ones too; if the kernel only takes "
        "multiples of a block, declare group_multiple=N in the case",
        rejects=rejects,
    )


def recycled(checking: Checking) -> list[Finding]:
    shareable = checking.candidate.shareable_memory(checking.used)
    return outputs.recycled(lambda: tensors(checking.call_unjudged()), shareable)


def after_many_calls(checking: Checking) -> Iterator[Finding]:
    """Be right after dozens of calls as well, on content much like the first, foreseeable one."""
    pristine, first, expected = checking.first
    if checking.is_disturbable:
        fresh = inputs.disturbed(pristine, checking.case.weights, checking.generator)
    else:
        fresh = list(make_inputs(checking.case, checking.seeds["last"]))
    checking.renew(fresh)
    call_name = "after many calls"
    checking.call(call_name, checking.seeds["last"])
    last, last_expected = checking.last.copies, checking.expected
    yield from outputs.stale(call_name, first.copies.all, last.all, expected.all, last_expected.all)


def other_addresses(checking: Checking) -> Iterator[Finding]:
    """Be right about the same content at other addresses, with allocations full of NaN."""
    moved, seed = fresh_copies(checking.pristine), checking.seeds["last"]
    # Compiled functions would be compiled anew for poisoned allocations.
    is_costly = not checking.is_short or runs_compiled(checking.call_unjudged)
    poisoned_memory.poison_freed(checking.last.copies.results)
    with nullcontext() if is_costly else poisoned_memory.poisoned_allocations():
        run = checking.candidate(moved, seed)
    spoiled = checking.judged(run)
    if all(comparison.passed for comparison in spoiled):
        return
    checking.comparisons += [named(comparison, "at other addresses") for comparison in spoiled]
    inputs.restore(moved, checking.pristine, checking.case.rewritten)
    plain = checking.judged(checking.candidate(moved, seed))
    if all(comparison.passed for comparison in plain):
        yield poisoned_memory.UNWRITTEN
