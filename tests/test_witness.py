"""What passes around counted time: a gain that was only moved there is none."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT
from pytest_kopt.devices.states import SUSTAINED
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.paired.credit import (
    CrossCheck,
    look_anew,
    look_around,
    look_outside,
    look_total,
    lost_elsewhere,
)
from pytest_kopt.paired.samples import BlockTime, CaseQuads

from .scripted import block_time


def replica(
    new: float, moved: float, *, around: float = 10.0, noise: float = 0.0, engine: str = "wall"
) -> dict[str, CaseQuads]:
    """A case whose current best takes 20 ms; `moved` more ms pass around the new one's blocks."""
    dice = random.Random(new + moved)

    def block(counted: float, rest: float) -> BlockTime:
        rest *= dice.gauss(1, noise)
        return BlockTime(counted, None, counted, counted + rest, counted)

    def quad() -> list[tuple[str, BlockTime]]:
        arms = (CANDIDATE, INCUMBENT, INCUMBENT, CANDIDATE)
        times = {CANDIDATE: (new, around + moved), INCUMBENT: (20.0, around)}
        return [(arm, block(*times[arm])) for arm in arms]

    return {"a": CaseQuads("a", engine, {CANDIDATE: [quad() for _ in range(3)]})}


@pytest.mark.parametrize("engine", ["wall", "events", "graph+events"])
def test_a_gain_that_passes_around_the_blocks_is_named(engine: str) -> None:
    finding = look_around([replica(2.0, 28.0, around=1.0, engine=engine)] * 2).finding
    assert finding is not None and (finding.check, finding.where) == ("hidden-time", "a")
    assert finding.rejects
    assert "18 ms less than the current best's, and 28 ms more pass" in finding.message


@given(st.floats(1.0, 1e5), st.integers(0, 11))
def test_a_block_that_is_held_up_hides_nothing(longer: float, at: int) -> None:
    """Neither by its own time nor by how much all of them scatter then."""
    measured = [replica(2.0, 18.0, around=1.0), replica(2.0, 18.0, around=1.0)]
    blocks = [
        (quad, place)
        for of_process in measured
        for quad in of_process["a"].quads["candidate"]
        for place, (arm, _) in enumerate(quad)
        if arm == CANDIDATE
    ]
    quad, place = blocks[at]
    time = quad[place][1]
    quad[place] = CANDIDATE, replace(time, outside=time.outside + longer)
    assert look_around(measured).finding


@given(st.floats(3.0, 19.0), st.floats(2.0, 12.0))
def test_a_part_of_a_gain_that_passes_around_the_blocks_is_taken_off(
    new: float, moved: float
) -> None:
    found = look_around([replica(new, moved, around=0.0)] * 2)
    credited = math.log(20 / new) - found.excess
    assert found.finding or credited <= math.log(20 / (new + moved - 0.4)) + math.log(1.021)


@given(st.floats(1.0, 19.9), st.floats(-8.0, 0.0), st.floats(8.5, 50))
def test_a_gain_that_is_one_outside_as_well_is_no_finding(
    new: float, moved: float, around: float
) -> None:
    found = look_around([replica(new, moved, around=around)] * 2)
    assert (found.finding, found.doubt, found.excess) == (None, "", 0.0)


@given(st.floats(20.0, 40.0), st.floats(0, 50))
def test_where_nothing_is_gained_nothing_is_hidden(new: float, moved: float) -> None:
    assert not look_around([replica(new, moved)] * 2).finding


@pytest.mark.parametrize("seed", range(20))
def test_what_only_scatters_is_no_finding(seed: int) -> None:
    new = 15.0 + seed / 10
    found = look_around([replica(new, 0.0, around=40.0, noise=0.1)] * 2)
    assert (found.finding, found.doubt, found.excess) == (None, "", 0.0)


def test_a_case_that_needed_no_clock_is_left_out() -> None:
    assert look_around([{"a": CaseQuads("a", "", same="source")}] * 2) == CrossCheck()


def gpu(new: float, outside: float, noise: float, seed: int = 0) -> dict[str, CaseQuads]:
    """A case of a GPU whose current best takes 20 ms by events, and as long by the outside clock.

    The new version takes `new` by events and `outside` by the other clock, which scatters.
    """
    dice = random.Random(seed)
    times = {CANDIDATE: block_time(new), INCUMBENT: block_time(20.0)}
    quad = [(arm, times[arm]) for arm in (CANDIDATE, INCUMBENT, INCUMBENT, CANDIDATE)]
    seen = tuple(math.log(20.0 / (outside + dice.gauss(0, noise))) for _ in range(2))
    return {"a": CaseQuads("a", "graph", {CANDIDATE: [quad] * 6}, outside=seen)}


