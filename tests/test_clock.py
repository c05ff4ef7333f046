"""The clock of a process that runs kernel code, against the deciding process's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.honesty.watching.clock import Span, slow_clock

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
