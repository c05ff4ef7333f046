"""What the benchmarks of honesty leave out is there under the names that they know."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("imported", ["sys", "pytest_kopt.processes.served"])
def test_what_the_checks_are_left_out_by_finds_its_names(
    imported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that decides, and in one that runs cases."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    text = runpy.run_path(str(ROOT / "benchmarks" / "honesty_cost.py"))["UNCHECKED"]
    done = subprocess.run(
        [sys.executable, "-c", f"import {imported}\n{text}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("imported", "left_out"),
    [
        ("sys", "trials.rounds.candidate audit"),
        ("pytest_kopt.processes.served", "cases.running.check by_hand"),
    ],
)
def test_what_an_ablation_leaves_out_finds_nothing(imported: str, left_out: str) -> None:
    """Where it was imported by name as well."""
    ablation = runpy.run_path(str(ROOT / "benchmarks" / "honesty_ablation.py"))
    functions = [name for group in ablation["GROUPS"].values() for name in group.split()]
    plugin = ablation["PLUGIN"].format(functions=functions, deciding=ablation["DECIDING"])
    module, name = left_out.split()
    program = f"import {imported}\nimport pytest_kopt.{module} as module\n{plugin}\n"
    program += f"assert module.{name} is finds_nothing, module.{name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
