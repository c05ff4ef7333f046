"""Calls on other content, at the same addresses and at others, soon and after many calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress

from pytest_kopt.cases.running.checking import Checking, named
from pytest_kopt.cases.running.execution import Candidate, judge, make_inputs
from pytest_kopt.honesty import inputs, memory, outputs
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.nested import fresh_copies

#: A kernel that is wrong every other time is taken for one that remembers once in 1000.
_TURNS = 5


def same_addresses(checking: Checking) -> list[Finding]:
    """Write new content into the very tensors the candidate has seen."""
    checking.renew(make_inputs(checking.case, checking.seeds["again"]))
    checking.call("new content at the same addresses", checking.seeds["again"])
    checking.is_settled = True
    return []


def few_elements(checking: Checking) -> list[Finding]:
    """Change a few elements only; a kernel that is right about one such content is about two.

    Content that the kernel has never seen comes first: where it (or the reference) cannot work
    with elements that changed places, because their order means something, nothing follows.
    """
    seed, weights = checking.seeds["disturb"], checking.case.weights
    before = list(checking.comparisons), list(checking.findings)
    if inputs.can_be_disturbed(checking.given, weights):
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
            return []
    checking.comparisons, checking.findings = before
    checking.is_disturbable = False
    checking.renew(make_inputs(checking.case, seed))
    checking.call("new content at the same addresses", seed)
    return []


def after_many_calls(checking: Checking) -> Iterator[Finding]:
    """Be right after dozens of calls as well, on content much like the first.

    The first content is the one that a kernel could have foreseen from the session's seeds.
    """
    given, first, expected = checking.first
    if checking.is_disturbable:
        fresh = inputs.disturbed(given, checking.case.weights, checking.generator)
    else:
        fresh = list(make_inputs(checking.case, checking.seeds["last"]))
    checking.renew(fresh)
    what = "after many calls"
    checking.call(what, checking.seeds["last"])
    last, wanted = checking.last.kept, checking.expected
    yield from outputs.stale(what, first.kept.all, last.all, expected.all, wanted.all)
    if checking.work:
        yield from checking.truth.called(checking.work.code, last, wanted)


def other_addresses(checking: Checking) -> Iterator[Finding]:
    """Be right about the same content at other addresses, with allocations full of NaN."""
    moved, seed = fresh_copies(checking.given), checking.seeds["last"]
    is_compiled = checking.work is None or checking.work.is_compiled
    memory.poison_freed(checking.last.kept.results)
    with nullcontext() if is_compiled else memory.poisoned_allocations():
        run = checking.candidate(moved, seed)
    spoiled = checking.judged(run)
    if all(item.passed for item in spoiled):
        return
    checking.comparisons += [named(item, "at other addresses") for item in spoiled]
    inputs.restore(moved, checking.given, checking.case.rewritten)
    plain = checking.judged(checking.candidate(moved, seed))
    if all(item.passed for item in plain):
        yield memory.UNWRITTEN


def remembered(checking: Checking) -> Iterator[Finding]:
    """Say of a wrong result whether it is right for the same content in tensors never seen.

    Asked in turns and often, so that a kernel that is wrong now and then is none of this.
    """
    seed, unseen, case = checking.seeds["again"], [], checking.case
    expected = checking.expect(checking.last, seed)
    with suppress(Exception):
        for _ in range(_TURNS):
            unseen.append(fresh_copies(checking.given))
            checking.restore()
            # One of its own has the incoming gradients in memory of their own as well.
            other = Candidate(case, case.function)
            turns = ((checking.candidate, checking.used, False), (other, unseen[-1], True))
            for candidate, given, right in turns:
                memory.poison_freed(checking.last.kept.results)
                found = judge(case, expected, candidate(given, seed).kept)
                if all(item.passed for item in found) is not right:
                    return
        yield outputs.REMEMBERED
