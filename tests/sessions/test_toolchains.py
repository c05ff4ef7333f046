"""The same tree under two interpreters: virtual environments that differ in one package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .paired import OLD, PLAIN, PLAIN_CASES, Gate, kernel, project_at

COST = "op.COST_MS"


def environment(folder: Path, cost: float | None, version: str = "") -> Path:
    """Make a virtual environment with this one's packages and an op of this cost in ms."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    ours = [entry for entry in sys.path if "site-packages" in entry]
    here = str(Path(__file__).parents[2])
    (packages / "shared.pth").write_text("\n".join([*ours, here]) + "\n")
    if cost is not None:
        (packages / "op.py").write_text(f"COST_MS = {cost}\n")
    if version:
        told = packages / f"pytest_kopt-{version}.dist-info"
        told.mkdir()
        (told / "METADATA").write_text(f"Name: pytest-kopt\nVersion: {version}\n")
    return folder / "bin/python"


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    project = project_at(tmp_path / "project")
    project.write(PLAIN, kernel(COST, imports="import op"))
    project.write("tests/test_plain.py", PLAIN_CASES)
    return Gate(project)


def compared(gate: Gate, python: Path, other: Path) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run the cases under one interpreter against another."""
    words = (f"--kopt-base-python={other}", "--kopt-verdict", str(gate.verdict))
    done = subprocess.run(
        [python, "-m", "pytest", *words],
        cwd=gate.project.root,
        env={**gate.project.environment(), **gate.variables()},
        capture_output=True,
        text=True,
        check=False,
    )
    verdict = json.loads(gate.verdict.read_text()) if gate.verdict.exists() else None
    return done, verdict


@pytest.mark.long
@pytest.mark.parametrize(
    ("now", "code", "change"),
    [(OLD, 0, 0.0), (1.125 * OLD, 8, 100 * (1 / 1.125 - 1)), (0.75 * OLD, 0, 100 * (4 / 3 - 1))],
    ids=["identical", "slower", "faster"],
)
def test_an_environment_against_another(
    gate: Gate, tmp_path: Path, now: float, code: int, change: float
) -> None:
    before, after = environment(tmp_path / "a", OLD), environment(tmp_path / "b", now)
    done, verdict = compared(gate, after, before)
    assert done.returncode == code, done.stdout + done.stderr
    assert verdict["shapes"][0]["change_pct"] == pytest.approx(change)
    assert verdict["shapes"][0]["same"] is None, "the clock was asked"
    flags = " ".join(verdict["flags"])
    assert f"the base is {before}" in flags and "two processes" in flags and "torch" in flags
    assert {who for who, _ in gate.traced()} == {"old"}


BROKEN = "raise ImportError('half of it is missing')\n"


@pytest.mark.parametrize("kind", ["bare", "missing", "another major version", "broken"])
def test_interpreters_that_cannot_be_used(gate: Gate, tmp_path: Path, kind: str) -> None:
    """One message, and nothing runs."""
    if kind == "another major version":
        python, says = environment(tmp_path / "b", OLD, "7.0.0"), "pytest-kopt 7.0.0"
    elif kind == "broken":
        python, says = environment(tmp_path / "b", OLD), "half of it is missing"
        packages = next((tmp_path / "b").glob("lib/python*/site-packages"))
        (packages / "torch.py").write_text(BROKEN)
    else:
        python, says = tmp_path / "b/bin/python", "No such file"
        if kind == "bare":
            subprocess.run(
                [sys.executable, "-m", "venv", "--without-pip", tmp_path / "b"], check=True
            )
            says = "No module named"
    run = gate.project.pytest(f"--kopt-base-python={python}", **gate.variables())
    assert run.code == 4, run.text
    assert says in run.refusal and "--kopt-base-python" in run.refusal
    assert gate.traced() == []