def unasked() -> Never:
    raise AssertionError("another replica was asked for")


def shown(check: CrossCheck) -> float:
    """Return the change that another measurement estimates, as a log-ratio."""
    assert check.document is not None
    return math.log1p(check.document["change_pct"] / 100)


def four(new: float, outside: float, noise: float, seed: int = 0) -> list[dict[str, CaseQuads]]:
    return [gpu(new, outside, noise, 4 * seed + number) for number in range(4)]


@given(st.integers(0, 10_000), st.floats(15.0, 19.5))
def test_a_gain_that_the_outside_clock_sees_is_credited_at_once(seed: int, new: float) -> None:
    witness = look_outside(four(new, new, 0.05, seed), unasked)
    assert not witness.doubt and not witness.finding
    assert shown(witness) == pytest.approx(math.log(20 / new), abs=0.02)


@pytest.mark.parametrize("seed", range(10))
def test_forged_events_are_contradicted(seed: int) -> None:
    more = iter(four(15.0, 25.0, 0.05, seed + 100))
    witness = look_outside(four(15.0, 25.0, 0.05, seed), lambda: [next(more)])
    assert shown(witness) == pytest.approx(math.log(20 / 25), abs=0.01)
    assert (
        witness.document
        and witness.document["more_replicas"] == 2
        and "the change is -" in witness.doubt
    )
    finding = witness.finding
    assert finding is not None and finding.rejects and "+33.3 %" in finding.message


@pytest.mark.parametrize("seed", range(10))
def test_a_forged_part_of_a_gain_is_contradicted_too(seed: int) -> None:
    witness = look_outside(four(10.0, 18.0, 0.05, seed), unasked)
    assert witness.finding and not witness.doubt


@given(st.integers(0, 10_000))
def test_what_scatters_is_no_contradiction(seed: int) -> None:
    assert not look_outside(four(19.0, 19.0, 0.4, seed), lambda: ()).finding


def test_a_gain_that_the_outside_clock_cannot_tell_takes_more_replicas() -> None:
    witness = look_outside(four(19.9, 20.5, 0.5), lambda: four(19.0, 19.0, 0.001) * 6)
    assert not witness.doubt and witness.document and witness.document["more_replicas"] == 1


def unwitnessed(new: float) -> dict[str, CaseQuads]:
    """The same without that clock."""
    case = gpu(new, new, 0.0)["a"]
    return {"a": replace(case, outside=())}


def test_events_forged_where_the_outside_clock_is_not_asked_are_contradicted() -> None:
    """They were honest in the replicas that it witnessed."""
    witness = look_outside([unwitnessed(10.0), *four(19.0, 19.0, 0.05)], unasked)
    assert witness.finding


def test_a_replica_whose_incumbent_was_timed_alone_counts_once() -> None:
    """`examine` has it among the replicas, and what was timed beside it once more."""
    measured = [unwitnessed(10.0), *four(19.0, 19.0, 0.05)]
    copies = [{"a": replace(case["a"], outside=())} for case in measured[1:]]
    once, again = (look_outside(measured, unasked, None, beside) for beside in ((), copies))
    assert once == again


def test_a_gain_that_the_outside_clock_has_not_seen_is_asked_about() -> None:
    witness = look_outside([unwitnessed(15.0)] * 2, lambda: four(15.0, 15.0, 0.05)[:1])
    assert not witness.doubt and witness.document and witness.document["more_replicas"] == 1
    assert not look_outside([unwitnessed(15.0)] * 2, unasked, loss_pct=5.0).doubt
    assert "could not time the change" in look_outside([unwitnessed(15.0)] * 2, lambda: ()).doubt


def test_where_no_gain_is_claimed_only_a_loss_is_held_against_it() -> None:
    same = four(20.0, 20.3, 0.3)
    assert look_outside(same, lambda: same).doubt
    assert not look_outside(same, unasked, loss_pct=5.0).doubt
    slower = four(20.0, 25.0, 0.3)
    assert look_outside(slower, lambda: slower, loss_pct=5.0).doubt


