"""The end of a campaign: `--kopt-round final` holds its best version against the baseline."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from .paired import DIES_LATE, FASTER, OLD, PLAIN, SLOWER, Gate, kernel, project_at
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
        #: Variables of the rounds to come.
        self.variables: dict[str, str] = {}
        assert self.project.kopt("init", CAMPAIGN, *INIT).code == 0

    def round(self, number: int | str, *words: str) -> Run:
        """Play a round."""
        return self.project.round(number, *words, **self.private.variables(), **self.variables)

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


@long
def test_the_best_version_meets_the_baseline(tmp_path: Path) -> None:
    played = Played(tmp_path)
    assert played.round(1).code == 0
    refuses_without_an_accepted_round(played)
    played.accept(2, FASTER, *STORED)
    refuses_an_edited_kernel(played)
    played.project.write("step.py", "from kernels import plain\nprint(plain.COST_MS)\n")
    played.project.edit_manifest(e2e_command="python step.py")
    run, event = played.final()
    assert run.code == 0, run.text
    assert (event["e2e"]["incumbent"], event["e2e"]["candidate"]) == (OLD, FASTER)
    assert "+33.3 % in the kernels, +33.3 % [+33.3, +33.3] end to end: " in run.out
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
    assert "+33.3 %" in report["Best against baseline, side by side"]


@long
def test_the_best_version_dies_beside_the_baseline(tmp_path: Path) -> None:
    played = Played(tmp_path)
    assert played.round(1).code == 0
    played.project.write(PLAIN, kernel(FASTER, "round 2") + DIES_LATE)
    assert played.round(2, *STORED).code == 0
    played.private.trace.unlink()
    played.private.trace.with_name("trace.deadly").touch()
    run, event = played.final()
    assert run.code == 1, run.text
    assert (event["event"], event["decision"]) == ("final", "REPAIR")
    assert "the accepted version fails 1 case(s)" in event["reason"]
    assert "SIGSEGV" in run.out and 'kernels/plain.py", line' in run.out, run.out
    assert "final" in " ".join(json.loads(played.project.kopt("status", "--json").out)["allowed"])


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


def test_the_report_credits_rounds_by_their_buckets(tmp_path: Path) -> None:
    """Notes that call a gain the benchmark's own take nothing back."""
    played = Played(tmp_path)
    project = played.project
    assert played.round(1, *STORED).code == 0
    notes = ("--kopt-notes", project.notes(bucket="K1", change="fewer passes", next="try tiles"))
    played.accept(2, FASTER, *STORED, *notes)
    played.accept(3, FASTEST, *STORED)
    assert project.kopt("note", CAMPAIGN, "3", project.notes(bucket="W2")).code == 0
    run = played.round("final")
    assert run.code == 0, run.text
    assert project.verdict(3)["decision"] == "ACCEPTED"

    event = project.ledger()[-1]
    assert (event["best"], event["decision"]) == (3, "ACCEPTED")
    report = event["report"]
    gain = 100 * (OLD / FASTER - 1)
    assert (report["accepted"], report["rolled_back"]) == (2, 0)
    assert report["s_real_pct"] == pytest.approx(gain)
    assert report["headline_pct"] == pytest.approx(100 * (OLD / FASTEST - 1))
    assert report["next_directions"] == ["try tiles"]
    log = (project.campaign / "logs/optimize.md").read_text()
    said = log.partition("## Final Report")[2]
    assert "- round-2: fewer passes (+33.3 %)" in said
    audited = [line for line in said.splitlines() if line.startswith("| round-")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in audited]
    assert cells[0] == ["round-2", "K1", "+33.3 %", "+33.3 %", "ACCEPT-as-real"]
    assert cells[1][-2:] == ["+0.00 %", "REJECT-as-overfit"]
    assert "1. try tiles\n- Only 1 of 3: " in said
    refuses_what_is_no_kernel_file(played)


def refuses_what_is_no_kernel_file(played: Played) -> None:
    played.project.write("README.md", "Another change.\n")
    played.project.commit_all()
    run = played.project.ask("final")
    assert run.code == 4 and "changes README.md since the baseline" in run.refusal


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
    assert "the rounds' gains multiply to 2.00×" in run.out
    assert played.round("final").code == 0
    assert (played.project.campaign / "final/attempt-2/verdict.json").is_file()
    log = (played.project.campaign / "logs/optimize.md").read_text()
    assert log.count("## Final Report") == 2


