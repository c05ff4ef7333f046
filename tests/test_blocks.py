"""How many blocks compare two arms of a case."""

from __future__ import annotations

import itertools
import math
import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO, PLACES, WEIGHT_BITS
from pytest_kopt.cases.protocol import Write
from pytest_kopt.cases.replies import Reply, Written
from pytest_kopt.devices.vendor import Reading
from pytest_kopt.paired.blocks import Blocks
from pytest_kopt.paired.samples import BlockTime
from pytest_kopt.processes.child import ChildDied
from tests.fake_ends import BlockWorker


@pytest.fixture(autouse=True, scope="module")
def _no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pytest_kopt.paired.blocks.PAUSE_S", 0.0)
        yield


def blocks_of(held: Any, kind: str, cases: int) -> Blocks:
    return Blocks(held, random.Random(7), kind, cases, {arm: [1] for arm in held})


@pytest.mark.parametrize(
    ("kind", "cases", "ms", "arms", "quads"),
    [
        ("cuda", 8, 5.0, (), 4),
        ("cuda", 9, 5.0, (), 3),
        ("cuda", 8, 20.0, (), 3),
        ("cuda", 8, 5.0, ("first", "second"), 3),
        ("cpu", 1, 5.0, (), 3),
    ],
    ids=["few short ones", "many cases", "long blocks", "a race", "cpu"],
)
def test_few_short_blocks_are_compared_more_often(
    kind: str, cases: int, ms: float, arms: tuple[str, ...], quads: int
) -> None:
    process = BlockWorker(lambda _: ms)
    names = (INCUMBENT, PLACEBO, *(arms or (CANDIDATE,)))
    held = cast("Any", dict.fromkeys(names, process))
    blocks = blocks_of(held, kind, cases)
    blocks.warm_up()
    found = blocks.quads()
    assert {*found} == {"placebo", *(arms or ("candidate",))}
    assert all(len(every) == quads for every in found.values())


def test_the_incumbent_alone_is_compared_no_more_often_for_that() -> None:
    held = cast(
        "Any", dict.fromkeys((INCUMBENT, PLACEBO, CANDIDATE, ALONE), BlockWorker(lambda _: 5.0))
    )
    blocks = blocks_of(held, "cuda", 8)
    blocks.warm_up()
    assert {kind: len(quads) for kind, quads in blocks.quads().items()} == {
        "candidate": 4,
        "placebo": 4,
        "alone": 3,
    }


