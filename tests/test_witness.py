"""What passes around counted time: a gain that was only moved there is none."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.paired.blocks import BlockTime
from pytest_kopt.paired.replica import CaseQuads
from pytest_kopt.paired.witness import hidden_time


def replica(
    new: float, moved: float, *, around: float = 10.0, noise: float = 0.0, engine: str = "wall"
) -> dict[str, CaseQuads]:
    """A case whose current best takes 20 ms; `moved` more ms pass around the new one's blocks."""
    dice = random.Random(new + moved)

    def block(counted: float, rest: float) -> BlockTime:
        rest *= dice.gauss(1, noise)
        return BlockTime(counted, None, counted, counted + rest)

    def quad() -> list[tuple[str, BlockTime]]:
        arms = (CANDIDATE, INCUMBENT, INCUMBENT, CANDIDATE)
        times = {CANDIDATE: (new, around + moved), INCUMBENT: (20.0, around)}
        return [(arm, block(*times[arm])) for arm in arms]

    return {"a": CaseQuads("a", engine, {CANDIDATE: [quad() for _ in range(3)]})}


@pytest.mark.parametrize("engine", ["wall", "graph", "graph+events"])
def test_a_gain_that_passes_around_the_blocks_is_named(engine: str) -> None:
    (finding,) = hidden_time([replica(2.0, 18.0, around=1.0, engine=engine)] * 2)
    assert (finding.check, finding.where, finding.rejects) == ("hidden-time", "a", True)
    assert "18 ms less than the current best's, and 18 ms more pass" in finding.message


@given(st.floats(1.0, 19.9), st.floats(-8.0, 0.0), st.floats(8.5, 50))
def test_a_gain_that_is_one_outside_as_well_is_no_finding(
    new: float, moved: float, around: float
) -> None:
    assert not [*hidden_time([replica(new, moved, around=around)] * 2)]


@given(st.floats(20.0, 40.0), st.floats(0, 50))
def test_where_nothing_is_gained_nothing_is_hidden(new: float, moved: float) -> None:
    assert not [*hidden_time([replica(new, moved)] * 2)]


@pytest.mark.parametrize("seed", range(20))
def test_what_only_scatters_is_no_finding(seed: int) -> None:
    new = 15.0 + seed / 10
    assert not [*hidden_time([replica(new, 0.0, around=40.0, noise=0.3)] * 2)]


def test_a_case_that_needed_no_clock_is_left_out() -> None:
    assert not [*hidden_time([{"a": CaseQuads("a", "", same="source")}] * 2)]