def waiting(new: float, passed: float) -> list[dict[str, CaseQuads]]:
    """A case whose current best takes 20 ms of processor time and as long by the clock."""
    times = {
        CANDIDATE: BlockTime(new, None, new, new, passed),
        INCUMBENT: BlockTime(20.0, None, 20.0, 20.0, 20.0),
    }
    quad = [(arm, times[arm]) for arm in (CANDIDATE, INCUMBENT, INCUMBENT, CANDIDATE)]
    return [{"a": CaseQuads("a", "wall", {CANDIDATE: [quad] * 3})}] * 2


def test_on_the_cpu_a_gain_that_the_clock_shows_to_be_a_loss_is_none() -> None:
    assert "the change is -50.0 %" in look_outside(waiting(5.0, 40.0), unasked).doubt
    witness = look_outside(waiting(5.0, 19.0), unasked)
    assert not witness.doubt and not witness.finding


@pytest.mark.parametrize(("passed", "excess"), [(5.0, 0.0), (5.05, 0.0), (19.0, 19 / 5)])
def test_on_the_cpu_a_gain_counts_as_far_as_the_clock_sees_it(passed: float, excess: float) -> None:
    witness = look_outside(waiting(5.0, passed), unasked)
    assert math.exp(witness.excess) == pytest.approx(excess or 1.0)
    assert not look_outside(waiting(5.0, passed), unasked, loss_pct=5.0).excess


@pytest.mark.parametrize("seed", range(5))
def test_a_wait_shows_among_blocks_that_others_hold_up(seed: int) -> None:
    """The processor time is a quarter; by the clock nothing is gained, in blocks that scatter."""
    dice = random.Random(seed)

    def block(counted: float) -> BlockTime:
        return BlockTime(counted, None, counted, counted, 20.0 * dice.gauss(1, 0.2))

    def quad() -> list[tuple[str, BlockTime]]:
        arms = (CANDIDATE, INCUMBENT, INCUMBENT, CANDIDATE)
        return [(arm, block(5.0 if arm == CANDIDATE else 20.0)) for arm in arms]

    replicas = [
        {"a": CaseQuads("a", "wall", {CANDIDATE: [quad() for _ in range(3)]})} for _ in range(2)
    ]
    witness = look_outside(replicas, unasked)
    assert math.exp(math.log(4) - witness.excess) == pytest.approx(1.0, abs=0.3)


def in_company(new: float, passed: float) -> list[dict[str, CaseQuads]]:
    """The same next to the current best alone; the current best next to it waits as long."""
    replicas = waiting(new, passed)
    for case in replicas[0].values():
        for quad in case.quads["candidate"]:
            quad[1] = INCUMBENT, BlockTime(20.0, None, 20.0, 20.0, passed * 20 / new)
        old, alone = quad[2], (ALONE, quad[2][1])
        case.quads["alone"] = [[alone, old, old, alone]] * 3
    return replicas


@given(st.floats(10.1, 1e6))
def test_a_wait_is_not_hidden_by_making_the_current_best_wait(passed: float) -> None:
    beside = in_company(5.0, passed)
    assert not look_outside(waiting(5.0, 5.0), unasked, None, in_company(5.0, 5.0)).excess
    witness = look_outside(beside, unasked, None, beside)
    assert witness.doubt or witness.excess >= math.log(4) - math.log(20 / min(passed, 20.0)) - 1e-9


def timed(*new: float) -> dict[str, CaseQuads]:
    """A process in which the current best's blocks take 20 ms and the candidate's so much each."""
    old = (INCUMBENT, block_time(20.0))
    blocks = [(CANDIDATE, block_time(ms)) for ms in new]
    quads = [[a, old, old, b] for a, b in zip(blocks[::2], blocks[1::2], strict=True)]
    return {"a": CaseQuads("a", "wall", {CANDIDATE: quads})}


@given(st.floats(5.0, 30.0), st.integers(0, 10_000))
def test_blocks_that_only_scatter_take_nothing_off_the_gain(new: float, seed: int) -> None:
    dice = random.Random(seed)
    measured = [timed(*(new * dice.gauss(1, 0.003) for _ in range(6))) for _ in range(2)]
    total = look_total(measured, (), {}, unasked)
    assert total.excess < 0.01 and not total.doubt