@given(
    races=st.sets(st.sampled_from(["first", "second", "third"])),
    more=st.sets(st.sampled_from([PLACEBO, ALONE])),
    seed=st.integers(0, 1000),
)
def test_a_lap_goes_there_and_back_with_the_incumbent_between_the_others(
    races: set[str], more: set[str], seed: int
) -> None:
    names = {INCUMBENT, *more, *(races or {CANDIDATE})}
    held = cast("Any", dict.fromkeys(names, BlockWorker(lambda _: 5.0)))
    blocks = Blocks(held, random.Random(seed), "cpu", 1, {arm: [1] for arm in held})
    order = [arm for arm, _ in blocks._lap(names)]
    there, back = order[: len(names)], order[len(names) :]
    assert there == back[::-1] and {*there} == names
    beside = [arm for arm in there if arm != ALONE]
    assert (ALONE in more) == (there[0] == ALONE)
    place, others = beside.index(INCUMBENT), len(beside) - 1
    assert place in (others // 2, (others + 1) // 2)


def test_on_the_cpu_what_a_process_says_of_its_own_clock_counts_for_nothing() -> None:
    """Nor does what its content took to write count as time of its calls."""

    class Liar(BlockWorker):
        def waited(self, reply: Reply) -> float:
            return 3.0 if isinstance(reply, Written) else 8.0

    held = cast("Any", dict.fromkeys((CANDIDATE, INCUMBENT), Liar(lambda _: 0.004)))
    calls = {arm: [4, 2] for arm in held}
    time = Blocks(held, random.Random(7), "cpu", 1, calls).run(CANDIDATE, 5)
    assert time == BlockTime(2.0, 4.0, counted=16.0, outside=22.0, passed=16.0)
    time = Blocks(held, random.Random(7), "cuda", 1, calls).run(CANDIDATE, 5)
    assert time == BlockTime(0.001, 0.002, counted=0.008, outside=16.0, passed=16.0)


class Watched(BlockWorker):
    """A process that is seen from outside: `seen` has what is done to it, in order."""

    def __init__(self, clocks: Iterator[float | None]) -> None:
        super().__init__(lambda _: 5.0)
        self.seen: list[str] = []
        self._clocks = clocks
        self.inspected: Any = self

    def send(self, order: Any) -> None:
        self.seen.append(type(order).__name__)
        super().send(order)

    def cpu_ms(self) -> float | None:
        self.seen.append("clock")
        clock = next(self._clocks)
        if clock == math.inf:
            raise OSError("it does not stop")
        return clock

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.seen.append("stop")
        yield
        self.seen.append("go")

    def read(self, address: int, size: int) -> bytes:
        self.seen.append("read")
        return bytes(size)

    def kill(self) -> None:
        self.seen.append("kill")


def watched(*clocks: float | None) -> tuple[Blocks, Watched]:
    process = Watched(iter(clocks))
    places = {CANDIDATE: [8]}
    held = cast("Any", {CANDIDATE: process})
    return Blocks(held, random.Random(7), "cpu", 1, {CANDIDATE: [1]}, places), process


def test_a_process_stands_still_from_its_clock_to_its_memory() -> None:
    """A kernel computed its results in between, in no block's time."""
    blocks, process = watched(1.0, 6.0)
    assert blocks.run(CANDIDATE, 5).counted == 5.0
    order = ["Write", "clock", "Time", "stop", "clock", "stop", "read", "read", "go", "go"]
    assert process.seen == order


def test_the_wall_clock_counts_where_nobody_tells_another() -> None:
    blocks, process = watched(None)
    assert blocks.run(CANDIDATE, 5).counted == 5.0
    assert process.seen == ["Write", "clock", "Time", "stop", "read", "read", "go"]


@pytest.mark.parametrize("clocks", [(math.inf,), (1.0, math.inf)], ids=["before", "after"])
def test_a_process_whose_clock_cannot_be_read_for_once_has_no_other(
    clocks: tuple[float, ...],
) -> None:
    blocks, process = watched(*clocks)
    with pytest.raises(ChildDied, match="processor time of its process cannot be read"):
        blocks.run(CANDIDATE, 5)
    assert "kill" in process.seen


class Holding(Watched):
    """A process whose memory has a row of a block's first call, a table and its activations."""

    def __init__(self, activations: bytes, *weight: int) -> None:
        super().__init__(itertools.count(1.0))
        numbers = [0] * (PLACES - 3) + [ROW + 8 * PLACES, 1, 1 + len(weight) // 2]
        numbers += [INPUT, len(activations), *weight]
        self.memory = {ROW: array("Q", numbers).tobytes(), INPUT: activations}

    def read(self, address: int, size: int) -> bytes:
        start = max(at for at in self.memory if at <= address)
        content = self.memory[start][address - start :][:size]
        if len(content) < size:
            raise OSError("nothing is mapped there")
        return content

    def write(self, address: int, content: bytes) -> None:
        self.seen.append("write")
        self.memory[address] = content + self.memory[address][len(content) :]


#: Where they lie.
ROW, INPUT, TABLE = 1 << 12, 1 << 20, 1 << 16


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_block_of_one_call_is_brought_what_the_other_process_drew(is_whole: bool) -> None:
    """What its process did with values of its own has no use, and what it does next counts.

    It cannot draw what is brought beforehand: it is told another seed, of the same weights.
    """
    old, new = Holding(b"others"), Holding(b"itsown")
    arms = cast("Any", {CANDIDATE: new, ALONE: old})
    blocks = Blocks(
        arms, random.Random(7), "cpu", 1, {a: [9] for a in arms}, {a: [ROW] for a in arms}
    )
    laps = blocks.singles(is_whole=is_whole)
    assert new.memory[INPUT] == old.memory[INPUT] == b"others"
    text = " ".join(new.seen)
    assert text.count("Write stop clock write Time go") == sum(len(lap) for lap in laps) // 2
    assert "write" in old.seen, "both find them in no cache of their own"
    (block,) = (block for block in blocks.looked_at if block.content)
    arm, seed = block.content or ("", 0)
    assert (block.arm, arm) == (CANDIDATE, ALONE)
    assert (block.seed != seed) == is_whole and block.seed >> WEIGHT_BITS == seed >> WEIGHT_BITS
    new.memory[ROW] = new.memory[ROW][:-8] + array("Q", [5]).tobytes()
    with pytest.raises(ChildDied, match="input values cannot be brought: they take other memory"):
        blocks.singles()


def test_blocks_of_all_calls_are_brought_what_their_process_cannot_foresee() -> None:
    old, new = Holding(b"others"), Holding(b"itsown")
    arms = cast("Any", {CANDIDATE: new, ALONE: old})
    places = {arm: [ROW] for arm in arms}
    calls = {arm: [2] for arm in arms}
    for process in (old, new):
        row = array("Q", process.memory[ROW])
        row, process.memory[TABLE] = row[:PLACES], row[PLACES:].tobytes()
        row[-3] = TABLE
        process.memory[ROW] = row.tobytes() * 2
    blocks = Blocks(arms, random.Random(7), "cpu", 1, calls, places)
    laps = blocks.singles(calls=0)
    assert len(laps) == 2 and new.memory[INPUT] == b"others"
    assert " ".join(new.seen).count("Write stop clock write write Time go") == 4
    brought = [block for block in blocks.looked_at if block.content]
    assert len(brought) == 1, "one of these is looked at in each process"
    assert Blocks(arms, random.Random(7), "cpu", 1, calls).singles(calls=0) == []


def test_what_lies_among_weights_is_left_where_it_is() -> None:
    arms = cast("Any", {arm: Holding(b"inputs", INPUT + 5, 2) for arm in (CANDIDATE, ALONE)})
    blocks = Blocks(
        arms, random.Random(7), "cpu", 1, {a: [9] for a in arms}, {a: [ROW] for a in arms}
    )
    assert blocks.singles()
    assert not any("write" in process.seen for process in arms.values())


class Replayed(BlockWorker):
    """Says that blocks of two calls take `ms`; they take `real`, and `around` passes beside."""

    def __init__(self, ms: float, real: float, around: float) -> None:
        super().__init__(lambda _: ms)
        self._real, self._around = real, around

    def waited(self, reply: Reply) -> float:
        return self._around + (self.orders[-1].times or 1) * self._real


@given(st.floats(1, 50), st.floats(1, 50), st.floats(1, 50), st.floats(0, 9), st.floats(0, 9))
def test_what_passes_around_a_block_does_not_count_by_the_outside_clock(
    old: float, new: float, real: float, around: float, around_old: float
) -> None:
    assume(new < 0.99 * old)
    held = cast(
        "Any",
        {CANDIDATE: Replayed(new, real, around), INCUMBENT: Replayed(old, old, around_old)},
    )
    blocks = Blocks(held, random.Random(7), "cuda", 1, {arm: [2] for arm in held})
    blocks.warm_up()
    for ratio in blocks.seen_outside(blocks.quads()[CANDIDATE], 0.01):
        assert math.exp(ratio) == pytest.approx(old / real, rel=1e-3)


@pytest.mark.parametrize(
    ("gain", "is_steady", "longer_ms"),
    [
        *[(0.5, True, 6), (0.5, False, 6), (0.01, True, 60), (0.001, True, 240)],
        *[(0.001, False, 40), (-0.1, True, 240)],
    ],
)
def test_the_outside_clock_takes_as_long_as_the_gain_needs(
    gain: float, is_steady: bool, longer_ms: int
) -> None:
    """Not beyond what the clock of a GPU that falls under load allows."""
    held = cast("Any", {CANDIDATE: Replayed(5, 5, 0), INCUMBENT: Replayed(5, 5, 0)})
    clocks = itertools.repeat(1980.0) if is_steady else itertools.count(1980, -10)
    states = (Reading(sm_mhz=mhz) for mhz in clocks)
    calls = {arm: [2] for arm in held}
    blocks = Blocks(held, random.Random(7), "cuda", 3, calls, glance=lambda: next(states))
    blocks.warm_up()
    quads = blocks.quads()[CANDIDATE]
    held[CANDIDATE].orders.clear()
    assert len(blocks.seen_outside(quads, gain)) == 4
    loads = [order.seconds for order in held[CANDIDATE].orders if order.seconds]
    assert not (loads and longer_ms == 6), "it is loaded only where its blocks would be long"
    often = max(order.times or 1 for order in held[CANDIDATE].orders)
    assert 5 * (often - 1) == pytest.approx(longer_ms, abs=5)


def test_no_arm_meets_the_content_of_the_candidates_next_block_before_it() -> None:
    """Integers are alike for both versions: what met them first could hold answers to them."""
    order: list[tuple[str, int]] = []

    def run(write: Write) -> float:
        order.append((write.arm, write.seed))
        return 1.0

    names = (CANDIDATE, INCUMBENT, PLACEBO)
    arms = {arm: cast("Any", BlockWorker(run)) for arm in names}
    for seed in range(20):
        order.clear()
        blocks = Blocks(arms, random.Random(seed), "cpu", 1, {arm: [1] for arm in names})
        blocks.warm_up()
        blocks.quads()
        met = {arm: [seed for name, seed in order if name == arm] for arm in names}
        assert len({*met[CANDIDATE]}) == len(met[CANDIDATE])
        assert {*met[CANDIDATE][1:-2]} <= {*met[INCUMBENT]}
        first = {seed: arm for arm, seed in order[::-1]}
        assert {first[seed] for seed in met[CANDIDATE]} == {CANDIDATE}


@pytest.mark.parametrize(("cases", "count"), [(1, 6), (2, 3), (5, 2)])
def test_a_block_of_one_call_comes_after_one_of_few_next_to_the_incumbent_alone(
    cases: int, count: int
) -> None:
    arms = {arm: BlockWorker(lambda _: 4.0) for arm in (CANDIDATE, INCUMBENT, PLACEBO, ALONE)}
    calls = {arm: [8, 2] for arm in arms}
    blocks = Blocks(cast("Any", arms), random.Random(1), "cpu", cases, calls)
    laps = blocks.singles()
    # A ratio of sums needs three pairs of a case.
    assert len(laps) == count
    assert {arm for lap in laps for arm, _ in lap} == {CANDIDATE, ALONE}
    # Of its forward, then of its backward: no block has more calls than it has sets.
    for arm in (CANDIDATE, ALONE):
        asked = [(order.way, order.calls) for order in arms[arm].orders]
        assert asked == [(0, 3), (1, 2), (0, 1), (1, 1)] * (len(asked) // 4)
        # The weights are those of the block before, and the content is new.
        for few, one in zip(arms[arm].orders[::4], arms[arm].orders[2::4], strict=True):
            assert few.seed >> WEIGHT_BITS == one.seed >> WEIGHT_BITS and few.seed != one.seed
    assert arms[INCUMBENT].orders == arms[PLACEBO].orders == []


@pytest.mark.parametrize("shares", [True, False])
def test_without_it_single_calls_are_held_against_the_incumbent_of_another_process(
    shares: bool,
) -> None:
    first, second = BlockWorker(lambda _: 4.0), BlockWorker(lambda _: 4.0)
    arms = {CANDIDATE: first, INCUMBENT: first if shares else second}
    blocks = Blocks(cast("Any", arms), random.Random(1), "cpu", 1, {arm: [8] for arm in arms})
    assert {arm for lap in blocks.singles() for arm, _ in lap} == (set() if shares else {*arms})
