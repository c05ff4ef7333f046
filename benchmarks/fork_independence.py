"""Is a fork as independent an observation as a fresh interpreter, and what does each cost?

python benchmarks/fork_independence.py OUT [processes=30] [project=DIR] [tests=PATH]

Compares the kernels of `benchmarks/gpu_project` with themselves (`pytest --kopt-calibrate`), once
in forks of the warm parent and once in interpreters of their own.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_report import GPU_PROJECT, Report


def calibrate(kind: str, project: Path, tests: str, processes: int) -> dict[str, Any]:
    """Return what a session says of its processes, with its wall time."""
    with tempfile.TemporaryDirectory() as name:
        found = Path(name) / "noise.json"
        words = ["-o", f"kopt_processes={kind}", "--kopt-calibrate", str(processes)]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, "--kopt-verdict", str(found), tests],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not found.exists():
            sys.exit(f"the session ended with {done.returncode}\n{done.stdout}")
        return {"wall_s": time.perf_counter() - start, **json.loads(found.read_text())}


def geomeans(found: dict[str, Any], arm: str) -> list[float]:
    """Return each process's change of the geometric mean, in percent."""
    cases = [series[arm] for series in found["log_ratios_by_way"]["step"].values()]
    return [math.expm1(statistics.fmean(each)) * 100 for each in zip(*cases, strict=True)]


def main() -> None:
    wishes = dict(word.split("=") for word in sys.argv[2:])
    processes = int(wishes.get("processes", 30))
    project = Path(wishes.get("project", GPU_PROJECT))
    os.environ.pop("PYTEST_ADDOPTS", None)
    report = Report(Path(sys.argv[1]), "fork_independence")
    rows = []
    for kind in ("forked", "fresh"):
        found = calibrate(kind, project, wishes.get("tests", "tests/test_ops.py"), processes)
        report.add(kind, found)
        for arm in ("main", "placebo"):
            changes = geomeans(found, arm)
            rows.append(
                {
                    "processes": f"{len(changes)} {kind}",
                    "arm": "second version" if arm == "main" else "placebo",
                    "mean %": statistics.fmean(changes),
                    "sd %": statistics.stdev(changes),
                    "max %": max(map(abs, changes)),
                    "session s": found["wall_s"],
                }
            )
        report.table("Identical code, change of the geometric mean a process", rows)


if __name__ == "__main__":
    main()