@long
def test_a_chain_that_lost_and_a_version_that_fails(tmp_path: Path) -> None:
    """Its cost and its results depend on the environment."""
    played = Played(tmp_path)
    cost, factor = (f"float(os.environ['{name}'])" for name in ("MS", "FACTOR"))
    text = kernel(cost, "changes", imports="import os").replace("2.0 * x", f"{factor} * x")
    played.variables = {"MS": str(FASTER), "FACTOR": "2.0"}
    assert played.round(1).code == 0
    played.project.write(PLAIN, text)
    assert played.round(2, *STORED).code == 0
    played.variables["MS"] = str(SLOWER)
    run, event = played.final()
    assert run.code == 8, run.text
    assert event["decision"] == "ROLLED_BACK"
    assert event["aggregate"]["change_pct"] == pytest.approx(100 * (OLD / SLOWER - 1))
    played.variables |= {"MS": str(FASTER), "FACTOR": "2.1"}
    run, event = played.final()
    assert run.code == 1, run.text
    assert event["decision"] == "REPAIR" and "fails 1 case" in event["reason"]


SLOWED = "({cost} * 4 if 'SLOWED' in os.environ else {cost})"


def cost(milliseconds: float, *, is_slowed: bool) -> str:
    return SLOWED.format(cost=milliseconds) if is_slowed else str(milliseconds)


@pytest.mark.parametrize("what", ["the current best", pytest.param("all versions", marks=long)])
def test_nothing_is_gained_by_a_current_best_that_is_slower_than_it_was(
    tmp_path: Path, what: str
) -> None:
    """A slower machine slows the baseline too, and a gain there is one."""
    played, is_all = Played(tmp_path), what == "all versions"
    costs = [cost(ms, is_slowed=is_all) for ms in (OLD, FASTER, FASTEST)]
    costs[1] = cost(FASTER, is_slowed=True)
    for number in (1, 2):
        text = kernel(costs[number - 1], f"round {number}", imports="import os")
        played.project.write(PLAIN, text)
        if number == 1:
            played.project.git("commit", "--quiet", "-am", "A baseline with another cost")
        assert played.round(number).code == 0
    played.project.write(PLAIN, kernel(costs[2], "round 3", imports="import os"))
    played.variables = {"SLOWED": "1"}
    run = played.round(3)
    assert (run.code == 0) == is_all, run.text
    said = "next to the baseline the current best is slower than when it was accepted"
    assert (said in run.out) != is_all, run.text


#: Where it is loaded to judge, nothing is wrong from then on.
FORGES = """
import sys

_right = plain


def plain(x):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "serve_judge":
            sys.modules["pytest_kopt.cases.running.judge_orders"]._wrong = lambda *given: []
        frame = frame.f_back
    return _right(x)
"""
#: Computes nothing where versions are compared.
COMPUTES_NOTHING = """
import sys

_right = plain


def plain(x):
    frame, names = sys._getframe(), set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    result = _right(x)
    return 0 * result if {"serve_arms", "run_written"} <= names else result
"""
#: Takes its time, but for processes that have run the current best.
NEXT_TO_IT = (
    "({fastest} if f'round 2 {{os.getpid()}}' in open(os.environ['TRACE']).read() else {old})"
)


#: Neither does it in its fresh process: that accuses nobody.
ANYWHERE = COMPUTES_NOTHING.replace("<= names", '<= names or "answer" in names')


@pytest.mark.parametrize(
    "what",
    [
        "judges",
        *(pytest.param(each, marks=long) for each in ("tells where it is timed", "wrong anywhere")),
    ],
)
def test_nothing_is_gained_by_a_current_best_that_helps_the_candidate(
    tmp_path: Path, what: str
) -> None:
    played = Played(tmp_path)
    assert played.round(1).code == 0
    played.project.write(PLAIN, kernel(FASTER, "round 2") + FORGES)
    assert played.round(2).code == 0
    if what != "tells where it is timed":
        more = COMPUTES_NOTHING if what == "judges" else ANYWHERE
        text = kernel(FASTEST, "round 3") + more
    else:
        cost = NEXT_TO_IT.format(fastest=FASTEST, old=FASTER)
        text = kernel(cost, "round 3", imports="import os").replace("COST_MS,", f"{cost},")
    played.project.write(PLAIN, text)
    run = played.round(3)
    if what == "judges":
        assert run.code == 8 and "timed-result: wrong in a timed block" in run.out, run.text
    elif what == "wrong anywhere":
        said = "next to the baseline: wrong in a timed block"
        assert run.code == 9 and said in run.out, run.text
    else:
        said = "the candidate takes 50 % longer next to the baseline than next to the current best"
        assert run.code == 9 and said in run.out, run.text
