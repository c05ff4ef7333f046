"""A round in CI: comment, summary, annotations, JUnit and benchmark files, also under xdist."""

from __future__ import annotations

import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.figures import changed

from .project import CAMPAIGN, KERNEL, Project
from .sources import doubled_kernel as kernel


def properties(element: ElementTree.Element) -> dict[str, str]:
    return {found.attrib["name"]: found.attrib["value"] for found in element.iter("property")}


def test_a_rolled_back_round_tells_everyone(started: Project, mode: tuple[str, ...]) -> None:
    """One slower round, read by every reader there is."""
    pytest.importorskip("pytest_benchmark")
    project = started
    project.write(KERNEL, kernel({2: 500.0, 4: 240.0}))
    run = project.pytest(
        *("--kopt-campaign", CAMPAIGN, "--kopt-round", "2", "--kopt-comment", "out/comment.md"),
        *("--junit-xml", "out/junit.xml", "--summary-csv", "out/rows.csv", *mode),
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(project.root / "summary.md"),
    )
    assert run.code == ExitCode.ROLLED_BACK, run.text
    verdict = project.verdict(2)
    change = changed(verdict["aggregate"]["change_pct"])

    text = project.read("out/comment.md")
    assert "rolled back" in text and change in text
    assert text in project.read("summary.md")
    assert change in run.out
    assert "\n::error file=tests/test_doubled.py,title=kopt slower::" in run.out

    suite = ElementTree.parse(project.root / "out/junit.xml").getroot()
    found = suite.find("testsuite")
    assert found is not None
    own = found.find("properties")
    assert own is not None
    assert properties(own)["kopt.decision"] == "ROLLED_BACK"
    cases = {case.attrib["name"]: properties(case) for case in found.iter("testcase")}
    assert cases["test_doubled[2]"]["kopt.check"] == "PASS"
    assert float(cases["test_doubled[2]"]["kopt.Forward GB/s"]) == 4.0
    assert "kopt" not in cases["test_doubled[2]"], "the wire format stays inside"

    rows = project.root / "out/rows.csv.benchmark.json"
    again = shutil.copy(rows, project.root / "out/again.json")
    words = (sys.executable, "-m", "pytest_benchmark", "compare", str(rows), str(again))
    compared = project.run(*words)
    assert compared.code == 0, compared.text
    for name in ("test_doubled[2] forward", "test_doubled[4] backward"):
        assert compared.text.count(name) == 2, compared.text


def test_what_cannot_be_written_is_told_and_changes_nothing(started: Project) -> None:
    started.write("blocked", "a file, not a directory\n")
    started.write(KERNEL, started.read(KERNEL) + "SAME = True\n")
    words = ("--kopt-comment", "blocked/comment.md", "-q")
    run = started.round(2, *words, GITHUB_STEP_SUMMARY="/nowhere/x")
    assert "--kopt-comment could not be written" in run.out
    assert "GITHUB_STEP_SUMMARY could not be written" in run.out
    assert started.verdict(2)["decision"] in ("ROLLED_BACK", "INCONCLUSIVE")
    assert run.code in (8, 9)
    short = (
        r"^doubled +check +fwd ms +bwd ms +change$\n^[- ]+$\n^rows=2 columns=8 +PASS +250.0 +1000 "
    )
    assert re.search(short, run.out, re.MULTILINE), run.out
    assert "roofline: " not in run.out, "quiet: a short table"
