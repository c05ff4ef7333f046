from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.ledger import Trend
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.cli.main import main
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.schema.table import Table
from pytest_kopt.show.files.summary import missing_text
from tests.builders import attempt_events, gemm_table, manifest_document, write_table

ROWS = 10_000
ROUNDS = 119
Record = Callable[[str, object], None]
FIGURES = Trend(unit="TFLOPS", forward_average=100.0, forward_peak=120.0, combined=100.0)


class Stopwatch:
    """Seconds of processor time, which other people's work on the machine does not move.

    What was done and how long it took go into the test's report, for `benchmarks/performance.py`.
    """

    def __init__(self, what: str, record: Record) -> None:
        self._what, self._record = what, record

    def __enter__(self) -> Stopwatch:
        self._start = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._record(self._what, time.process_time() - self._start)


def a_table(rate: float, checks: list[str] | None = None) -> Table:
    return gemm_table([rate] * ROWS, [rate / 2] * ROWS, checks=checks)


def a_ledger(path: Path) -> None:
    events = attempt_events(1, Decision.BASELINE, trend=FIGURES)
    for number in range(2, ROUNDS + 1):
        decision = Decision.ACCEPTED if number % 3 else Decision.ROLLED_BACK
        events += attempt_events(number, decision, trend=FIGURES)
    ledger.append(path, *events)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("tables") / "old.csv", a_table(100.0))


@pytest.fixture(scope="module")
def new(old: Path) -> Path:
    return write_table(old.with_name("new.csv"), a_table(103.0))


@pytest.mark.parametrize(
    "words", [(), pytest.param(("--json",), marks=pytest.mark.long)], ids=["text", "json"]
)
def test_ten_thousand_rows_are_decided(
    old: Path,
    new: Path,
    capsys: pytest.CaptureFixture[str],
    record_property: Record,
    words: tuple[str, ...],
) -> None:
    with Stopwatch(f"{' '.join(('kopt decide', *words))}, 10,000 rows", record_property):
        code = main(["decide", "--candidate", str(new), "--incumbent", str(old), *words])
    assert code == 0
    assert "ACCEPTED" in capsys.readouterr().out


def test_ten_thousand_failed_rows_are_told_in_a_line_that_can_be_read(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], record_property: Record
) -> None:
    new = write_table(tmp_path / "new.csv", a_table(103.0, checks=["FAIL"] * ROWS))
    with Stopwatch("kopt decide, 10,000 failed rows", record_property):
        code = main(["decide", "--candidate", str(new), "--incumbent", str(old)])
    assert code == 1
    assert len(capsys.readouterr().out) < 1000


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_the_status_of_119_rounds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record_property: Record,
    words: tuple[str, ...],
) -> None:
    layout = Layout(tmp_path / "agent" / "workspace" / "long")
    manifests.save(layout.manifest, Manifest.model_validate(manifest_document()))
    a_ledger(layout.ledger)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    with Stopwatch(f"{' '.join(('kopt status', *words))}, 119 rounds", record_property):
        assert main(["status", "long", *words]) == 0
    out = capsys.readouterr().out
    if words:
        document = json.loads(out)
        assert (document["incumbent_round"], document["next_round"]) == (ROUNDS, ROUNDS + 1)
        assert len(document["rounds"]) == ROUNDS
    else:
        assert f"round {ROUNDS}: ACCEPTED <- incumbent" in out


def test_the_trend_of_119_rounds(tmp_path: Path, record_property: Record) -> None:
    layout = Layout(tmp_path / "agent" / "workspace" / "long")
    manifests.save(layout.manifest, Manifest.model_validate(manifest_document()))
    a_ledger(layout.ledger)
    with Stopwatch("trend table, 119 rounds", record_property):
        text = missing_text("", Campaign(layout, tmp_path).state)
    assert text.count("\n| ") == ROUNDS + 1