@given(st.floats(3.0, 1e4))
def test_calls_that_few_blocks_meet_count_with_all_their_time(slower: float) -> None:
    """A median over pairs leaves these blocks out."""
    measured = [timed(5, 5, 5 * slower, 5, 5, 5), timed(5, 5 * slower, 5, 5, 5, 5)] * 2
    more = iter([timed(5, 5, 5, 5, 5 * slower, 5), timed(5 * slower, 5, 5, 5, 5, 5)] * 2)
    total = look_total(measured[:2], (), {}, lambda: [next(more)])
    assert math.exp(shown(total)) == pytest.approx(1 + (slower - 1) / 6, rel=0.01)
    assert total.excess == pytest.approx(shown(total))


@given(st.floats(1.0, 1e5), st.floats(5.0, 19.0))
def test_one_block_that_is_held_up_takes_nothing_off(slower: float, new: float) -> None:
    measured = [timed(new, new, slower * new, new, new, new), timed(*[new] * 6)]
    total = look_total(measured, (), {}, lambda: [timed(*[new] * 6)])
    assert not total.excess and not total.doubt


@given(st.floats(1.5, 1e3))
def test_a_process_that_was_slow_after_the_replicas_counts(slower: float) -> None:
    total = look_total([timed(*[5.0] * 6)] * 2, [timed(*[5 * slower] * 6)], {}, unasked)
    assert total.excess == pytest.approx(shown(total)) and total.excess > 0


def test_a_case_that_was_timed_nowhere_has_no_total_time() -> None:
    same = {"a": CaseQuads("a", "", same="source")}
    assert look_total([same] * 2, [{}], {}, unasked) == CrossCheck()


@pytest.mark.parametrize(
    ("factor", "engine", "counted"),
    [(2.5, "wall", 0), (3.5, "wall", 1), (4.5, "wall", 2), (4.5, "events", 1), (9.0, "events", 2)],
)
def test_processes_without_blocks_count_where_the_candidate_loses(
    factor: float, engine: str, counted: int
) -> None:
    """A trial calls both versions in turn, and on a GPU has their launches."""
    replica = {name: replace(case, engine=engine) for name, case in timed(*[5.0] * 6).items()}
    measured = [replica] * 2
    seconds = {CANDIDATE: factor, INCUMBENT: 1.0}
    tried = [Tried("a", "aligned", {}, declared_seconds=seconds), Tried("b", "size", {})]
    rows = {"a": 20.0 * factor}
    elsewhere = lost_elsewhere(tried, rows, measured)
    assert len(elsewhere.get("a", ())) == counted
    assert all(new == pytest.approx(20 * factor) for new, _ in elsewhere.get("a", ()))
    total = look_total(measured, (), elsewhere, lambda: measured[:1])
    # One of them may be a process that was held up.
    assert bool(total.excess) is (counted > 1)


def looked(new: float, *looks: float) -> list[dict[str, CaseQuads]]:
    """Replicas of a GPU's case whose current best takes 20 ms, and the new one's times in looks."""
    measured = []
    for there, back in zip(looks[::2], looks[1::2], strict=True):
        (replica,) = four(new, new, 0.05)[:1]
        arms = [(CANDIDATE, there), (INCUMBENT, 20.0), (INCUMBENT, 20.0), (CANDIDATE, back)]
        lap = [(arm, block_time(ms)) for arm, ms in arms]
        measured.append({name: replace(case, looks=[lap]) for name, case in replica.items()})
    return measured


@given(st.floats(4.0, 18.0), st.floats(0.97, 1.03))
def test_a_gain_that_is_there_for_new_content_is_credited(new: float, scatter: float) -> None:
    found = look_anew(looked(new, new, new * scatter, new / scatter, new), ())
    assert (found.doubt, found.excess) == ("", 0.0) and found.document


@given(st.floats(4.0, 16.0), st.floats(1.0, 1e4), st.integers(0, 3))
def test_a_gain_for_known_content_is_none_however_long_a_look_is_held_up(
    new: float, longer: float, at: int
) -> None:
    """A memo knows when it misses, and could have the looks scatter."""
    looks = [20.0, 20.1, 19.9, 20.0]
    looks[at] *= longer
    found = look_anew(looked(new, *looks), ())
    assert found.doubt or math.log(20 / new) - found.excess < 0.02


def test_looks_are_held_against_the_gain_at_boost() -> None:
    faster = looked(8.0, 8.0, 8.0)[0]["a"].quads
    measured = looked(16.0, 16.0, 16.0, 16.0, 16.0)
    under_load = [
        {
            name: replace(case, operating_point=SUSTAINED, sustained=faster)
            for name, case in replica.items()
        }
        for replica in measured
    ]
    assert look_anew(under_load, ()).excess == 0.0
