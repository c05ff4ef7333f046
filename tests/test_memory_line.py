"""What a verdict says of the memory and the first call of both versions."""

from __future__ import annotations

import pytest

from pytest_kopt.decide.case_verdict import FirstCall, Memory, Shape
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.show.words import COSTS, first_calls, memory, rows

MIB = 1 << 20


def verdict(*taken: tuple[int, int] | None) -> Verdict:
    """A verdict of cases that take so many bytes, before and now."""
    shapes = [
        Shape(
            label=f"n={number}",
            dims={},
            check="PASS",
            status="improved",
            memory=both and Memory(incumbent_bytes=both[0], candidate_bytes=both[1]),
        )
        for number, both in enumerate(taken)
    ]
    return Verdict.model_construct(decision=Decision.ACCEPTED, shapes=shapes)


@pytest.mark.parametrize(
    ("taken", "shown"),
    [
        ([(MIB, 2 * MIB), (4 * MIB, 100 * MIB), None], "4 -> 100 MiB"),
        ([(2 * MIB, MIB // 2), (100 * MIB, 101 * MIB)], "2 -> 0.5 MiB"),
        ([(MIB, 0)], "1 -> 0 MiB"),
    ],
    ids=["more", "less", "none"],
)
def test_the_case_that_differs_most_is_shown(taken: list[tuple[int, int]], shown: str) -> None:
    assert memory(verdict(*taken)).endswith(f" {shown}")


def test_of_memory_that_is_the_same_nothing_is_said() -> None:
    assert memory(verdict((MIB, MIB), (100 * MIB, 100 * MIB + 8), None)) == ""


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        ([(50.0, 60.0), (3.0, 1.0)], ""),
        ([(4000.0, 90.0), (30.0, 1000.0), None], "4000 -> 90"),
        ([(9.0, 30.0)], "9 -> 30"),
        ([None], ""),
    ],
    ids=["alike or short", "the largest ratio", "over twice as long", "not measured"],
)
def test_first_calls_are_shown_where_they_differ(
    calls: list[tuple[float, float] | None], shown: str
) -> None:
    judged = verdict(*[None] * len(calls))
    shapes = [
        shape.model_copy(
            update={"first_call_ms": both and FirstCall(incumbent=both[0], candidate=both[1])}
        )
        for shape, both in zip(judged.shapes, calls, strict=True)
    ]
    text = f"first call, in the case that differs most: {shown} ms" if shown else ""
    assert first_calls(judged.model_copy(update={"shapes": shapes})) == text


def test_the_report_has_both_of_every_case() -> None:
    measured, unmeasured = verdict((MIB, 2 * MIB), None).shapes
    measured = measured.model_copy(
        update={"first_call_ms": FirstCall(incumbent=1.4, candidate=2500)}
    )
    assert rows([measured, unmeasured], *COSTS) == [
        {"Memory": "1 -> 2 MiB", "First call (ms)": "1 -> 2500"},
        {"Memory": "", "First call (ms)": ""},
    ]
