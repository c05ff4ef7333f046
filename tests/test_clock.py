"""The clock of a process that runs kernel code, against the deciding process's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.honesty.watching.clock import Span, slow_clock, work_between

waits = st.floats(0, 500)
blocks = st.lists(st.tuples(st.floats(0.1, 500), waits), min_size=1, max_size=12)


@given(blocks, blocks, st.floats(0, 4.9))
def test_waiting_now_and_then_is_no_slow_clock(
    seen: list[tuple[float, float]], others: list[tuple[float, float]], once: float
) -> None:
    """One message that came in time speaks for the clock, whatever happened to the others."""
    spans = [Span(inside + wait, inside) for inside, wait in seen]
    around = [Span(inside + wait, inside) for inside, wait in others]
    assert [*slow_clock([*spans, Span(7 + once, 7)], around)] == []


@given(blocks, st.floats(0, 500))
def test_where_all_messages_wait_no_clock_is_slow(
    seen: list[tuple[float, float]], wait: float
) -> None:
    spans = [Span(inside + wait, inside) for inside, _ in seen]
    assert [*slow_clock(spans, [Span(9 + wait / 2 + 1e-6, 9)])] == []


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_a_clock_that_leaves_most_out_is_named(share: float) -> None:
    spans = [Span(outside, share * outside) for outside in (20.0, 22.0, 400.0)]
    (finding,) = slow_clock(spans, [Span(31.0, 30.0), Span(34.0, 30.0)])
    assert finding.check == "tampered-clock" and finding.rejects


def test_nothing_timed_says_nothing() -> None:
    assert [*slow_clock([], [])] == []


def gaps(call: float, *between: float) -> list[Span]:
    return [Span(10.0, 10.0, call, ms) for ms in between]


@pytest.mark.parametrize(
    ("mine", "why"),
    [
        (gaps(0.2, 1.0, 1.1), "longer by a tenth, as caches make it"),
        (gaps(0.2, 1.05, 1.6, 1.6), "not in every block"),
        (gaps(0.9, 1.6, 1.6), "nothing was gained"),
        (gaps(0.75, 1.6, 1.6), "next to nothing was gained"),
        (gaps(0.2, 0.5, 0.5), "shorter"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_what_passes_between_calls_may_differ_a_little(mine: list[Span], why: str) -> None:
    theirs = gaps(0.8, 1.0, 1.1, 1.05)
    assert [*work_between(mine, theirs)] == []
    assert [*work_between(mine, [])] == [*work_between([], theirs)] == []


def test_a_gain_that_passes_between_calls_is_none() -> None:
    (finding,) = work_between(gaps(0.2, 1.6, 1.7), gaps(0.8, 1.0, 1.1))
    assert finding.check == "late-result" and finding.rejects
    said = "calls take 0.2 ms instead of the other version's 0.8, and 1.65 pass between two"
    assert said in finding.message


def test_work_that_is_less_than_the_gain_counts_too() -> None:
    """The rest of it may be real: calls of 40 ms had become some of 0.02, and 0.1 between them."""
    (finding,) = work_between(gaps(0.02, 0.3, 0.31), gaps(40.0, 0.2, 0.21))
    assert finding.rejects


@given(st.floats(0.01, 10), st.floats(0.1, 10), st.floats(1.001, 50))
def test_all_of_a_gain_moved_there_is_seen_unless_calls_are_short(
    between: float, call: float, times: float
) -> None:
    gained = call * (1 - 1 / times)
    mine = gaps(call / times, between + gained)
    found = [*work_between(mine, gaps(call, between))]
    assert bool(found) == (gained > 0.25 * between and gained > 0.1 * call)
