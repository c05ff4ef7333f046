"""What the benchmark of honesty leaves out is there under the names that it knows."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from . import nursery
from .waiting import HANG

ROOT = Path(__file__).resolve().parents[1]
#: A process that decides has next to nothing loaded yet, one that runs cases all that it uses.
DECIDES, RUNS_CASES = "sys", "pytest_kopt.processes.served"


def runs(program: str, imported: str, directory: Path) -> None:
    """Run a program after an import, in a fork where that takes long."""
    script = directory / "program.py"
    script.write_text(f"import {imported}\n{program}\n")
    env = nursery.FRESH if imported == DECIDES else {}
    words = [sys.executable, str(script)]
    done = nursery.run(words, cwd=ROOT, env={**os.environ, **env}, timeout=HANG)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("imported", [DECIDES, RUNS_CASES])
def test_what_the_checks_are_left_out_by_finds_its_names(imported: str, tmp_path: Path) -> None:
    ablation = runpy.run_path(str(ROOT / "benchmarks" / "honesty_ablation.py"))
    runs(ablation["WITHOUT_ALL"], imported, tmp_path)


@pytest.mark.parametrize("imported", [DECIDES, RUNS_CASES])
def test_what_carries_a_rule_is_found_and_writes_down_that_it_ran(
    imported: str, tmp_path: Path
) -> None:
    """A part that is of no rule has none, and what one part calls is not counted twice."""
    ablation = runpy.run_path(str(ROOT / "benchmarks" / "honesty_ablation.py"))
    costs = tmp_path / "costs"
    values = f"costs, carriers = {str(costs)!r}, {ablation['CARRIERS']!r}"
    program = """
def slow():
    inside = inner[-1]
    timed("", lambda: list(range(10)))()
    assert inner[-1] > inside
    yield from (1, 2)


assert timed("8", slow)() == [1, 2]
assert timed("13", abs, "only this")(-1) == 1
"""
    runs(f"{values}\n{ablation['TIMED']}\n{program}", imported, tmp_path)
    rules = [line.split()[1] for line in costs.read_text().splitlines()]
    assert rules == ["7"] * (imported == RUNS_CASES) + ["8"]


def test_each_rule_of_the_page_has_what_carries_it() -> None:
    ablation = runpy.run_path(str(ROOT / "benchmarks" / "honesty_ablation.py"))
    page = (ROOT / "docs" / "honesty.md").read_text()
    listed = dict(re.findall(r"^\| (\d+) \| `([\w.]+)` \|$", page, re.M))
    assert len(listed) == 13
    deciding, running = ablation["CARRIERS"]
    assert listed.keys() - {"7"} <= deciding.keys() | running.keys()


@pytest.mark.parametrize(
    ("imported", "left_out"),
    [
        (DECIDES, "trials.rounds.candidate audit"),
        (RUNS_CASES, "cases.running.check by_hand"),
    ],
)
def test_what_an_ablation_leaves_out_finds_nothing(
    imported: str, left_out: str, tmp_path: Path
) -> None:
    """Where it was imported by name as well."""
    ablation = runpy.run_path(str(ROOT / "benchmarks" / "honesty_ablation.py"))
    functions = [name for group in ablation["GROUPS"].values() for name in group.split()]
    values = f"functions, deciding = {functions!r}, {ablation['DECIDING']!r}"
    module, name = left_out.split()
    program = f"import pytest_kopt.{module} as module\n{values}\n{ablation['PLUGIN']}\n"
    program += f"assert module.{name} is finds_nothing, module.{name}"
    runs(program, imported, tmp_path)
