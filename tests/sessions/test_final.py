"""The end of a campaign: `--kopt-round final` holds its best version against the baseline."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from .paired import FASTER, OLD, PLAIN, SLOWER, Gate, kernel, project_at
from .project import CAMPAIGN, Run
from .story import items, sections

long = pytest.mark.long
INIT = ("--op", "plain", "--kernel", PLAIN, "--backend", "TORCH", "--gpu", "cpu")
FASTEST = 125.0


class Played:
    """A campaign as it is played, round by round."""

    def __init__(self, directory: Path) -> None:
        self.project = project_at(directory / "project")
        self.private = Gate(self.project)
        assert self.project.kopt("init", CAMPAIGN, *INIT).code == 0

    def round(self, number: int | str, *words: str) -> Run:
        """Play a round."""
        return self.project.round(number, *words, **self.private.variables())

    def accept(self, number: int, cost: float, *words: str) -> None:
        """Play a round with a kernel of this cost, which has to be accepted."""
        self.project.write(PLAIN, kernel(cost, f"round {number}"))
        run = self.round(number, *words)
        assert run.code == 0, run.text

    def final(self) -> tuple[Run, dict[str, Any]]:
        """Compare best and baseline, see that neither tree nor history changed, return what came.

        That is the run and the last event.
        """
        before = (self.project.head(), self.project.read(PLAIN), self.project.git("status", "-s"))
        run = self.round("final")
        after = (self.project.head(), self.project.read(PLAIN), self.project.git("status", "-s"))
        assert after == before
        return run, self.project.ledger()[-1]


STORED = ("--kopt-compare", "stored")


def test_the_best_version_meets_the_baseline(tmp_path: Path) -> None:
    played = Played(tmp_path)
    assert played.round(1).code == 0
    refuses_without_an_accepted_round(played)
    played.accept(2, FASTER, *STORED)
    refuses_an_edited_kernel(played)
    run, event = played.final()
    assert run.code == 0, run.text
    total = event["aggregate"]
    assert (event["event"], event["best"], event["decision"]) == ("final", 2, "ACCEPTED")
    assert total["change_pct"] == pytest.approx(100 * (OLD / FASTER - 1))
    evidence = played.project.campaign / "final/attempt-1"
    assert {f"final/attempt-1/{path.name}" for path in evidence.iterdir()} >= set(event["evidence"])
    snapshot = evidence / "kernel_snapshot" / PLAIN
    assert snapshot.read_text() == played.project.read(PLAIN)
    for pair in csv.DictReader((evidence / "pairs.csv").open()):
        ours = FASTER if pair["comparison"] == "candidate" else OLD
        assert (float(pair["candidate_ms"]), float(pair["incumbent_ms"])) == (ours, OLD)
    log = (played.project.campaign / "logs/optimize.md").read_text()
    report = items(sections(log)["Final Report"])
    assert report["Best version"] == "round-2" and report["Decision"].startswith("ACCEPTED")
    assert "+33.333%" in report["Best against baseline, side by side"]


def refuses_without_an_accepted_round(played: Played) -> None:
    run = played.round("final")
    assert run.code == 4 and "no round was accepted" in run.refusal


def refuses_an_edited_kernel(played: Played) -> None:
    accepted = played.project.read(PLAIN)
    played.project.write(PLAIN, kernel(FASTER, "edited"))
    before = played.project.contents()
    run = played.round("final")
    assert run.code == 4, run.text
    assert "round 2" in run.refusal and "measure the edit as a round" in run.refusal
    assert played.project.contents() == before
    played.project.write(PLAIN, accepted)


@long
def test_a_campaign_told_to_its_end(tmp_path: Path, mode: tuple[str, ...]) -> None:
    """Two gains, paired, and a loss between them; together they are what the final word says."""
    played = Played(tmp_path)
    assert played.round(1, *mode).code == 0
    played.accept(2, FASTER, *mode)
    played.project.write(PLAIN, kernel(SLOWER, "round 3"))
    assert played.round(3, *mode).code == 8
    played.accept(4, FASTEST, *mode)
    run, event = played.final()
    assert run.code == 0, run.text
    assert event["best"] == 4
    assert event["aggregate"]["change_pct"] == pytest.approx(100.0)
    assert "the rounds' gains multiply to +100.000 %" in run.out
    assert played.round("final").code == 0
    assert (played.project.campaign / "final/attempt-2/verdict.json").is_file()
    log = (played.project.campaign / "logs/optimize.md").read_text()
    assert log.count("## Final Report") == 2


@long
def test_a_chain_that_lost_and_a_version_that_fails(tmp_path: Path) -> None:
    """Its cost and its results depend on a file that is none of the kernel's."""
    played = Played(tmp_path)
    project = played.project
    factor = kernel("settings.MS", "changes", imports="import settings").replace(
        "2.0 * x", "settings.FACTOR * x"
    )
    project.write("settings.py", f"MS = {FASTER}\nFACTOR = 2.0\n")
    assert played.round(1).code == 0
    project.write(PLAIN, factor)
    assert played.round(2, *STORED).code == 0
    project.write("settings.py", f"MS = {SLOWER}\nFACTOR = 2.0\n")
    run, event = played.final()
    assert run.code == 8, run.text
    assert event["decision"] == "ROLLED_BACK"
    assert event["aggregate"]["change_pct"] == pytest.approx(100 * (OLD / SLOWER - 1))
    project.write("settings.py", f"MS = {FASTER}\nFACTOR = 2.1\n")
    run, event = played.final()
    assert run.code == 1, run.text
    assert event["decision"] == "REPAIR" and "fails 1 case" in event["reason"]
