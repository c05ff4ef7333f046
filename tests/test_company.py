"""A version is kept only where the incumbent is as fast beside it as alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO
from pytest_kopt.decide.inference import percent
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.paired import credit
from pytest_kopt.paired.credit import CrossCheck, look_alone, look_singles
from pytest_kopt.paired.judge import Refused
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.samples import BlockTime, CaseQuads, Quad
from pytest_kopt.trials.comparing import _doubt_there
from tests.test_known_noise import compared

from .scripted import block_time

Arm = tuple[str, BlockTime]


def replica(
    gain_pct: float, slower_pct: float = 0.0, *, held_up: float = 0.0, moved: float = 0.0
) -> dict[str, CaseQuads]:
    """Two cases in which the candidate gains so much next to the incumbent, and one that is same.

    There the incumbent takes `slower_pct` longer than alone. One block of either version takes
    `held_up` ms more, and `moved` ms more pass around the candidate's blocks.
    """

    def case(number: int) -> CaseQuads:
        alone = block_time(10.0 * (number + 1))
        beside = block_time(alone.forward * (1 + slower_pct / 100))
        new = block_time(beside.forward / (1 + gain_pct / 100))
        new = replace(new, outside=new.outside + moved)

        def laps(first: Arm, last: Arm) -> list[Quad]:
            laps = [[first, last, last, first] for _ in range(3)]
            laps[1][0] = first[0], block_time(first[1].forward + held_up * (first[0] != ALONE))
            laps[1][1] = last[0], block_time(last[1].forward + held_up)
            return laps

        quads = {
            "candidate": laps((CANDIDATE, new), (INCUMBENT, beside)),
            "alone": laps((ALONE, alone), (INCUMBENT, beside)),
        }
        return CaseQuads(f"t.py::t[{number}]", "wall", quads)

    timed = map(case, range(2))
    return {
        **{quads.nodeid: quads for quads in timed},
        "t.py::same": CaseQuads("t.py::same", "", same="source"),
    }


class Machine:
    """Gives out what is scripted, None for a refusal, and counts how often it was asked."""

    def __init__(self, *company: Mapping[str, CaseQuads] | None) -> None:
        self._left = iter(company)
        self.asked = 0

    def in_company(self) -> Mapping[str, CaseQuads]:
        self.asked += 1
        if (found := next(self._left, None)) is None:
            raise Refused("it does not load")
        return found


def looked(machine: Machine, gain_pct: float) -> CrossCheck:
    return look_alone(machine.in_company, [replica(gain_pct)] * 2)


def slowed(gain_pct: float, *slower_pct: float) -> Machine:
    """The incumbent is so much slower than alone each time that it is asked for."""
    return Machine(*(replica(gain_pct, slower) for slower in slower_pct))


@pytest.mark.parametrize("slower", [0.0, 1.5, -30.0])
def test_one_look_is_enough_where_nothing_is_amiss(slower: float) -> None:
    machine = slowed(10.0, *[slower] * 9)
    found = looked(machine, 10.0)
    assert (machine.asked, found.finding, found.doubt, found.excess) == (1, None, "", 0.0)
    assert found.document and found.document["slower_pct"] == [pytest.approx(slower)]


def test_a_gain_that_is_the_incumbents_loss_is_none() -> None:
    machine = slowed(65.0, 65.0, 64.0, 66.0, 65.0)
    finding = looked(machine, 65.0).finding
    assert machine.asked == 4
    assert finding is not None and finding.rejects
    assert (finding.check, "65.0 % slower" in finding.message) == ("incumbent-slowed", True)


def test_what_the_copy_of_the_incumbent_does_widens_nothing() -> None:
    """The control is measured in the candidate's process, which can hold it up as well."""
    replicas = [replica(60.0)] * 2
    for case in replicas[0].values():
        copy: list[Quad] = [
            [(arm, block_time(30.0 if arm == PLACEBO else 10.0)) for arm in lap]
            for lap in [(PLACEBO, INCUMBENT, INCUMBENT, PLACEBO)] * 3 * bool(case.quads)
        ]
        case.quads |= {"placebo": copy} if copy else {}
    finding = look_alone(slowed(60.0, *[60.0] * 4).in_company, replicas).finding
    assert finding is not None and finding.rejects


