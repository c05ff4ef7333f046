"""Keys of the manifest that select cases, are run or are shown, in sessions."""

from __future__ import annotations

import csv
import json

import pytest

from .project import CAMPAIGN, CASES, KERNEL, SERIAL, TWO_WORKERS, Project
from .sources import doubled_kernel

TWO, FOUR = "doubled rows=2 columns=8", "doubled rows=4 columns=8"
BENCH = "print('8.5 TFLOPS')\n"


def labels(project: Project, number: int) -> list[str]:
    path = project.campaign / f"rounds/round-{number}/artifacts/benchmark.csv"
    return [row["label"] for row in csv.DictReader(path.open())]


def test_the_baseline_selects_shows_and_runs_what_the_manifest_says(fresh: Project) -> None:
    fresh.write("bench.py", BENCH)
    fresh.write("skills/doubled/SKILL.md", "Kernels lie in kernels/.\n")
    fresh.edit_manifest(
        target_shapes=[FOUR],
        core_shapes=[FOUR],
        benchmark_command="python bench.py",
        project_skill="skills/doubled/SKILL.md",
    )
    run = fresh.round(1)
    assert run.code == 0, run.text
    assert "project skill: skills/doubled/SKILL.md" in run.out
    assert labels(fresh, 1) == [FOUR]
    log = fresh.campaign / "rounds/round-1/artifacts/benchmark_command.log"
    assert log.read_text() == "8.5 TFLOPS\n"
    text = fresh.kopt("advise", CAMPAIGN).out.partition("read, in this order:\n")[2]
    assert text.startswith("  skills/doubled/SKILL.md  (the project's own skill")
    assert json.loads(fresh.kopt("advise", CAMPAIGN, "--json").out)["project_skill"]

    # What target_shapes leave out is no part of the campaign, and the benchmark is not run again.
    fresh.write("bench.py", "raise SystemExit(3)\n")
    fresh.write(KERNEL, doubled_kernel({2: 1000.0, 4: 125.0}))
    run = fresh.round(2)
    assert run.code == 0, run.text
    assert labels(fresh, 2) == [FOUR]


def test_the_baseline_has_the_prerequisites_of_the_manifest_as_it_is_now(fresh: Project) -> None:
    """A person edits it between `kopt init` and round 1."""
    fresh.edit_manifest(project_skill="skills/SKILL.md", benchmark_command="no-such-program")
    run = fresh.ask(1)
    assert run.code == 4, run.text
    assert "project_skill: there is no file 'skills/SKILL.md'" in run.refusal
    assert "benchmark_command: the program 'no-such-program' is not on PATH" in run.refusal
    assert not fresh.was_measured


def test_a_benchmark_that_fails_keeps_the_baseline_open(fresh: Project) -> None:
    fresh.write("bench.py", "print('no device'); raise SystemExit(3)\n")
    fresh.edit_manifest(benchmark_command="python bench.py")
    run = fresh.round(1)
    assert run.code == 11, run.text
    assert not fresh.was_measured
    assert "`python bench.py` ended with status 3" in fresh.verdict(1)["reason"]
    assert not (fresh.campaign / "rounds/round-1/artifacts/benchmark_command.log").exists()


@pytest.mark.parametrize(
    "words", [SERIAL, pytest.param(TWO_WORKERS, marks=pytest.mark.long)], ids=["serial", "n2"]
)
def test_unknown_target_shapes_list_every_label(fresh: Project, words: tuple[str, ...]) -> None:
    """Also where nothing is left to measure."""
    fresh.edit_manifest(target_shapes=["doubled rows=3 columns=8"])
    before = fresh.contents()
    run = fresh.round(1, *words)
    assert run.code == 4, run.text
    assert (
        f"target_shapes: 'doubled rows=3 columns=8' names no case (allowed: {TWO}, {FOUR})"
        in run.refusal
    )
    assert fresh.contents() == before
    assert not fresh.was_measured


def test_a_node_id_selects_as_well(fresh: Project) -> None:
    fresh.edit_manifest(target_shapes=[f"{CASES}::test_doubled[2]"])
    assert fresh.round(1).code == 0
    assert labels(fresh, 1) == [TWO]
