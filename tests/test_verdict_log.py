"""Verdicts of one base, night by night: the file, its tables and its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pytest_kopt
from pytest_kopt.campaign import verdict_log
from pytest_kopt.cli.main import main
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.verdict import Aggregate, Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.show.report import charts

LOST = [(0.97**night - 1) * 100 for night in range(1, 11)]


def verdict(change_pct: float | None) -> Verdict:
    total = Aggregate(metric="step speed", change_pct=change_pct)
    shapes = [
        Shape(label=f"n={n}", dims={"n": n}, check="PASS", status="unchanged", change_pct=change)
        for n, change in ((1, change_pct), (2, None))
    ]
    return Verdict(
        base="0123456789abcdef", decision=Decision.ACCEPTED, outcome="not slower", reason="<b>",
        compare="paired", policy="primus", aggregate=total, shapes=shapes,
    )  # fmt: skip


@pytest.fixture
def nightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten nights, each 3 % slower than the one before."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "kopt" / "nightly.jsonl"
    for lost in LOST:
        verdict_log.append(path, json.loads(verdict(lost).model_dump_json()), "f" * 40)
    return path


def test_every_verdict_is_a_line_more(nightly: Path) -> None:
    logged = verdict_log.read(nightly)
    assert [entry.verdict for entry in logged] == [verdict(lost) for lost in LOST]
    assert {entry.commit for entry in logged} == {"f" * 40}


def test_a_line_that_was_cut_off_spoils_no_other(nightly: Path) -> None:
    text = nightly.read_text()
    nightly.write_text(text + '{"time": "20')
    verdict_log.append(nightly, json.loads(verdict(1.0).model_dump_json()), None)
    with pytest.raises(BadInput, match=r"nightly.jsonl:11.*delete the line"):
        verdict_log.read(nightly)
    nightly.write_text("".join(nightly.read_text().splitlines(keepends=True)[-1:]))
    assert verdict_log.read(nightly)[0].verdict == verdict(1.0)


@pytest.mark.parametrize("text", ["", '{"reason": "no verdict"}\n', "\ufffd"])
def test_what_holds_no_verdicts_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"other\.jsonl"):
        verdict_log.read(path)


def test_its_tables_show_the_trend(nightly: Path) -> None:
    pytest.importorskip("pandas")
    frames = pytest_kopt.load(nightly)
    assert list(frames.rounds["change_pct"]) == LOST
    assert set(frames.rounds["campaign"]) == {"nightly"}
    one = frames.rows[frames.rows["n"] == 1]
    assert list(one["change_pct"]) == LOST and one["round"].tolist() == [*range(1, 11)]
    assert frames.pairs.empty and frames.missing == ()
    assert main(["export", str(nightly), "-o", "tables", "--format", "csv"]) == 0
    assert len(Path("tables/rounds.csv").read_text().splitlines()) == 1 + len(LOST)


def test_its_page_draws_every_case(nightly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vl_convert")
    drawn: list[Any] = []
    whole = charts.nightly

    def noted(points: Any) -> Any:
        drawn.append(points)
        return whole(points)

    monkeypatch.setattr(charts, "nightly", noted)
    assert main(["report", str(nightly)]) == 0
    page = nightly.with_suffix(".html").read_text()
    assert "10 verdicts, against 0123456789ab" in page and "not slower" in page
    assert "&lt;b&gt;" in page and "<td><b>" not in page
    (points,) = drawn
    assert [point["gain"] for point in points if point["case"] == "n=1"] == LOST
    assert [point["gain"] for point in points if point["case"] == "all cases"] == LOST
    assert not [point for point in points if point["case"] == "n=2"], "it has no change"


def test_a_page_is_about_one_file(nightly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(nightly), "softmax"]) == ExitCode.USAGE
    assert "takes a file of verdicts alone" in capsys.readouterr().err
