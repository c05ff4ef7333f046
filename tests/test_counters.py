from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_kopt import policies
from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.history.stops import KEPT, Regression, regressions_in_a_row
from pytest_kopt.campaign.ledger import AnyEvent
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import CampaignState, fold
from pytest_kopt.decide.verdict import Aggregate, Decision, KernelTime
from tests.builders import attempt_events, decided

KERNEL_OPT = policies.load("kernel-opt")
PRIMUS = policies.load("primus")
#: What S4 tells apart; each as the attempts that end a round, or leave it to be run again.
KINDS = ("keep", "tie", "regression", "bench failure", "failed repairs")


def aggregate(change_pct: float, **bounds: Any) -> Aggregate:
    return Aggregate(
        metric="Forward TFLOPS",
        incumbent=100.0,
        candidate=100.0 + change_pct,
        change_pct=change_pct,
        **bounds,
    )


class Book:
    """A ledger that is written in S4's words, round by round."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = attempt_events(1, Decision.BASELINE)
        self.round, self.attempt = 2, 1

    def write(self, kind: str) -> None:
        repairs = [(Decision.REPAIR, None)] * 4
        ends: dict[str, list[tuple[Decision, Aggregate | None]]] = {
            "keep": [(Decision.ACCEPTED, aggregate(+3.0))],
            "tie": [(Decision.INCONCLUSIVE, aggregate(-0.2, low_pct=-0.9, high_pct=0.5))],
            "regression": [(Decision.ROLLED_BACK, aggregate(-3.0, low_pct=-4.0, high_pct=-2.0))],
            "bench failure": [(Decision.INCOMPLETE, None)],
            "failed repairs": [*repairs, (Decision.ROLLED_BACK, None)],
        }
        for decision, total in ends[kind]:
            self.add(decision, total)

    def add(self, decision: Decision, total: Aggregate | None = None, **more: Any) -> None:
        event = decided(self.round, decision, attempt=self.attempt)
        self.events.append(event.model_copy(update={"aggregate": total, **more}))
        if decision.leaves_open:
            self.attempt += 1
        else:
            self.round, self.attempt = self.round + 1, 1

    def state(self) -> CampaignState:
        return fold(self.events)


def after(kinds: Sequence[str]) -> list[Regression]:
    book = Book()
    for kind in kinds:
        book.write(kind)
    return regressions_in_a_row(book.state(), KERNEL_OPT)


def in_a_row(kinds: Sequence[str]) -> int:
    """S4's rule in words of its own: how many of the last were regressions."""
    return len(list(itertools.takewhile(lambda kind: kind == "regression", reversed(kinds))))


@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, repeat=3)), ids="-".join)
def test_only_regressions_in_a_row_add_up(kinds: Sequence[str]) -> None:
    found = after(kinds)
    assert len(found) == in_a_row(kinds)


def test_what_stands_between_two_regressions_begins_anew() -> None:
    for kind in set(KINDS) - {"regression"}:
        assert len(after(["regression", "regression", kind])) == 0
        assert len(after(["regression", "regression", kind, "regression"])) == 1


def test_a_repair_that_leads_to_a_regression_counts_once() -> None:
    book = Book()
    book.write("regression")
    book.add(Decision.REPAIR)
    assert len(regressions_in_a_row(book.state(), PRIMUS)) == 1, "the round is still open"
    book.write("regression")
    assert len(regressions_in_a_row(book.state(), PRIMUS)) == 2


@pytest.mark.parametrize(
    ("decision", "total", "counts"),
    [
        (Decision.ROLLED_BACK, aggregate(-1.01), True),
        (Decision.ROLLED_BACK, aggregate(-1.0), False),
        (Decision.ROLLED_BACK, aggregate(0.0), False),
        (Decision.ROLLED_BACK, aggregate(-0.3, low_pct=-0.4, high_pct=-0.2), True),
        (Decision.ROLLED_BACK, aggregate(+4.0, low_pct=3.0, high_pct=5.0), False),
        (Decision.ROLLED_BACK, aggregate(-2.0, low_pct=-9.0, high_pct=5.0), False),
        (Decision.SPLIT, aggregate(-3.0, low_pct=-4.0, high_pct=-2.0), False),
        (Decision.REJECTED_OVERFIT, aggregate(-3.0), False),
        (Decision.INCONCLUSIVE, aggregate(-3.0), False),
    ],
)
def test_what_is_a_measured_regression(decision: Decision, total: Aggregate, counts: bool) -> None:
    """Beyond 1 % where two stored figures are compared, beyond its own interval where paired."""
    book = Book()
    book.add(decision, total)
    assert len(regressions_in_a_row(book.state(), KERNEL_OPT)) == counts


def test_the_noise_is_the_policys() -> None:
    book = Book()
    book.add(Decision.ROLLED_BACK, aggregate(-1.5))
    assert len(regressions_in_a_row(book.state(), PRIMUS)) == 0
    assert len(regressions_in_a_row(book.state(), KERNEL_OPT)) == 1


def test_the_last_five_are_kept() -> None:
    found = after(["regression"] * 7)
    assert len(found) == 7
    assert [item.round for item in found[-KEPT:]] == [4, 5, 6, 7, 8]


def test_a_regression_is_kept_with_its_fields() -> None:
    book = Book()
    timed = KernelTime(hottest="k", candidate_us=8.0)
    book.events = attempt_events(1, Decision.BASELINE)
    book.events[2] = book.events[2].model_copy(update={"kernel_time": timed})
    kernel = {"kernels/softmax.py": "9" * 64, "kernels/new.py": "8" * 64}
    book.add(
        Decision.ROLLED_BACK,
        aggregate(-3.0),
        kernel=kernel,
        kernel_time=KernelTime(candidate_us=9.0),
        notes=Notes(hypothesis="more warps", root_cause="it spills"),
    )
    (item,) = regressions_in_a_row(book.state(), KERNEL_OPT)
    assert (item.round, item.attempt, item.incumbent_round) == (2, 1, 1)
    assert item.incumbent_commit == "3" * 40
    assert item.snapshot == "rounds/round-2/artifacts/attempt-1/kernel_snapshot"
    assert item.files == ["kernels/new.py", "kernels/softmax.py"]
    assert (item.metric, item.incumbent, item.candidate) == ("Forward TFLOPS", 100.0, 97.0)
    assert (item.incumbent_kernel_us, item.candidate_kernel_us) == (8.0, 9.0)
    assert (item.change_pct, item.hypothesis, item.points) == (-3.0, "more warps", "it spills")


def test_a_look_back_counts_up_to_an_attempt() -> None:
    book = Book()
    for _ in range(4):
        book.write("regression")
    book.write("keep")
    assert len(regressions_in_a_row(book.state(), PRIMUS, until=(4, 1))) == 3
    assert len(regressions_in_a_row(book.state(), PRIMUS)) == 0


def test_notes_that_come_later_are_told_too() -> None:
    book = Book()
    book.write("regression")
    book.events.append(ledger.Note(time="t", round=2, notes=Notes(root_cause="bank conflicts")))
    assert regressions_in_a_row(book.state(), PRIMUS)[0].points == "bank conflicts"
