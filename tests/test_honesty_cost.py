"""What `benchmarks/honesty_cost.py` leaves out is there under the names that it knows."""

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
