"""Which cases a round measures, and when a quick verdict is not enough."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from pytest_kopt.campaign import levels
from pytest_kopt.campaign.history import trend
from pytest_kopt.campaign.history.trend import chain_of_best, chain_to
from pytest_kopt.campaign.ledger import AnyEvent, Decided, PairedChange
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.state import fold
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.result import CaseResult, Collector, named, names
from pytest_kopt.decide.verdict import Decision, Level
from pytest_kopt.documents import validate
from pytest_kopt.errors import BadInput
from pytest_kopt.show.files.summary import missing_text
from pytest_kopt.trials.measurements import Measurements
from tests.builders import attempt_events, gemm_table, manifest_document

THREE = ["a", "b", "c"]
CASES = {f"test.py::{name}": name for name in "abcdef"}


@pytest.mark.parametrize(
    ("asked", "count", "shapes", "level"),
    [
        (None, 6, THREE, "quick"),
        ("quick", 6, THREE, "quick"),
        ("full", 6, THREE, "full"),
        (None, 6, None, "full"),
        ("full", 6, None, "full"),
        (None, 5, THREE, "full"),
        ("quick", 5, THREE, "full"),
        ("quick", 5, None, "full"),
    ],
)
def test_the_level_of_a_round(
    asked: str | None, count: int, shapes: list[str] | None, level: Level
) -> None:
    assert levels.choose(asked, count, shapes) == level


def test_quick_needs_representative_shapes() -> None:
    with pytest.raises(BadInput, match=r"names no representative cases.*representative_shapes"):
        levels.choose("quick", 6, None)


def test_what_has_to_be_full_is_never_quick() -> None:
    levels.always_full(None, "the baseline")
    levels.always_full("full", "the baseline")
    with pytest.raises(BadInput, match="the baseline measures every case"):
        levels.always_full("quick", "the baseline")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"t.py::test_1": "own", "t.py::test_2": "2 n=1"}, ["own", "2 n=1"]),
        ({"t.py::test_1": "same", "t.py::test_2": "same"}, ["t.py::test_1", "t.py::test_2"]),
        (
            {"test_a.py::test_op[1]": "op n=1", "test_b.py::test_op[2]": "op n=2"},
            ["a.op n=1", "b.op n=2"],
        ),
        ({"test_a.py::test_op[1]": "own", "test_b.py::test_op[2]": "op n=2"}, ["own", "b.op n=2"]),
        (
            {"a/test_a.py::test_op[1]": "op n=1", "b/test_a.py::test_op[1]": "op n=1"},
            ["a/test_a.py::test_op[1]", "b/test_a.py::test_op[1]"],
        ),
    ],
    ids=["labels", "equal labels", "files", "declared", "files of one name"],
)
def test_each_case_has_a_name_of_its_own(labels: dict[str, str], expected: list[str]) -> None:
    cases = [CaseResult(nodeid, label) for nodeid, label in labels.items()]
    assert [*names(cases).values()] == expected


def test_a_label_names_the_classes_of_its_test() -> None:
    assert (
        named("t.py::TestDecode::TestFast::test_case[a::b-1]", {"n": 1}) == "Decode.Fast.case n=1"
    )
    assert named("t.py::test_rms", {}) == "rms"


def test_representative_cases_come_in_the_order_of_the_cases() -> None:
    assert levels.select(["e", "a", "c"], CASES) == (*("test.py::a", "test.py::c", "test.py::e"),)
    with pytest.raises(BadInput, match=r"representative_shapes: 'x' names no case.*a, b, c"):
        levels.select(["a", "b", "x"], CASES)


@pytest.mark.parametrize(
    ("shapes", "since", "refused"),
    [
        (THREE, None, False),
        (["a", "b", "d"], None, False),
        (THREE, 2, False),
        (["a", "b", "d"], 2, True),
        (None, 2, True),
    ],
)
def test_shapes_are_frozen_by_the_first_quick_round(
    shapes: list[str] | None, since: int | None, refused: bool
) -> None:
    if not refused:
        levels.check_unchanged(shapes, THREE, since)
        return
    with pytest.raises(BadInput, match="round 2 was measured with it"):
        levels.check_unchanged(shapes, THREE, since)


def played(*rounds: tuple[Level, float]) -> Sequence[AnyEvent]:
    """A baseline and accepted rounds: level and paired gain."""
    start = trend.figures(gemm_table([100.0, 200.0]))
    events: list[AnyEvent] = list(attempt_events(1, Decision.BASELINE, trend=start))
    for number, (level, gain) in enumerate(rounds, start=2):
        change = PairedChange(step_pct=gain, forward_pct=gain)
        for event in attempt_events(number, Decision.ACCEPTED, paired=change):
            if isinstance(event, Decided):
                event = event.model_copy(update={"level": level})
            events.append(event)
    return events


class TestChain:
    def test_full_rounds_multiply_over_all_cases(self) -> None:
        chain = chain_of_best(fold(played(("full", 10.0), ("full", 10.0))))
        assert chain and chain.step_pct == pytest.approx(21.0)

    def test_there_is_no_chain_over_all_cases_with_a_quick_link(self) -> None:
        state = fold(played(("full", 10.0), ("quick", 50.0), ("full", 1.0)))
        assert chain_of_best(state) is None
        before = state.rounds[2].verdict
        assert before is not None
        first = chain_to(state, before)
        assert first and first.step_pct == pytest.approx(10.0)
        rows = missing_text("", state).splitlines()[-3:]
        assert "step +10.000%" in rows[0] and "(quick)" not in rows[0]
        assert "not described (quick)" in rows[1]
        assert "not described |" in rows[2]


def test_a_quick_round_is_held_against_the_same_cases_of_the_baseline() -> None:
    """Stored figures of two levels never meet: the large cases are no gain of a round."""
    baseline = gemm_table([100.0, 400.0, 900.0])
    some = baseline.only({row.key for row in baseline.rows[:2]})
    quick = gemm_table([110.0, 440.0])
    events = list(attempt_events(1, Decision.BASELINE, trend=trend.figures(baseline)))
    for event in attempt_events(2, Decision.ACCEPTED, trend=trend.figures(quick)):
        if isinstance(event, Decided):
            update = {"level": "quick", "baseline": trend.figures(some)}
            event = event.model_copy(update=update)
        events.append(event)
    last = missing_text("", fold(events)).splitlines()[-1]
    assert "step +10.000%, fwd +10.000%" in last


@pytest.mark.parametrize(
    ("rounds", "first"),
    [
        ([("full", 10.0)], None),
        ([("full", 10.0), ("quick", 10.0), ("quick", 10.0)], 3),
    ],
)
def test_the_first_quick_round_freezes_the_representative_cases(
    rounds: list[tuple[Level, float]], first: int | None
) -> None:
    assert fold(played(*rounds)).first_quick_round == first


def manifest_of(**changes: Any) -> Manifest:
    return validate(Manifest, manifest_document(**changes), "manifest.yaml")


def test_named_core_cases_are_measured_at_the_quick_level_too() -> None:
    """A core case that got slower was kept by a quick round that did not measure it."""
    cases = {f"t.py::case[{name}]": name for name in "abcdefg"}
    given = manifest_of(core_shapes=["g"], representative_shapes=["a", "b", "c"])
    assert [cases[name] for name in levels.representative(given, cases)] == ["a", "b", "c", "g"]
    every = manifest_of(core_shapes="all", representative_shapes=["a", "b", "c"])
    assert [cases[name] for name in levels.representative(every, cases)] == ["a", "b", "c"]
    assert levels.representative(manifest_of(representative_shapes=None), cases) == ()


def test_all_that_the_other_cases_come_to_counts() -> None:
    """A test may fail, or end its process, only where its case is timed."""
    again = Collector(results={"b": mock.sentinel.row})
    again.dead["c"] = "SIGSEGV"
    again.failures["d"] = "assert False"
    collector = Collector()
    session: Any = SimpleNamespace(
        orders=WorkerOrders("cpu", "auto", 1, 60.0, "standard", untimed=("b", "c", "d")),
        progress=mock.Mock(),
        sites=mock.Mock(lanes=lambda homes, measured: ["one lane"]),
        _collector=collector,
        _rerun=lambda where: SimpleNamespace(run=lambda: again),
    )
    Measurements.time_also(session, ("b", "c", "d"))
    assert session.orders.untimed == ()
    assert (collector.results, collector.dead) == (again.results, {"c": "SIGSEGV"})
    assert collector.failures == {"d": "assert False"}
