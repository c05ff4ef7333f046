"""Whether torch alone makes what was to be written in another language."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import Pass, judge, make_inputs, results_of
from pytest_kopt.honesty import language
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.nested import fresh_copies


def by_hand(checking: Checking) -> Iterator[Finding]:
    """Replay torch's operators of a call by themselves, and judge what they give."""
    case, call = checking.case, checking.case.positional(checking.case.function)
    earlier, given = (list(make_inputs(case, seed)) for seed in (checking.seeds["last"], 1))
    with suppress(RuntimeError, NotImplementedError):
        found = language.computed_by_torch(lambda items: call(*items), earlier, fresh_copies(given))
        if found is None:
            return
        returned, after, operators = found
        outputs = results_of(case, returned, after)
        expected = checking.truth.forward(fresh_copies(given), list(outputs))
        judged = judge(replace(case, backward=False), expected, Pass(outputs, {}))
        if not all(item.passed for item in judged):
            return
        checking.by_torch = operators
        # What the baseline left to torch, and is left to it alike, is nobody's doing.
        if not checking.freezes and operators != checking.left_to_torch:
            yield language.finding(checking.written_in)
