"""`pytest_kopt.load` and `kopt export`: every value as the campaign's own files have it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pytest_kopt
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.cli.main import main
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.profiling.kernel_table import CaseProfile, KernelRow
from pytest_kopt.show.rooflines import write_profiles
from tests.campaigns import campaign_at, record
from tests.whole_campaign import a_campaign

pandas = pytest.importorskip("pandas")

KEPT = sorted((Path(__file__).parents[1] / "docs" / "campaigns").iterdir())
#: A campaign that came without the bulk of its evidence.
OLD = Path(__file__).parent / "campaign_of_0_1/rmsnorm"


def lines_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def ledger_of(campaign: Path, event: str) -> list[dict[str, Any]]:
    events = map(json.loads, (campaign / "ledger.jsonl").read_text().splitlines())
    return [item for item in events if item["event"] == event]


def same(text: str, value: Any) -> bool:
    """Whether a frame's value is a CSV cell's, to the last bit."""
    if text in ("", "nan"):
        return bool(pandas.isna(value))
    return text == (repr(value) if isinstance(value, float) else str(value))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("campaign", KEPT, ids=lambda path: path.name)
def test_rows_of_a_kept_campaign_are_those_of_its_csvs(campaign: Path) -> None:
    frame = pytest_kopt.load(campaign).rows
    for number, rows in frame.groupby("round"):
        lines = lines_of(campaign / f"rounds/round-{number}/artifacts/benchmark.csv")
        shapes = json.loads((campaign / f"rounds/round-{number}/verdict.json").read_text())[
            "shapes"
        ]
        assert len(rows) == len(lines)
        for line, shape, row in zip(lines, shapes, rows.to_dict("records"), strict=True):
            assert all(same(text, row[name]) for name, text in line.items()), (number, line)
            assert row["status"] == shape["status"]
            assert same(str(shape["change_pct"] or ""), row["change_pct"])
    assert set(frame["round"]) == {item["round"] for item in ledger_of(campaign, "decided")}


@pytest.mark.parametrize("campaign", KEPT, ids=lambda path: path.name)
def test_rounds_of_a_kept_campaign_are_its_last_verdicts(campaign: Path) -> None:
    frame = pytest_kopt.load(str(campaign)).rounds.set_index("round")
    decided = {item["round"]: item for item in ledger_of(campaign, "decided")}
    level = 1.0
    for number, item in decided.items():
        row, total = frame.loc[number], item["aggregate"]
        assert (row["decision"], row["attempt"]) == (item["decision"], item["attempt"])
        assert row["candidate"] == total["candidate"]
        if number > 1:
            assert row["change_pct"] == total["change_pct"]
            gain = level * (1 + total["change_pct"] / 100)
            assert row["over_baseline_change_pct"] == pytest.approx((gain - 1) * 100)
            level = gain if row["kept"] else level
    assert list(frame.index) == sorted(decided)


def test_an_earlier_attempts_verdict_gives_way_to_the_last() -> None:
    frames = pytest_kopt.load(KEPT[2])
    second = frames.rounds.set_index("round").loc[2]
    assert (second["attempt"], second["attempts"], second["decision"]) == (2, 2, "ACCEPTED")
    assert set(frames.rows.set_index("round").loc[2, "attempt"]) == {2}


def test_evidence_that_was_left_out_is_named() -> None:
    frames = pytest_kopt.load(OLD)
    assert frames.pairs.empty and frames.profiles.empty
    assert {"label", "candidate_ms", "clocks"} <= set(frames.pairs.columns)
    assert "rmsnorm/rounds/round-2/artifacts/attempt-2/pairs.csv" in frames.missing
    assert len(frames.missing) == 10, "pairs.csv of every round but one"


def test_several_campaigns_lie_below_each_other() -> None:
    frames = pytest_kopt.load(*KEPT)
    assert list(frames.rounds["campaign"].unique()) == [path.name for path in KEPT]
    counts = [len(pytest_kopt.load(path).rows) for path in KEPT]
    assert frames.rows.groupby("campaign", sort=False).size().tolist() == counts


def test_pairs_are_those_of_the_file(here: Path) -> None:
    own = a_campaign(here, rounds=3, label="{size}")
    frame = pytest_kopt.load().pairs
    lines = [
        {"round": str(number), **line}
        for number in (2, 3)
        for line in lines_of(own.layout.attempt(number, 1) / "pairs.csv")
    ]
    assert len(frame) == len(lines) > 0
    for line, row in zip(lines, frame.to_dict("records"), strict=True):
        line["clocks"] = repr(float(line["clocks"])) if line["clocks"] else ""
        assert all(same(text, row[name]) for name, text in line.items()), line
    assert isinstance(frame["label"][0], str), "a label of digits is no number"


def test_profiles_have_a_row_a_kernel(here: Path) -> None:
    own = campaign_at(here)
    record(own, 1, Decision.BASELINE)
    kernels = (KernelRow("main", 2, 10.5, registers=32), KernelRow("reduce", 1, 0.1))
    write_profiles(own.layout, 1, 1, [CaseProfile("t.py::a", "a", "ncu", "gpu", 2, kernels)])
    frame = pytest_kopt.load("c").profiles
    assert frame[["label", "tool", "kernel"]].to_numpy().tolist() == [
        ["a", "ncu", "main"],
        ["a", "ncu", "reduce"],
    ]
    assert frame["mean_us"].tolist() == [10.5, 0.1] and frame["registers"].tolist()[0] == 32
    assert pandas.isna(frame["registers"][1])


def refused(*campaigns: str | Path) -> str:
    with pytest.raises(BadInput) as found:
        pytest_kopt.load(*campaigns)
    return str(found.value)


def edited(campaign: Campaign, name: str) -> None:
    path = campaign.layout.attempt(2, 1) / name
    path.write_text(path.read_text().replace("1", "2", 1))


@pytest.mark.parametrize("name", ["benchmark.csv", "pairs.csv", "verdict.json"])
def test_changed_evidence_is_refused(here: Path, name: str) -> None:
    edited(a_campaign(here, rounds=2, shapes=1, processes=1), name)
    assert "changed since the ledger recorded it" in refused()


def test_what_cannot_be_loaded_is_told(here: Path) -> None:
    campaign_at(here, "fresh")
    assert "'nope' does not exist" in refused("nope") and "fresh" in refused("nope")
    assert refused("fresh") == "campaign fresh: no round is decided yet"
    record(campaign_at(here / "a"), 1, Decision.BASELINE)
    record(campaign_at(here / "b"), 1, Decision.BASELINE)
    places = [here / place / "agent" / "workspace" / "c" for place in "ab"]
    assert "two campaigns are named 'c'" in refused(*places)
    assert len(pytest_kopt.load(places[0], places[0]).rounds) == 1


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert refused(KEPT[0]) == (
        "analysis: pandas is not installed. Fix: pip install pandas (the extra 'analysis' has it)"
    )


def test_only_loading_brings_pandas_and_nothing_brings_torch() -> None:
    program = (
        "import sys, pytest_kopt; load = pytest_kopt.load; print('pandas' in sys.modules); "
        f"load({str(KEPT[0])!r}); print({{'torch', 'triton'}} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\nset()\n"


def test_exported_csvs_read_back_as_the_frames(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = pytest_kopt.load(OLD)
    assert main(["export", str(OLD), "-o", "tables"]) == 0
    out = capsys.readouterr().out
    assert f"tables/rows.csv: {len(frames.rows)} rows\n" in out
    assert f"{len(frames.missing)} file(s) of evidence" in out
    written = {path.stem for path in (here / "tables").iterdir()}
    assert written == {"pairs", "profiles", "rounds", "rows"}
    for line, row in zip(
        lines_of(here / "tables/rows.csv"), frames.rows.to_dict("records"), strict=True
    ):
        assert all(same(text, row[name]) for name, text in line.items())
