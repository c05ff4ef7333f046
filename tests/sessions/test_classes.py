"""Config classes in real sessions: one row is one class, and the kernel's cost goes by rows."""

from __future__ import annotations

import re

import pytest

from .project import KERNEL, SERIAL, TWO_WORKERS, Project
from .sources import doubled_kernel as kernel
from .story import sections

long = pytest.mark.long
BY_ROWS = {"classes": ["rows"]}
#: Milliseconds by rows; 250 is the baseline's.
DIVERGED, DISPATCHED = {2: 187.5, 4: 281.25}, {2: 187.5, 4: 250.0}
PAIRED = ("--kopt-compare", "paired")


def started(project: Project, *words: str) -> Project:
    """The project after a baseline with classes."""
    project.edit_manifest(**BY_ROWS)
    run = project.round(1, *words)
    assert run.code == 0, run.text
    assert re.search(r"^class rows=4: [\d.]+$", run.out, re.MULTILINE), "S4: per class as well"
    return project


def test_a_split_is_rolled_back_and_its_dispatch_accepted(fresh: Project) -> None:
    project = started(fresh)
    refuses_an_unknown_class(project)

    project.write(KERNEL, kernel(DIVERGED))
    run = project.play(2, "--kopt-notes", project.notes(hypothesis="wider tiles for all"))
    assert run.code == 8, run.text
    assert "give 'rows=2' the new path, leave 'rows=4' on the old one" in run.out
    assert re.search(r"^class rows=2: .* -> .*  \+33\.3 %$", run.out, re.MULTILINE)
    assert project.read(KERNEL) == kernel(), "rolled back"
    verdict = project.verdict(2)
    assert (verdict["decision"], verdict["target_class"]) == ("SPLIT", None)
    assert verdict["aggregate"]["change_pct"] > 5, "the whole would have been better"
    assert [(c["name"], c["dims"], c["cases"], c["status"]) for c in verdict["classes"]] == [
        ("rows=2", {"rows": 2}, 1, "improved"),
        ("rows=4", {"rows": 4}, 1, "regressed"),
    ]
    found = sections((project.campaign / "rounds/round-2/summary.md").read_text())
    assert "- Target: all cases" in found["Results"]
    assert re.search(r"\| rows=4 +\| 1 .*-11\.1 %.*regressed", found["Results"])
    assert "specialise and dispatch" in found["Decision"]

    project.write(KERNEL, kernel(DISPATCHED))
    run = project.play(3, "--kopt-notes", project.notes(target_class="rows=2"))
    assert run.code == 0, run.text
    assert re.search(r"^class rows=2 \(target\): ", run.out, re.MULTILINE)
    verdict = project.verdict(3)
    assert (verdict["decision"], verdict["target_class"]) == ("ACCEPTED", "rows=2")
    assert project.git("show", f"HEAD:{KERNEL}") == kernel(DISPATCHED)
    found = sections((project.campaign / "rounds/round-3/summary.md").read_text())
    assert "- Target: rows=2" in found["Results"]
    refuses_another_target_afterwards(project)


def refuses_an_unknown_class(project: Project) -> None:
    project.write(KERNEL, kernel(DISPATCHED))
    notes = project.notes(target_class="rows=3")
    before = project.contents()
    run = project.play(2, "--kopt-notes", notes)
    assert run.code == 4, run.text
    for part in ("'rows=3' is no class", "target_class", "rows=2, rows=4"):
        assert part in run.refusal
    assert project.contents() == before


def refuses_another_target_afterwards(project: Project) -> None:
    notes = project.notes(target_class="rows=4")
    before = project.contents()
    run = project.kopt("note", project.campaign.name, "3", notes)
    assert run.code == 4 and "round 3 is decided; its target was rows=2" in run.refusal
    assert project.contents() == before


@long
def test_paired_a_class_moves_alone_or_at_anothers_cost(fresh: Project) -> None:
    project = started(fresh, *PAIRED)
    project.write(KERNEL, kernel(DIVERGED))
    run = project.round(2, *PAIRED)
    assert run.code == 8, run.text
    verdict = project.verdict(2)
    assert (verdict["decision"], verdict["compare"]) == ("SPLIT", "paired")
    assert "give 'rows=2' the new path" in verdict["next_step"]

    project.write(KERNEL, kernel(DISPATCHED))
    run = project.round(3, *PAIRED, "--kopt-notes", project.notes(target_class="rows=2"))
    assert run.code == 0, run.text
    faster, same = project.verdict(3)["classes"]
    assert faster["low_pct"] < faster["change_pct"] < faster["high_pct"]
    assert faster["change_pct"] == pytest.approx(100 / 3) and same["change_pct"] == pytest.approx(0)
    assert faster["candidate"] / faster["incumbent"] == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    "words", [SERIAL, pytest.param(TWO_WORKERS, marks=pytest.mark.long)], ids=["serial", "n2"]
)
def test_a_column_that_is_no_dim_is_refused_at_the_baseline(
    fresh: Project, words: tuple[str, ...]
) -> None:
    fresh.edit_manifest(classes=["rows", "num_kv_heads"])
    before = fresh.contents()
    run = fresh.round(1, *words)
    assert run.code == 4, run.text
    for part in ("'num_kv_heads' is no dim", "classes", "rows, columns"):
        assert part in run.refusal
    assert not fresh.was_measured and fresh.contents() == before