@given(st.floats(5.0, 1e4), st.floats(0.0, 1.0))
def test_a_gain_that_is_less_in_company_is_credited_as_far_as_it_is_there(
    gain: float, share: float
) -> None:
    """The candidate may tell that the incumbent alone is timed next to it, and slow nothing."""
    there = math.expm1(share * math.log1p(gain / 100)) * 100
    found = looked(Machine(*[replica(there)] * 4), gain)
    less = (1 - share) * math.log1p(gain / 100)
    least = credit.suspect_above(math.log1p(gain / 100))
    assert found.finding is None
    if abs(less - least) > 1e-9:
        assert found.excess == pytest.approx(less if less > least else 0.0)


def test_a_block_that_holds_the_candidate_and_the_incumbent_up_counts_against_the_gain() -> None:
    """A ratio of sums next to the slowed incumbent is that of the pairs."""
    found = looked(Machine(*[replica(100.0, held_up=2000.0)] * 4), 100.0)
    assert found.excess == pytest.approx(math.log(2) - math.log(60 / (30 + 2000)), rel=0.2)


def test_work_that_is_moved_around_the_blocks_is_no_gain_over_the_current_best_alone() -> None:
    found = looked(Machine(*[replica(100.0, moved=20.0)] * 4), 100.0)
    assert found.excess > 0.5 * math.log(2)
    assert not looked(Machine(replica(100.0, moved=0.1)), 100.0).excess


def test_a_small_part_of_a_gain_is_told() -> None:
    finding = looked(slowed(40.0, 12.0, 12.1, 11.9, 12.0), 40.0).finding
    assert finding is not None and not finding.rejects


def test_what_the_incumbent_loses_is_taken_off_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(slowed(40.0, 12.0, 12.1, 11.9, 12.0), 40.0)
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
    machine = slowed(5.0, *slower)
    assert looked(machine, 5.0).finding is None
    assert machine.asked == asked


def test_a_gain_that_may_be_the_incumbents_loss_is_in_doubt() -> None:
    """So it was where a kernel changed the C library's thresholds on a busy machine."""
    found = looked(slowed(53.0, 129.0, 86.0, 452.0, 1010.0), 53.0)
    assert found.finding is None and "against the current best alone" in found.doubt
    assert not looked(slowed(2190.0, 2.8, 7.9, 70.5, 31.1), 2190.0).doubt


def test_a_gain_in_doubt_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "look_alone", lambda *given: CrossCheck("it is slow"))
    found, _ = compared(NoiseHistory(), gain=1.05)
    assert found.verdict.decision is Decision.INCONCLUSIVE
    assert found.verdict.reason.endswith("; but it is slow")
    assert cast(dict[str, object], found.session["incumbent_alone"])["doubt"] == "it is slow"


@pytest.mark.parametrize("before", [0, 1])
def test_a_gain_that_cannot_be_held_against_the_incumbent_alone_is_in_doubt(before: int) -> None:
    machine = Machine(*[replica(0.0)] * before)
    found = looked(machine, 5.0)
    assert found.doubt.endswith("against the current best alone: it does not load")
    assert found.document and found.document["why_not"] == "it does not load"
    assert machine.asked == before + 2


def test_a_case_that_was_not_timed_in_company_is_in_doubt() -> None:
    """A process that holds the candidate may say there that both versions are the same."""
    company = replica(5.0)
    company["t.py::t[1]"] = CaseQuads("t.py::t[1]", "", same="machine")
    assert looked(Machine(company, company), 5.0).doubt


def test_one_refusal_is_nobodys_doing() -> None:
    assert looked(Machine(None, replica(5.0)), 5.0).doubt == ""


def test_the_sign_is_that_of_a_loss() -> None:
    (quads, *_) = replica(0.0, 25.0).values()
    assert quads.ratio("step", "alone") == pytest.approx(-math.log(1.25))


def in_singles(
    new_ms: float, noise_ms: float = 0.0, old: str = ALONE
) -> list[dict[str, CaseQuads]]:
    """A replica with twice the speed in blocks, where a single call takes `new_ms` to 11 ms."""
    company = replica(100.0)
    for case in company.values():
        if not case.same:
            moved = [noise_ms * (-1) ** number for number in range(6)]
            case.singles = [
                [
                    (old, block_time(11.0 + more)),
                    (CANDIDATE, block_time(new_ms)),
                    (CANDIDATE, block_time(new_ms + more)),
                    (old, block_time(11.0)),
                ]
                for more in moved
            ]
            lap = (CANDIDATE, INCUMBENT, INCUMBENT, CANDIDATE)
            case.quads[CANDIDATE] = [
                [(arm, block_time(5.0 if arm == CANDIDATE else 10.0)) for arm in lap]
            ]
            case.quads["alone"] = [
                [(arm, block_time(10.0)) for arm in (ALONE, INCUMBENT, INCUMBENT, ALONE)]
            ]
    return [company]


