"""Rounds that end in other ways, and the commands around them.

They go on from a baseline, from a stage of `story`, or play a campaign of their own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .project import CAMPAIGN, CASES, KERNEL, NO_XDIST, TWO_WORKERS, Project
from .sources import DOUBLED_CASES as CASES_OF_TWO
from .sources import SETTINGS, STORED, write_doubled
from .sources import doubled_kernel as kernel
from .story import Story, items, sections


def going_on(story: Story, name: str, tmp_path: Path) -> Project:
    """A copy of a stage."""
    return story[name].project.copy(tmp_path / "project")


def test_a_round_without_xdist(started: Project) -> None:
    """And with an identity that git is told not to look at: the commit is made all the same."""
    started.write("../.gitconfig", "[user]\n\tname = A\n\temail = a@example.com\n")
    started.write(KERNEL, kernel(187.5))
    words = ("--kopt-campaign", CAMPAIGN, "--kopt-round", "2", *NO_XDIST)
    run = started.pytest(*words, GIT_CONFIG_GLOBAL="/dev/null")
    assert run.code == 0, run.text
    assert started.verdict(2)["decision"] == "ACCEPTED"
    assert started.git("show", f"HEAD:{KERNEL}") == kernel(187.5)


def test_a_case_that_fails_as_expected_is_left_out_and_a_row_of_another_is_no_pass(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path / "project")
    write_doubled(project)
    mark = "pytest.param({}, marks=pytest.mark.xfail(reason='later'))".format
    project.write(CASES, CASES_OF_TWO.replace("[2, 4]", f"[2, {mark(4)}, {mark(8)}]"))
    wrong = kernel().replace("return FACTOR * x", "return (FACTOR + (ctx.rows == 8)) * x")
    project.write(KERNEL, wrong)
    project.commit_all()
    assert project.init().code == 0
    run = project.round(1)
    assert run.code == 0, run.text
    (flag,) = [flag for flag in project.verdict(1)["flags"] if "xfail" in flag]
    assert "[8] fails as its xfail mark expects" in flag and len(project.verdict(1)["shapes"]) == 2
    project.write(KERNEL, wrong.replace("== 8", "> 2"))
    run = project.round(2)
    assert run.code == 1, run.text
    checks = {shape["dims"]["rows"]: shape["check"] for shape in project.verdict(2)["shapes"]}
    assert checks == {2: "PASS", 4: "ERROR"}


def test_a_small_gain_is_measured_again_inside_the_session(
    started: Project,
) -> None:
    started.write(KERNEL, kernel(250 / 1.015))
    run = started.play(2)
    assert run.code == 0, run.text
    verdict = started.verdict(2)
    assert verdict["decision"] == "ACCEPTED"
    assert verdict["aggregate"]["change_pct"] == pytest.approx(1.5)
    assert verdict["remeasured_pct"] == [pytest.approx(1.5)] * 3
    assert "re-measured: +1.50 %, +1.50 %, +1.50 %" in run.out


def test_a_small_gain_that_does_not_come_back_is_inconclusive(started: Project) -> None:
    """Workers do not stand in the way of measuring again."""
    started.write(KERNEL, kernel(250 / 1.015))
    # The gain shows in the round's workers only, not in the processes that measure again.
    started.write("slip.txt", repr(1.015 / 1.002))
    run = started.round(2, *TWO_WORKERS)
    assert run.code == 9, run.text
    verdict = started.verdict(2)
    assert (verdict["decision"], verdict["policy"]) == ("INCONCLUSIVE", "primus")
    assert verdict["remeasured_pct"] == [pytest.approx(0.2)] * 3
    assert started.read(KERNEL) == kernel()


def test_one_regressed_case_outweighs_the_aggregate(started: Project) -> None:
    started.write(KERNEL, kernel({2: 125.0, 4: 275.0}))
    run = started.play(2)
    assert run.code == 8, run.text
    verdict = started.verdict(2)
    assert verdict["aggregate"]["change_pct"] > 30
    assert [shape["status"] for shape in verdict["shapes"]] == ["improved", "regressed"]
    assert "doubled rows=4 columns=8" in verdict["reason"] and "5 %" in verdict["reason"]


def test_no_apply_records_but_touches_neither_git_nor_kernel(started: Project) -> None:
    head = started.head()
    slower, faster = kernel(375.0), kernel(125.0)
    started.write(KERNEL, slower)
    run = started.play(2, "--kopt-no-apply")
    assert run.code == 8, run.text
    assert started.read(KERNEL) == slower
    started.write(KERNEL, faster)
    run = started.play(3, "--kopt-no-apply")
    assert run.code == 0, run.text
    assert started.read(KERNEL) == faster and started.head() == head
    for number, decision in ((2, "ROLLED_BACK"), (3, "ACCEPTED")):
        verdict = started.verdict(number)
        assert verdict["decision"] == decision
        assert verdict["applied"] == {"git_commit": None, "restored": []}
    assert [event["event"] for event in started.ledger()][-4:] == [
        *("opened", "measured", "decided", "apply_waived"),
    ]


@pytest.mark.parametrize(
    "words", [(f"{CASES}::test_doubled[4]",), ("-k", "4", *TWO_WORKERS)], ids=["path", "k-n2"]
)
def test_a_filtered_run_decides_nothing(started: Project, words: tuple[str, ...]) -> None:
    started.write(KERNEL, kernel(125.0))
    run = started.round(2, *words)
    assert run.code == 11, run.text
    verdict = started.verdict(2)
    assert verdict["decision"] == "INCOMPLETE"
    assert "test_doubled[2]" in verdict["reason"]
    assert started.read(KERNEL) == kernel(125.0), "the round stays open"
    assert [result["check"] for result in started.evidence(2)["results"]] == ["PASS"]


GATED = """\
import sys
from pathlib import Path

