"""The judges that `benchmarks/peers.py` puts beside kopt: the seeds' loop, and what is right."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pytest

from pytest_kopt.cli.main import main
from pytest_kopt.schema.table import read_csv

from . import nursery

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import peers  # noqa: E402
import peers_table  # noqa: E402

FROZEN = (
    "label,B,M,N,K,Check,Forward TFLOPS,Forward TFLOPS_stddev,Backward TFLOPS,"
    "Backward TFLOPS_stddev,Forward Time (ms),Backward Time (ms),out_snr,da_snr,db_snr"
)


def test_the_seeds_loop_writes_the_frozen_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    done = nursery.run(
        [sys.executable, "quick_test_bench.py", "--summary-csv", str(path)],
        cwd=BENCHMARKS / "peers_project",
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert path.read_text().splitlines()[0] == FROZEN
    rows = list(csv.DictReader(path.open()))
    assert [row["Check"] for row in rows] == ["PASS"] * 3
    assert all(float(row["Forward TFLOPS"]) > 0 for row in rows)
    assert len(read_csv(path).rows) == 3
    assert main(["decide", "--candidate", str(path), "--incumbent", str(path)]) == 8
    assert "ROLLED_BACK" in capsys.readouterr().out, "an equal aggregate is no gain"


@pytest.mark.parametrize(
    ("change", "gains", "keep"),
    [
        ("aa", [0, 0, 0], False),
        ("+1", [1.01, 1.01, 1.01], True),
        ("-1", [-0.99, -0.99, -0.99], False),
        ("+2", [2.04, 2.04, 2.04], True),
        ("-2", [-1.96, -1.96, -1.96], False),
        ("one-6", [5.26, -6.10, 5.26], False),
    ],
)
def test_the_changes_are_what_they_are_called(change: str, gains: list[float], keep: bool) -> None:
    assert peers.truth_pct(change) == pytest.approx(gains, abs=0.005)
    assert peers.should_keep(change) is keep


def test_wrong_decisions_stand_out_in_the_table() -> None:
    def said(judge: str, change: str, word: str, right: bool) -> dict[str, object]:
        cost = {"device_seconds": 2.0, "wall_seconds": 8.0}
        return {"judge": judge, "change": change, "said": word, "right": right, **cost}

    judgements = [
        said("S0", "aa", "ACCEPTED", False),
        said("S0", "aa", "ROLLED_BACK", True),
        said("kopt", "aa", "INCONCLUSIVE", True),
        said("kopt", "+1", "ACCEPTED", True),
    ]
    lines = peers_table.decisions(judgements).splitlines()
    assert lines[0].split() == ["|", "true", "change", "|", "S0", "|", "kopt", "|"]
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "identical code",
        "**1 ACCEPTED**, 1 ROLLED_BACK",
        "1 INCONCLUSIVE",
    ]
    costs = peers_table.costs(
        {"judgements": judgements, "baseline_seconds": {"S0": 5.0, "kopt": 20.0}}
    )
    assert [cell.strip() for cell in costs.splitlines()[2].split("|")[1:4]] == ["S0", "1", "1"]
