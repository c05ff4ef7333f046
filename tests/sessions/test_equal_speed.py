"""A paired round of an equally fast kernel: kept where its notes state a benefit."""

from __future__ import annotations

from pathlib import Path

import pytest

from .paired import OLD, PLAIN, Gate, kernel, project_at
from .project import CAMPAIGN


@pytest.mark.long
def test_an_equal_kernel_is_kept_for_a_stated_benefit(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    words = ("--op", "plain", "--kernel", PLAIN, "--backend", "TORCH", "--gpu", "cpu")
    assert project.kopt("init", CAMPAIGN, *words).code == 0
    variables = Gate(project).variables()
    assert project.round(1, **variables).code == 0

    equal = kernel(OLD, "tidier")
    project.write(PLAIN, equal)
    more = project.notes(extra_benefit="half the memory")
    run = project.round(2, "--kopt-notes", more, **variables)
    assert run.code == 9, run.text
    assert project.verdict(2)["decision"] == "INCONCLUSIVE"
    assert "a call takes as much or more" in project.verdict(2)["reason"]

    project.write(PLAIN, equal)
    notes = project.notes(extra_benefit="fewer lines")
    run = project.round(3, "--kopt-notes", notes, **variables)
    assert run.code == 0, run.text
    verdict = project.verdict(3)
    assert (verdict["decision"], verdict["compare"]) == ("ACCEPTED_WITH_NOTE", "paired")
    assert "equal within 2 %: +0.00 % [+0.00, +0.00]" in verdict["reason"]
    assert "extra benefit (stated, not measured): fewer lines" in verdict["reason"]
    assert project.read(PLAIN) == equal
