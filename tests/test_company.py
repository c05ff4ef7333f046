"""A version is kept only where the incumbent is as fast beside it as alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from pytest_kopt.cases.order import ALONE, INCUMBENT
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.paired import credit
from pytest_kopt.paired.credit import CrossCheck, look_alone
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.samples import CaseQuads, Quad
from pytest_kopt.paired.verifier_process import Refused
from tests.test_known_noise import compared

from .scripted import block_time


def replica(slower_pct: float) -> dict[str, CaseQuads]:
    """Two cases in which the incumbent takes so much longer beside the candidate, and one same."""

    def quad(alone: float) -> Quad:
        beside = block_time(alone * (1 + slower_pct / 100))
        return [
            (INCUMBENT, beside),
            (ALONE, block_time(alone)),
            (ALONE, block_time(alone)),
            (INCUMBENT, beside),
        ]

    timed = {f"t.py::t[{i}]": CaseQuads(f"t.py::t[{i}]", "wall") for i in range(2)}
    for number, quads in enumerate(timed.values(), start=1):
        quads.quads["alone"] = [quad(number / 10)] * 3
    return {**timed, "t.py::same": CaseQuads("t.py::same", "")}


class Machine:
    """Gives out what is scripted, and counts how often it was asked."""

    def __init__(self, slower_pct: Sequence[float]) -> None:
        self._left: Iterator[float] = iter(slower_pct)
        self.asked = 0

    def in_company(self) -> dict[str, CaseQuads]:
        self.asked += 1
        found = next(self._left, None)
        if found is None:
            raise Refused("it does not load")
        return replica(found)


@pytest.mark.parametrize("slower", [0.0, 1.5, -30.0])
def test_one_look_is_enough_where_nothing_is_amiss(slower: float) -> None:
    machine = Machine([slower] * 9)
    found = look_alone(machine.in_company, 10.0)
    assert (machine.asked, found.finding) == (1, None)
    assert found.document and found.document["slower_pct"] == [pytest.approx(slower)]


def test_a_gain_that_is_the_incumbents_loss_is_none() -> None:
    machine = Machine([65.0, 64.0, 66.0, 65.0])
    finding = look_alone(machine.in_company, 65.0).finding
    assert machine.asked == 4
    assert finding is not None and finding.rejects
    assert (finding.check, "65.0 % slower" in finding.message) == ("incumbent-slowed", True)


def test_a_small_part_of_a_gain_is_told() -> None:
    finding = look_alone(Machine([12.0, 12.1, 11.9, 12.0]).in_company, 40.0).finding
    assert finding is not None and not finding.rejects


def test_what_the_incumbent_loses_is_taken_off_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look_alone(Machine([12.0, 12.1, 11.9, 12.0]).in_company, 40.0)
    assert math.exp(found.excess) == pytest.approx(1.12, abs=1e-4)
    monkeypatch.setattr(credit, "look_alone", lambda *given: found)
    result, _ = compared(NoiseHistory(), gain=1.4)
    assert result.verdict.decision is Decision.ACCEPTED and result.verdict.aggregate
    assert result.verdict.aggregate.change_pct == pytest.approx(25.0, abs=0.2)
    assert result.change().step_pct == pytest.approx(25.0, abs=0.2)
    assert any("of the gain in pairs are not credited" in flag for flag in result.verdict.flags)


@pytest.mark.parametrize(
    ("slower", "asked"),
    [((2.5, -1.0), 2), ((9.0, -8.0), 2), ((9.0, 1.0, -8.0), 3), ((9.0, -3.0, 7.0, -3.0), 4)],
)
def test_what_the_processes_scatter_by_is_no_finding(slower: tuple[float, ...], asked: int) -> None:
    machine = Machine(slower)
    assert look_alone(machine.in_company, 5.0).finding is None
    assert machine.asked == asked


def test_a_gain_that_may_be_the_incumbents_loss_is_in_doubt() -> None:
    """So it was where a kernel changed the C library's thresholds on a busy machine."""
    found = look_alone(Machine([129.0, 86.0, 452.0, 1010.0]).in_company, 53.0)
    assert found.finding is None and "slower in one process with the candidate" in found.doubt
    assert not look_alone(Machine([2.8, 7.9, 70.5, 31.1]).in_company, 2190.0).doubt


def test_a_gain_in_doubt_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "look_alone", lambda *given: CrossCheck("it is slow"))
    found, _ = compared(NoiseHistory(), gain=1.05)
    assert found.verdict.decision is Decision.INCONCLUSIVE
    assert found.verdict.reason.endswith("; but it is slow")
    assert cast(dict[str, object], found.session["incumbent_alone"])["doubt"] == "it is slow"


def test_says_where_the_incumbent_cannot_be_alone() -> None:
    found = look_alone(Machine([]).in_company, 5.0)
    assert not (found.finding or found.doubt)
    assert found.document == {"slower_pct": [], "why_not": "it does not load"}


def test_the_sign_is_that_of_a_loss() -> None:
    (quads, *_) = replica(25.0).values()
    assert quads.ratio("step", "alone") == pytest.approx(-math.log(1.25))
