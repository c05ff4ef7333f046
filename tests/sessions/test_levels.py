"""Rounds at two levels: the representative cases first, all where these are not enough.

Six cases of 1 to 32 rows; of equal ones those of 1, 8 and 32 rows stand for all.
"""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from .once import made_once
from .paired import OLD, SLOWER, Gate, project_at
from .paired import cases as paired_cases
from .paired import kernel as paired_kernel
from .project import CAMPAIGN, CASES, KERNEL, Project, Stage
from .sources import DOUBLED_CASES, doubled_kernel, write_doubled

ROWS = (1, 2, 4, 8, 16, 32)
QUICK, OTHERS = (1, 8, 32), (2, 4, 16)
SHAPES = [f"doubled rows={rows} columns=8" for rows in QUICK]


def kernel(quick: float = 250.0, others: float = 250.0) -> str:
    """A version by its cost in the representative cases and in the others."""
    costs: Mapping[int, float] = dict.fromkeys(QUICK, quick) | dict.fromkeys(OTHERS, others)
    return doubled_kernel(costs)


def _make(directory: Path) -> None:
    project = Project(directory / "working")
    write_doubled(project)
    project.write(CASES, DOUBLED_CASES.replace("[2, 4]", str(list(ROWS))))
    project.write(KERNEL, kernel())
    project.commit_all()
    assert project.init().code == 0
    before = project.contents()
    run = project.round(1, "--kopt-level", "quick")
    assert run.code == 4 and "the baseline measures every case" in run.refusal
    assert project.contents() == before
    Stage(project, project.round(1)).keep(directory / "six")


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A campaign of six cases after its baseline, which could not be quick."""
    return Stage.kept(made_once(tmp_path_factory, "levels", {"levels": _make}) / "six")


@pytest.fixture
def six(baseline: Stage, tmp_path: Path) -> Project:
    """The same, to go on with."""
    return baseline.project.copy(tmp_path / "project")


def manifest(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((project.campaign / "manifest.yaml").read_text())
    return found


def rows_of(path: Path) -> list[int]:
    """The rows of the cases in a CSV, in its order."""
    return [int(row["rows"]) for row in csv.DictReader(path.open())]


def measured(project: Project, number: int) -> list[int]:
    return rows_of(project.campaign / f"rounds/round-{number}/artifacts/benchmark.csv")


def test_the_baseline_proposes_and_the_user_may_edit(baseline: Stage) -> None:
    project = baseline.project
    assert baseline.run.code == 0, baseline.run.text
    assert measured(project, 1) == list(ROWS)
    assert manifest(project)["representative_shapes"] == SHAPES
    assert f"which times {', '.join(SHAPES)}" in baseline.run.out
    log = (project.campaign / "rounds/round-1/artifacts/quick_baseline.log").read_text()
    assert [line.split()[0] for line in log.splitlines()[2:]] == [f"rows={n}" for n in QUICK]
    text = project.kopt("status").out
    assert f"quick rounds time {', '.join(SHAPES)} (edit manifest.yaml" in text


def test_a_quick_round_refuses_by_the_representative_cases_and_keeps_by_all(six: Project) -> None:
    """The others are checked, and timed where a version would be kept."""
    edited = [*SHAPES[:2], "doubled rows=16 columns=8"]
    six.edit_manifest(representative_shapes=edited)
    six.write(KERNEL, doubled_kernel(dict.fromkeys(ROWS, 500.0) | {32: 125.0}))
    run = six.play("next")
    assert run.code == 8, run.text
    assert "round 2, attempt 1, quick: ROLLED_BACK" in run.out
    assert "quick: 3 of 6 cases are timed" in run.out and "6 passed" in run.out
    assert six.verdict(2)["level"] == "quick"

    before = six.contents()
    six.edit_manifest(representative_shapes=SHAPES)
    run = six.play("next", "--kopt-level", "full")
    assert run.code == 4 and "round 2 was measured with it" in run.refusal
    six.edit_manifest(representative_shapes=edited)
    assert six.contents().keys() == before.keys()
    run = six.play("final", "--kopt-level", "quick")
    assert run.code == 4 and "the final comparison measures every case" in run.refusal

    # An agent reads in the manifest which cases a quick round times.
    six.write(KERNEL, doubled_kernel(dict.fromkeys(ROWS, 125.0) | {32: 500.0}))
    run = six.play("next")
    assert run.code == 8, run.text
    verdict = six.verdict(3)
    assert (verdict["level"], verdict["decision"]) == ("full", "ROLLED_BACK")
    assert "rows=32" in verdict["reason"]

    six.write(KERNEL, doubled_kernel(dict.fromkeys(ROWS, 62.5)))
    run = six.play("next")
    assert run.code == 0, run.text
    verdict = six.verdict(4)
    assert (verdict["level"], verdict["aggregate"]["change_pct"]) == ("full", 300.0)
    assert measured(six, 4) == list(ROWS)
    status = json.loads(six.kopt("status", "--json").out)
    assert status["quick"] == {"shapes": edited, "frozen_since_round": 2}
    assert [item["level"] for item in status["rounds"]] == ["full", "quick", "full", "full"]


def test_a_quick_gain_is_decided_by_all_cases(six: Project, mode: tuple[str, ...]) -> None:
    six.write(KERNEL, kernel(250 / 1.03, 250 / 1.06))
    run = six.round("next", *mode)
    assert run.code == 0, run.text
    verdict = six.verdict(2)
    assert (verdict["decision"], verdict["level"]) == ("ACCEPTED", "full")
    assert verdict["aggregate"]["change_pct"] == pytest.approx(100 * ((1.03 * 1.06) ** 0.5 - 1))
    assert "+3.00 %: what is kept is decided by all 6 cases" in "\n".join(verdict["flags"])
    assert measured(six, 2) == list(ROWS), "in the order of the baseline"
    assert "6 passed" in run.out
    phases = [span["phase"] for span in six.evidence(2)["session"]["timeline"]]
    assert phases[:3] == ["configuring", "starting", "checking"]
    assert phases[-3:] == ["deciding", "checking", "deciding"]


def test_a_quick_gain_that_the_other_cases_lose_is_rolled_back(six: Project) -> None:
    six.write(KERNEL, kernel(250 / 1.03, 262.0))
    run = six.play("next")
    assert run.code == 8, run.text
    verdict = six.verdict(2)
    assert (verdict["decision"], verdict["level"]) == ("ROLLED_BACK", "full")
    assert verdict["aggregate"]["change_pct"] < 0
    assert six.read(KERNEL) == kernel()


@pytest.mark.parametrize(
    "cost",
    [250 / 1.03, *(pytest.param(ms, marks=pytest.mark.long) for ms in (125.0, 300.0))],
    ids=["small", "large", "slower"],
)
def test_a_version_that_is_wrong_outside_the_level_is_not_kept(six: Project, cost: float) -> None:
    """Every round checks every case, whatever the others gain."""
    wrong = kernel(cost).replace("return FACTOR * x", "return (FACTOR + (ctx.rows == 16)) * x")
    six.write(KERNEL, wrong)
    run = six.round("next")
    assert run.code == 1, run.text
    verdict = six.verdict(2)
    assert (verdict["decision"], verdict["level"]) == ("REPAIR", "quick")
    assert [s["dims"]["rows"] for s in verdict["shapes"] if s["check"] == "FAIL"] == [16]
    assert six.read(KERNEL) == wrong


def test_the_manifests_quick_command_works_verbatim(six: Project, tmp_path: Path) -> None:
    command = shlex.split(manifest(six)["quick_command"])
    assert command == ["python", f"agent/workspace/{CAMPAIGN}/quick_test_bench.py"]
    rows = tmp_path / "rows.csv"
    before = six.contents()
    words = ("--summary-csv", str(rows), "--repeats", "5", "--iters-per-repeat", "7")
    run = six.run(sys.executable, *command[1:], *words)
    assert run.code == 0, run.text
    assert rows_of(rows) == list(QUICK)
    [first, *_] = json.loads(rows.with_name("rows.csv.evidence.json").read_text())
    assert len(first["evidence"]["forward_samples_ms"]) == 5
    assert first["evidence"]["calls_per_sample"] == 7
    assert six.contents() == before, "it judges and records nothing"


@pytest.mark.long
def test_a_paired_promotion_compares_all_cases_in_fresh_processes(tmp_path: Path) -> None:
    """The incumbent's trees are made once; a case outside the level regresses."""
    project = project_at(tmp_path / "project")
    names = [f"p{n}" for n in range(1, 7)]

    def write(cost: float, last: float, who: str) -> None:
        for name in names:
            ours = last if name == "p5" else cost
            project.write(f"kernels/{name}.py", paired_kernel(ours, who, name=name))

    write(OLD, OLD, "old")
    project.write("tests/test_plain.py", paired_cases(*((f"kernels.{n}", n) for n in names)))
    project.commit_all()
    sources = [word for name in names for word in ("--kernel", f"kernels/{name}.py")]
    words = ("--op", "p", *sources, "--backend", "TORCH", "--gpu", "cpu")
    assert project.kopt("init", CAMPAIGN, *words).code == 0
    variables = Gate(project).variables()
    run = project.round(1, **variables)
    assert run.code == 0, run.text
    assert manifest(project)["representative_shapes"] == [f"p{n} rows={n}" for n in (1, 4, 6)]

    write(242.1875, SLOWER, "new")
    run = project.round("next", **variables)
    assert run.code == 8, run.text
    verdict = project.verdict(2)
    assert (verdict["level"], verdict["compare"]) == ("full", "paired")
    assert [s["dims"]["rows"] for s in verdict["shapes"] if s["status"] == "regressed"] == [5]
    assert "rows=5" in verdict["reason"] and "decided by all 6 cases" in "\n".join(verdict["flags"])
    timeline = project.evidence(2)["session"]["timeline"]
    of_session = [span["phase"] for span in timeline if span["process"] == "controller"]
    assert [phase for phase in of_session if phase != "deciding"] == [
        *("configuring", "starting", "checking", "comparing", "checking", "comparing"),
    ]
    of_first = {span["phase"] for span in timeline if span["process"] == "replicate 1"}
    assert of_first == {"start", "load", "wait for the device", "time", "settle", "judge"}

    write(125.0, 250.0, "newer")
    run = project.round("next", **variables)
    assert run.code == 0, run.text
    assert project.verdict(3)["level"] == "full"
    run = project.round("final", **variables)
    assert run.code == 0, run.text
    assert "the rounds' gains multiply to +78.2 %" in run.out