kernel = Path("kernels/doubled.py")
text = kernel.read_text()
if "tidy" in sys.argv:
    kernel.write_text(text.replace("UNTIDY", "tidy"))
elif "BROKEN" in text:
    sys.exit("the full suite says no")
"""


def test_commands_run_before_anything_is_measured(fresh: Project) -> None:
    """A failing test_command is a failed check; what format_command wrote is what is committed."""
    fresh.write("gate.py", GATED)
    python = "LEVEL=full python3"
    fresh.edit_manifest(test_command=f"{python} gate.py", format_command="python3 gate.py tidy")
    run = fresh.round(1)
    assert run.code == 0, run.text

    fresh.forget_measuring()
    fresh.write(KERNEL, kernel(125.0) + "# BROKEN\n")
    run = fresh.play(2)
    assert run.code == 1, run.text
    verdict = fresh.verdict(2)
    assert verdict["decision"] == "REPAIR"
    assert {shape["check"] for shape in verdict["shapes"]} == {"ERROR"}
    assert "the full suite says no" in run.text
    assert not fresh.was_measured

    fresh.write(KERNEL, kernel(125.0) + "# UNTIDY\n")
    run = fresh.play(2)
    assert run.code == 0, run.text
    assert fresh.git("show", f"HEAD:{KERNEL}") == kernel(125.0) + "# tidy\n"
    assert fresh.git("status", "--porcelain", "--", KERNEL) == ""


NEGATED = """\
import torch

REPEATS = {repeats}


def negated(x):
    for _ in range(REPEATS):
        out = -x
    return out
"""
NEGATED_CASES = """\
import pytest


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("n", [8, 16])
def test_negated(kopt, n):
    import torch
    from kernels.doubled import negated

    kopt(negated, inputs=lambda: (torch.randn(n),), reference=lambda x: -x, dims={"n": n})


def test_no_case_at_all():
    raise AssertionError("deselected: a round runs the cases of the campaign")
