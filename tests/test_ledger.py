from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.ledger import AnyEvent, Trend
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import fold
from pytest_kopt.decide.verdict import Aggregate, Decision
from pytest_kopt.errors import BadInput
from tests.builders import NOW, attempt_events, decided, few_examples

TEXT = st.text(st.characters(codec="utf-8"), max_size=50)
PLACE: dict[str, Any] = {"time": NOW, "round": 2, "attempt": 1}

EVENTS: list[AnyEvent] = [
    ledger.Opened(**PLACE),
    ledger.Measured(evidence={"rounds/round-2/evidence.json": "a" * 64}, **PLACE),
    ledger.Decided(
        decision=Decision.ACCEPTED_WITH_NOTE,
        reason='faster, "mostly"\nand otherwise — 5 % slower',
        next_step="go on",
        aggregate=Aggregate(metric="Forward TFLOPS", candidate=1 / 3, change_pct=0.1),
        flags=["throttled"],
        trend=Trend(unit="TFLOPS", forward_average=100.5, combined=100.5),
        notes=Notes(summary="two", bucket="K1", w1_quant_ms=0.5),
        kernel={"kernels/a.py": "b" * 64},
        verdict_sha256="c" * 64,
        **PLACE,
    ),
    *(decided(3, decision) for decision in Decision),
    ledger.Applying(action="restore", **PLACE),
    ledger.Applied(git_commit="d" * 40, restored=["kernels/a.py"], **PLACE),
    ledger.Applied(**PLACE),
    ledger.ApplyWaived(**PLACE),
    ledger.Note(time=NOW, round=2, notes=Notes(lesson="ü\u2028|")),
    ledger.KeysChanged(time=NOW, event="manifest_changed", values={"max_iterations": 5}),
    ledger.Ended(time=NOW, how="stopped"),
    ledger.Ended(time=NOW, how="abandoned"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "campaign" / "ledger.jsonl"


def refusal_of(path: Path) -> str:
    with pytest.raises(BadInput) as refusal:
        ledger.read(path)
    assert str(refusal.value).startswith(f"{path}: ")
    return str(refusal.value)


def test_a_campaign_without_a_ledger_has_no_events(path: Path) -> None:
    assert ledger.read(path) == []


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event)
def test_each_event_reads_back_as_it_was_written(path: Path, event: AnyEvent) -> None:
    ledger.append(path, event)
    assert ledger.read(path) == [event]
    assert path.read_bytes().count(b"\n") == 1


def test_events_stand_one_a_line_in_the_order_they_happened(path: Path) -> None:
    for event in EVENTS:
        ledger.append(path, event)
    assert ledger.read(path) == EVENTS
    together = path.with_name("together.jsonl")
    ledger.append(together, *EVENTS)
    assert together.read_bytes() == path.read_bytes()


def test_events_are_on_disk_before_anything_follows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses its power would otherwise commit what no event tells of."""
    synced: list[bytes] = []

    def fsync(descriptor: int) -> None:
        synced.append(os.pread(descriptor, 1 << 20, 0))

    monkeypatch.setattr(os, "fsync", fsync)
    ledger.append(path, *EVENTS[:2])
    assert synced == [path.read_bytes()] != [b""]


def test_appending_keeps_every_byte_that_was_there(path: Path) -> None:
    ledger.append(path, *EVENTS[:3])
    before = path.read_bytes()
    ledger.append(path, *EVENTS[3:])
    assert path.read_bytes().startswith(before)


@given(
    TEXT,
    st.floats(allow_nan=False, allow_infinity=False),
    st.dictionaries(TEXT, st.just("e"), max_size=5),
)
@few_examples
def test_any_text_and_number_reads_back(reason: str, number: float, kernel: dict[str, str]) -> None:
    total = Aggregate(metric=reason, change_pct=number)
    event = decided(1, Decision.ROLLED_BACK).model_copy(
        update={"reason": reason, "aggregate": total, "kernel": kernel}
    )
    with TemporaryDirectory() as directory:
        path = Path(directory) / "ledger.jsonl"
        ledger.append(path, event)
        assert ledger.read(path) == [event]


def test_a_figure_that_is_not_finite_reads_back_as_it_is(path: Path) -> None:
    trend = Trend(unit="TFLOPS", forward_average=math.nan, combined=math.inf)
    ledger.append(path, decided(1, Decision.BASELINE, trend=trend))
    (found,) = ledger.read(path)
    assert isinstance(found, ledger.Decided) and found.trend is not None
    assert found.trend.forward_average is not None and math.isnan(found.trend.forward_average)
    assert found.trend.combined == math.inf


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_last_line_is_an_event_that_never_happened(path: Path, cut: int) -> None:
    ledger.append(path, *EVENTS[:4])
    path.write_bytes(path.read_bytes()[:-cut])
    assert ledger.read(path) == EVENTS[:3]


def test_a_torn_last_line_is_cut_off_before_the_next_event(path: Path) -> None:
    ledger.append(path, *EVENTS[:2])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"v": 1, "event": "decided", "rea')
    ledger.append(path, EVENTS[2])
    assert path.read_bytes().startswith(whole)
    assert ledger.read(path) == EVENTS[:3]


def test_a_torn_first_line_leaves_an_empty_ledger(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"v": 1, "ev')
    assert ledger.read(path) == []
    ledger.append(path, EVENTS[0])
    assert ledger.read(path) == EVENTS[:1]


def test_a_ledger_cut_off_at_any_byte_holds_the_events_before_the_cut(path: Path) -> None:
    events = attempt_events(1, Decision.BASELINE)
    ledger.append(path, *events)
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        assert ledger.read(path) == events[: whole[:end].count(b"\n")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "line 2"),
        (b"not json", "line 2"),
        (b"\xff\xfe", "line 2"),
        (b"[]", "line 2"),
        (b'{"v": 1, "event": "opened", "round": 2, "attempt": 1}', "time"),
        (b'{"v": 1, "event": "opened", "time": "-", "round": 0, "attempt": 1}', "round"),
        (b'{"v": 2, "event": "opened", "time": "-", "round": 1, "attempt": 1}', "v"),
        (b'{"v": 1, "event": "closed", "time": "-"}', "'closed'"),
        (b'{"v": 1, "event": "note", "time": "-", "round": 1, "notes": {"tip": 1}}', "notes.tip"),
    ],
)
def test_a_corrupt_line_in_the_middle_is_named(path: Path, line: bytes, complaint: str) -> None:
    ledger.append(path, EVENTS[0])
    path.write_bytes(path.read_bytes() + line + b"\n")
    ledger.append(path, EVENTS[1])
    message = refusal_of(path)
    assert "line 2 is no ledger event" in message
    assert complaint in message


def test_keys_of_another_release_are_left_out(path: Path) -> None:
    path.parent.mkdir(parents=True)
    notes = '{"tip": "t", "later": 1}'
    path.write_text(
        f'{{"v": 1, "event": "note", "time": "-", "round": 1, "later": 1, "notes": {notes}}}\n'
    )
    assert ledger.read(path) == [ledger.Note(time="-", round=1, notes=Notes(tip="t"))]


def test_events_of_an_earlier_release_change_no_state(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for kind in ("integrating", "integrated"):
        path.write_text(f'{{"v": 1, "event": "{kind}", "time": "-", "round": 2}}\n')
        (event,) = ledger.read(path)
        assert replace(fold([event]), events=0) == fold([])


def test_a_ledger_that_cannot_be_read_is_named(path: Path) -> None:
    path.mkdir(parents=True)
    assert "cannot be read" in refusal_of(path)


def test_every_line_says_its_format_version_and_kind(path: Path) -> None:
    ledger.append(path, *EVENTS)
    for line, event in zip(path.read_bytes().decode().split("\n"), EVENTS, strict=False):
        assert line.startswith(f'{{"v": 1, "event": "{event.event}", "time": "{NOW}"')


def test_a_refusal_is_one_line_whatever_the_event_is_called(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"event": "ope\\ned\\u0007", "time": "2026-11-21T10:00:00Z", "round": 1}\n')
    refusal = refusal_of(path)
    assert refusal.isprintable() and "ope" in refusal