@pytest.mark.parametrize(
    ("new_ms", "credited_pct"), [(6.0, 100.0), (5.0, 100.0), (8.0, 100.0 * 3 / 7), (11.0, 0.0)]
)
def test_a_gain_is_no_larger_than_in_blocks_of_one_call(new_ms: float, credited_pct: float) -> None:
    """What a call takes more because it is alone is the current best's as well."""
    for found in (
        look_singles(
            [replica(100.0)] * 2, in_singles(new_ms, 0.01), lambda: in_singles(new_ms, 0.01)
        ),
        # Where each version has a process of its own, in the replicates themselves.
        look_singles(
            in_singles(new_ms, 0.01, INCUMBENT), [], lambda: in_singles(new_ms, 0.01, INCUMBENT)
        ),
    ):
        assert math.expm1(math.log(2) - found.excess) * 100 == pytest.approx(credited_pct, abs=0.5)


def test_what_single_calls_scatter_by_is_no_doubt() -> None:
    found = look_singles([replica(100.0)] * 2, in_singles(6.5, 9.0), list)
    assert (found.doubt, found.excess) == ("", 0.0)


def test_what_one_process_alone_shows_in_single_calls_is_no_doubt() -> None:
    """A process may be slower than another in any block, by more than calls of its own scatter."""
    asked = iter([in_singles(8.0, 0.01), in_singles(6.0, 0.01)])
    found = look_singles([replica(100.0)] * 2, in_singles(8.0, 0.01), lambda: next(asked))
    assert (found.doubt, found.excess) == ("", 0.0) and not [*asked]


def test_a_gain_is_no_larger_than_for_input_values_that_are_brought() -> None:
    """A call may be as fast in any block of one call, and be computed early in others."""
    (company,) = in_singles(5.0, 0.01)
    for case in company.values():
        arms = (ALONE, 10.0), (CANDIDATE, 8.0), (CANDIDATE, 8.01), (ALONE, 10.01)
        case.brought = [[(arm, block_time(ms)) for arm, ms in arms]] * 2 * (not case.same)
    found = look_singles([replica(100.0)] * 2, [company], lambda: [company], is_brought=True)
    assert math.expm1(math.log(2) - found.excess) * 100 == pytest.approx(25.0, abs=0.5)


def test_what_single_calls_show_stays_where_others_are_not_measured() -> None:
    """A candidate could end its process in them whenever they are asked for again."""
    found = look_singles([replica(100.0)] * 2, in_singles(8.0, 0.01), lambda: [replica(100.0)])
    assert math.expm1(math.log(2) - found.excess) * 100 == pytest.approx(100.0 * 3 / 7, abs=0.5)


def test_where_no_single_call_was_timed_nothing_is_held() -> None:
    assert look_singles([replica(100.0)] * 2, [], list) == CrossCheck()


@pytest.mark.parametrize(
    ("new_ms", "wrong", "left_pct"), [(6.0, "", 100.0), (11.0, "", 0.0), (6.0, "SNR 3 dB", 100.0)]
)
def test_next_to_the_baseline_all_is_asked_in_which_the_current_best_took_part(
    new_ms: float, wrong: str, left_pct: float
) -> None:
    """It could be slow in blocks of one call, or have nothing judged."""
    (company,), orders = in_singles(new_ms, 0.01), list[str]()
    tried = [Tried("a", "renewed", {}, {CANDIDATE: "wrong"}, {CANDIDATE: wrong})] if wrong else []
    comparison = SimpleNamespace(
        why_apart="",
        written="",
        untried="",
        tried=tried,
        in_company=lambda gain: company,
        judge_postponed=lambda: orders.append("judge"),
    )
    replicas = [replica(100.0)]
    doubt, excess = _doubt_there(cast("Any", comparison), replicas, [], math.log(2), None)
    assert doubt == wrong and orders == ["judge"]
    assert math.expm1(math.log(2) - excess) * 100 == pytest.approx(left_pct, abs=0.5)
    case = replicas[0]["t.py::t[0]"]
    assert percent(case.ratio("step")) == pytest.approx(left_pct, abs=0.5)
