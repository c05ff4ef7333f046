"""`--kopt-base-python` on virtual environments that are alike, and on one that was made slower.

python benchmarks/toolchains_cpu.py OUT [identical=20] [slower=5,20] [times=3]

Both environments hold this one's packages and a package `shim`, whose product multiplies two
matrices 400 times a call; in a slower one so many percent more often. `identical` sessions compare
two environments that are alike, `times` ones each slower one with the first.
Writes OUT/toolchains.json after every session.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_report import ROOT, Report

PRODUCTS = 400
SHIM = """\
import torch


def product(a, b):
    for _ in range({products}):
        out = torch.matmul(a, b)
    return out
"""
CASES = """\
import pytest
import torch
from shim import product


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("n", [48, 96])
def test_product(kopt, n):
    kopt(
        lambda a, b: product(a, b),
        inputs=lambda: (torch.randn(n, n), torch.randn(n, n)),
        reference=lambda a, b: a.double() @ b.double(),
        dims={"n": n},
    )
"""
SETTINGS = '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n'


def environment(folder: Path, more: float) -> Path:
    """Make a virtual environment whose product takes so many percent more; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    ours = [entry for entry in sys.path if "site-packages" in entry]
    (packages / "shared.pth").write_text("\n".join([*ours, str(ROOT)]) + "\n")
    (packages / "shim.py").write_text(SHIM.format(products=round(PRODUCTS * (1 + more / 100))))
    return folder / "bin/python"


def compared(project: Path, python: Path, other: Path) -> dict[str, Any]:
    """Run the cases under one interpreter against another; return what the verdict says."""
    told = project.parent / "verdict.json"
    told.unlink(missing_ok=True)
    began = time.perf_counter()
    words = ("-p", "no:cacheprovider", f"--kopt-base-python={other}", f"--kopt-verdict={told}")
    done = subprocess.run(
        [python, "-m", "pytest", *words], cwd=project, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if not told.exists():
        sys.exit(done.stdout + done.stderr)
    verdict = json.loads(told.read_text())
    total = verdict["aggregate"] or {}
    return {
        "outcome": verdict["outcome"],
        "exit": done.returncode,
        "change %": total.get("change_pct"),
        "low %": total.get("low_pct"),
        "high %": total.get("high_pct"),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    wishes = dict(word.split("=") for word in sys.argv[2:])
    sizes = [float(size) for size in wishes.get("slower", "5,20").split(",")]
    plan = sizes * int(wishes.get("times", 3)) + [0.0] * int(wishes.get("identical", 20))
    report, rows = Report(Path(sys.argv[1]), "toolchains"), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as name:
        project = Path(name) / "project"
        (project / "tests").mkdir(parents=True)
        (project / "tests/test_product.py").write_text(CASES)
        (project / "pyproject.toml").write_text(SETTINGS)
        base = environment(Path(name) / "base", 0.0)
        others = {more: environment(Path(name) / f"more-{more:g}", more) for more in {*plan}}
        for more in plan:
            rows.append({"more work %": more, **compared(project, others[more], base)})
            report.add("sessions", rows)
            print(rows[-1], flush=True)
    outcomes = Counter((row["more work %"], row["outcome"]) for row in rows)
    report.table(
        "Outcomes",
        [{"more work %": k, "outcome": o, "sessions": n} for (k, o), n in outcomes.items()],
    )


if __name__ == "__main__":
    main()