"""


def test_without_git_snapshots_carry_the_lineage(empty: Project) -> None:
    """Timed by the real clock, on kernels that do ten times as much as they need to."""
    empty.write("pyproject.toml", SETTINGS + STORED)
    empty.write(KERNEL, NEGATED.format(repeats=300))
    empty.write(CASES, NEGATED_CASES)
    run = empty.init()
    assert run.code == 0, run.text
    for number, repeats, decision, code in (
        (1, 300, "BASELINE", 0),
        (2, 30, "ACCEPTED", 0),
        (3, 300, "ROLLED_BACK", 8),
    ):
        empty.write(KERNEL, NEGATED.format(repeats=repeats))
        run = empty.pytest("--kopt-round", str(number))
        assert run.code == code, run.text
        verdict = empty.verdict(number)
        assert verdict["decision"] == decision
        assert verdict["applied"]["git_commit"] is None
    assert empty.read(KERNEL) == NEGATED.format(repeats=30)
    assert verdict["aggregate"]["metric"] == "Time (ms)", "the only campaign needs no name"
    trend = (empty.campaign / "logs/performance_trend.md").read_text()
    second = [cell.strip() for cell in trend.splitlines()[-2].strip("|").split("|")]
    assert second[1] == "ACCEPTED"
    assert second[5:7] == ["-", "-"] and second[8].endswith("bwd —"), "there is no backward"


def test_notes_that_come_later(serial_story: Story, tmp_path: Path) -> None:
    project = going_on(serial_story, "rolled_back", tmp_path)
    before = project.ledger()
    run = project.kopt("note", CAMPAIGN, "3", project.notes(lesson="tiles matter"))
    assert run.code == 0, run.text
    assert project.ledger()[:-1] == before and project.ledger()[-1]["event"] == "note"
    found = sections((project.campaign / "rounds/round-3/summary.md").read_text())
    analysis = items(found["Rollback Analysis"])
    assert analysis["Lesson"] == "tiles matter"
    assert analysis["Root cause"] == "L2 misses", "earlier notes stay"

    run = project.kopt("note", CAMPAIGN, "9", "notes.yaml")
    assert run.code == 4 and "round 9" in run.refusal and "1, 2, 3" in run.refusal
    project.notes(leson="typo")
    run = project.kopt("note", CAMPAIGN, "3", "notes.yaml")
    assert run.code == 4 and "'leson'" in run.refusal and "lesson" in run.refusal


def test_status_says_where_the_campaign_stands(serial_story: Story) -> None:
    expected = {
        "baseline": (1, 2, False),
        "accepted": (2, 3, False),
        "rolled_back": (2, 4, False),
        "repair": (2, 4, True),
        "repaired": (4, 5, False),
    }
    for name, (incumbent, following, is_open) in expected.items():
        run = serial_story[name].project.kopt("status", "--json")
        assert run.code == 0, run.text
        status = json.loads(run.out)
        assert status["campaign"] == CAMPAIGN
        assert status["incumbent_round"] == incumbent
        assert (status["next_round"], status["open"]) == (following, is_open)
        assert f"--kopt-round {following}" in status["next"]
    decisions = [item["decision"] for item in status["rounds"]]
    assert decisions == ["BASELINE", "ACCEPTED", "ROLLED_BACK", "ACCEPTED"]
    text = serial_story["repair"].project.kopt("status", CAMPAIGN).out
    assert "round 2: ACCEPTED +33.3 % <- incumbent" in text and "next: " in text


def test_a_stopped_campaign_takes_no_more_rounds(serial_story: Story, tmp_path: Path) -> None:
    project = going_on(serial_story, "rolled_back", tmp_path)
    stopped = project.kopt("stop", CAMPAIGN)
    assert stopped.code == 0 and "--kopt-round final compares its best" in stopped.out
    assert f"git merge optimize/{CAMPAIGN} brings it" in stopped.out
    log = (project.campaign / "logs/optimize.md").read_text()
    assert re.search(r"T4 .*✅", log.partition("## Termination Check")[2])
    before = project.contents()
    run = project.ask("next")
    assert run.code == 4 and "stopped" in run.refusal
    assert project.kopt("stop", CAMPAIGN).code == 4
    assert project.contents() == before
    status = json.loads(project.kopt("status", "--json").out)
    assert status["ended"] == "stopped" and status["next_round"] is None

    assert f"kopt init NEW --from {CAMPAIGN}" in run.refusal
    assert project.kopt("init", "new", "--from", CAMPAIGN).code == 0
