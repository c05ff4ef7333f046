"""Sessions on the same code: nothing runs and nothing is timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .paired import OLD, PLAIN, PLAIN_CASES, SLOWER, Gate, cases, kernel, project_at
from .project import KERNEL, TWO_WORKERS, Project


@pytest.mark.parametrize("words", [(), TWO_WORKERS], ids=["serial", "n2"])
def test_a_gate_of_the_same_code_ends_at_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    gate = Gate(project_at(tmp_path / "project"))
    project = gate.project
    tidied = kernel().replace('"""Doubles a tensor."""', "# What it doubles.")
    project.write(PLAIN, tidied)
    project.write("tests/test_plain.py", PLAIN_CASES + "\n# The end.\n")
    done = gate(*words)
    assert done.run.code == 0, done.run.text
    assert done.trace == [], "no kernel ran"
    verdict = done.judged
    assert (verdict["decision"], verdict["compare"]) == ("ACCEPTED", "none")
    assert "the same code as --kopt-base main" in verdict["reason"]
    assert "collected" not in done.run.out, "nothing was collected, so that nothing imports torch"


def test_only_the_cases_whose_code_differs_are_compared(tmp_path: Path) -> None:
    """A comment in one kernel's file, another cost in the other's."""
    project = project_at(tmp_path / "project")
    project.write("kernels/other.py", kernel(OLD, "other", name="other"))
    project.write(
        "tests/test_both.py", cases(("kernels.plain", "plain"), ("kernels.other", "other"))
    )
    project.git("rm", "--quiet", "tests/test_plain.py")
    project.commit_all("Two kernels")
    project.write(PLAIN, kernel() + "# no other code\n")
    project.write("kernels/other.py", kernel(SLOWER, "other, new", name="other"))
    done = Gate(project)("--kopt-comment", "../comment.md")
    assert done.run.code == 8, done.run.text
    shapes = done.shapes
    assert (shapes[1]["same"], shapes[2]["same"]) == ("source", None)
    assert shapes[1]["change_pct"] is None
    assert shapes[2]["change_pct"] == pytest.approx(100 * (OLD / SLOWER - 1))
    assert done.judged["aggregate"]["change_pct"] == shapes[2]["change_pct"]
    comment = (tmp_path / "comment.md").read_text()
    assert "1 of 2 cases run the same code" in comment


def test_a_round_of_the_same_code_is_refused(started: Project) -> None:
    """Nothing is consumed: the next edit is still round 2."""
    started.write(KERNEL, "# A comment.\n" + started.read(KERNEL))
    before = started.contents()
    run = started.ask(2)
    assert run.code == 4 and "the same code as round 1: nothing to measure" in run.refusal
    assert not started.was_measured and started.contents() == before
    status = json.loads(started.kopt("status", "--json").out)
    assert status["next_round"] == 2
    assert "the same code as round 1" in status["nothing_to_measure"]


def test_a_neutral_refactoring_is_kept_at_once(started: Project) -> None:
    text = "# A comment.\n" + started.read(KERNEL)
    started.write(KERNEL, text)
    notes = started.notes(extra_benefit="easier to read")
    run = started.round(2, "--kopt-notes", notes)
    assert run.code == 0, run.text
    verdict = started.verdict(2)
    assert (verdict["decision"], verdict["compare"]) == ("ACCEPTED_WITH_NOTE", "none")
    assert "easier to read" in verdict["reason"] and not started.was_measured
    assert started.git("show", f"HEAD:{KERNEL}") == text == started.read(KERNEL)
