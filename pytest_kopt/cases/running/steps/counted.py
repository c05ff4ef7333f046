"""Calls whose work is counted: on new content, on the same again, and after many equal calls."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.honesty import outputs, work
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.nested import tensors

#: Calls on one content before its work is counted again, and the time that they may take.
_PATIENCE, _PATIENCE_SECONDS = 48, 0.15
_COUNTS = 2


def counted(checking: Checking) -> Iterator[Finding]:
    """Count the work on new content, and on the same content right after."""
    saved = []
    for _ in range(_COUNTS):
        checking.renew_a_little()
        first, second = _count(checking), _count(checking)
        saved.append(work.saves(second, first))
        checking.work = second
    if all(saved):
        yield work.cached(first, second)
    for _ in range(_COUNTS):
        first, second = _in_the_end(checking)
        if not work.saves(second, first):
            break
    else:
        yield work.cached(first, second)
    held = checking.candidate.held(checking.used)
    yield from outputs.recycled(lambda: tensors(checking.call_unjudged()), held)


def _in_the_end(checking: Checking) -> tuple[work.Work, work.Work]:
    """Count the work on new content, and on the same content many calls later."""
    checking.renew_a_little()
    first = _count(checking)
    end = time.perf_counter() + _PATIENCE_SECONDS
    for _ in range(_PATIENCE):
        if time.perf_counter() > end:
            break
        checking.call_unjudged()
    return first, _count(checking)


def _count(checking: Checking) -> work.Work:
    checking.restore()
    return work.work_of(checking.bare)
