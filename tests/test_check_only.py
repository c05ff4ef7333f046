"""A check without a clock: what it finds, and how seldom it calls a slow kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_kopt import policies
from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.order import Bench, WorkerOrders
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.cases.running.run_case import run_case
from pytest_kopt.decide.grounds import by_ground
from pytest_kopt.schema.columns import Column, Schema
from pytest_kopt.session.worker import bench_of
from pytest_kopt.trials.judging import unfinished
from tests.scripted import Clock
from tests.sessions.project import Project

#: Calls whose answers are held against the reference, of a kernel that is long.
JUDGED = 2


class Counted:
    """Doubles a tensor, taking its time by a clock; counts its calls."""

    def __init__(
        self, clock: Clock | None = None, seconds: float = 0.0, factor: float = 2.0
    ) -> None:
        self.clock, self.seconds, self.factor, self.calls = clock, seconds, factor, 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.clock:
            self.clock.spend(self.seconds)
        return self.factor * x


def case_of(function: Callable[..., Any], schema: str | Schema = "memory") -> Case:
    return declare(
        "test_a.py::test_doubled",
        schema,
        function,
        inputs=lambda: (torch.randn(64),),
        reference=lambda x: 2 * x.double(),
        dims={"n": 64},
        nbytes=8 * 64,
    )


def plain_bench(**orders: Any) -> Bench:
    """Return the bench of a session without a round."""
    return bench_of(WorkerOrders("cpu", "auto", 1, 60.0, "standard", **orders))


def checked(function: Callable[..., Any], schema: str | Schema = "memory") -> CaseResult:
    return run_case(case_of(function, schema), plain_bench(only_checks=True))[0]


def test_a_check_has_a_verdict_and_no_times() -> None:
    result = checked(Counted())
    assert result.check == "PASS"
    assert math.isnan(float(result.cells["Forward GB/s"] or 0))
    found = result.evidence
    assert not (found.engine or found.samples_ms("forward"))


def test_a_check_finds_what_is_wrong_and_what_is_no_answer() -> None:
    assert checked(Counted(factor=2.1)).check == "FAIL"
    known: dict[int, torch.Tensor] = {}

    def remembers(x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in known:
            known[x.data_ptr()] = 2 * x
        return known[x.data_ptr()].clone()

    result = checked(remembers)
    assert result.check == "FAIL" and any(found.rejects for found in result.findings)


@pytest.mark.parametrize(
    ("gate", "check"), [("Forward GB/s > 1e9", "PASS"), ("out_snr < 1", "FAIL")]
)
def test_a_gate_on_a_time_is_not_asked(gate: str, check: str) -> None:
    columns = (
        Column("Forward GB/s", "forward_rate", "higher"),
        Column("out_snr", "out_snr"),
    )
    schema = Schema("own", columns, dims=("n",), unit="GB/s", work="nbytes", gate=gate)
    assert checked(Counted(), schema).check == check


def test_what_the_interpreter_ran_is_timed_for_a_record_only() -> None:
    plain = plain_bench()
    assert plain.times("t.py::a", False) and not plain.times("t.py::a", True)
    assert not replace(plain, untimed=("t.py::a",)).times("t.py::a", False)
    judging = replace(plain, decides=True)
    assert judging.times("t.py::a", True)
    assert not replace(judging, only_checks=True).times("t.py::a", False)


@pytest.mark.parametrize(("seconds", "most"), [(0.06, 40), (0.35, JUDGED)])
def test_a_check_of_a_slow_kernel_has_few_calls(clock: Clock, seconds: float, most: int) -> None:
    kernel = Counted(clock, seconds)
    assert checked(kernel).check == "PASS"
    assert JUDGED <= kernel.calls <= most


def test_samples_of_a_slow_kernel_are_few(clock: Clock) -> None:
    """At most half a second each, and of one call where that takes as long."""
    for seconds, calls in ((1e-4, 50), (0.06, 9), (0.7, 1)):
        kernel = Counted(clock, seconds)
        block = plain_bench().cpu.prepare([partial(kernel, torch.ones(1))])
        assert 1 <= block.calls <= calls


def test_one_repeat_is_one_sample() -> None:
    _, (forward,), _ = run_case(case_of(Counted()), plain_bench(repeats=1))
    assert len(forward.samples_ms) == 1


def test_a_first_call_that_builds_something_does_not_make_a_kernel_slow(clock: Clock) -> None:
    """It is checked like any other: dozens of times."""
    kernel = Counted(clock, 0.35)

    def built(x: torch.Tensor) -> torch.Tensor:
        result = kernel(x)
        kernel.seconds = 0.0
        return result

    assert checked(built).check == "PASS"
    assert kernel.calls > 2 * JUDGED


DECLARED = """
import pytest
import torch


def declare(kopt, n):
    kopt(
        lambda x: x * 2,
        inputs=lambda: (torch.randn(n),),
        reference=lambda x: x.double() * 2,
        dims={"n": n},
        nbytes=8 * n,
    )


@pytest.mark.kopt(schema="memory")
def test_never(kopt):
    pass


class Refuses:
    def __call__(self, x):
        try:
            return x.nothing
        except AttributeError:
            raise RuntimeError("no such thing")


@pytest.mark.kopt(schema="memory")
def test_raises(kopt):
    fails = dict(reference=lambda x: x.double(), dims={"n": 3}, nbytes=24)
    kopt(Refuses(), inputs=lambda: (torch.randn(3),), **fails)
"""


def test_what_a_test_does_wrong_is_told_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never is a finding, and an error is shown a single time, on CI too."""
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(DECLARED)
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--kopt-check-only")
    run.assert_outcomes(failed=1, passed=1)
    text = run.stdout.str()
    told = next(line for line in text.splitlines() if line.startswith("flag: never-called: "))
    assert "::test_never)" in told and "so kopt checked nothing" in told
    assert text.count("RuntimeError: no such thing") == 1
    assert "the cases cannot tell" not in text
    assert "During handling of the above exception" not in text


def test_a_second_call_is_refused_and_no_kernel_s_fault(tmp_path: Path) -> None:
    project = Project(tmp_path)
    calls = "    declare(kopt, 4)\n    declare(kopt, 8)\n"
    project.write("test_twice.py", DECLARED.replace("    pass\n", calls))
    run = project.pytest("-p", "no:cacheprovider", "--kopt-check-only")
    assert run.code == 4, run.text
    said = r"::test_never: kopt\(\) was called a second time.*-p no:NAME"
    assert re.search(said, run.err), run.text


def test_nothing_is_decided_where_a_case_never_called() -> None:
    """In a round and in a gate: it had no row, as if somebody had filtered it out."""
    ids = ["t.py::test_a", "t.py::test_b"]
    found = Collector(order=ids, results={ids[0]: checked(Counted())}, silent={ids[1]})
    verdict = by_ground(unfinished(found, ids, ""), policies.load("primus"))
    assert verdict is not None and verdict.decision == "INCOMPLETE"
    assert verdict.reason == "1 case(s) never called kopt(): t.py::test_b"
    assert verdict.flags == list(map(str, found.never_called()))
    assert verdict.flags[0].startswith("never-called: ")


@pytest.mark.parametrize("is_confined", [True, False])
def test_where_a_kernel_may_write_is_told_where_the_system_keeps_it_there(
    is_confined: bool,
) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        raise PermissionError(13, "Permission denied", "/home/me/.tunings")

    hook: Any = SimpleNamespace(is_confined=is_confined)
    bench = replace(plain_bench(only_checks=True), audit_hook=hook)
    found = run_case(case_of(kernel), bench)[0].diagnosis
    assert "/home/me/.tunings" in found and ("write only to" in found) == is_confined
