"""One session on several GPUs against one on one.

python benchmarks/gpu_scaling.py OUT [--dry]      (two to four minutes on four GPUs)

Sixteen equal cases, each checked, timed and compared with itself in four fresh processes
(`--kopt-calibrate 4`), serially and under `-n 4`, or as many workers as there are GPUs, if fewer.
--dry: small sizes and two workers on the CPU, where everything takes turns and nothing scales.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_report import Report, Run, run

WORKERS, CASES = 4, 16
PROCESSES = 4

TESTS = """\
import pytest
import torch
from ops import product


@pytest.mark.kopt(schema="gemm")
@pytest.mark.parametrize("number", range({cases}))
def test_product(kopt, number):
    def draw():
        made = torch.randn({size}, {size}, device=kopt.device, dtype=torch.bfloat16)
        return made.requires_grad_()

    kopt(
        product,
        inputs=lambda: (draw(), draw()),
        reference=lambda a, b: a.double() @ b.double(),
        dims={{"B": number + 1, "M": {size}, "N": {size}, "K": {size}}},
        flops=2 * {size}**3,
        backward=True,
    )
"""
# From the first test that starts to the end of all measuring: what start-up is not part of.
STOPWATCH = """\
import json
import os
import time

_began = []


def pytest_runtest_logstart():
    _began.append(time.time())


def pytest_sessionfinish(session):
    if "STOPWATCH" in os.environ and not hasattr(session.config, "workerinput") and _began:
        if not session.config.pluginmanager.has_plugin("kopt-serve"):
            with open(os.environ["STOPWATCH"], "w") as file:
                json.dump([_began[0], time.time()], file)
"""


def project(root: Path, dry: bool) -> Path:
    size = 64 if dry else 8192
    root.mkdir()
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (root / "ops.py").write_text("def product(a, b):\n    return a @ b\n")
    (root / "conftest.py").write_text(STOPWATCH)
    (root / "test_ops.py").write_text(TESTS.format(cases=4 if dry else CASES, size=size))
    return root


def arguments(root: Path, name: str) -> tuple[str, ...]:
    out = root.parent
    return (
        *("--kopt-calibrate", str(PROCESSES), "--kopt-verdict", str(out / f"{name}.noise.json")),
        *("--summary-csv", str(out / f"{name}.csv"), "--kopt-gpu-wait", "2"),
    )


def intervals(root: Path, name: str) -> list[dict[str, Any]]:
    """Return who timed what when, alone on which device."""
    out = root.parent
    rows = json.loads((out / f"{name}.csv.evidence.json").read_text())
    found = [
        {"session": name, "device": r["evidence"]["device"], "timed": r["evidence"]["timed"]}
        for r in rows
    ]
    noise = json.loads((out / f"{name}.noise.json").read_text())
    keys = ("device", "timed")
    return found + [
        {"session": name, **{key: entry[key] for key in keys}} for entry in noise["measured"]
    ]


def overlaps(found: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Return pairs of measurements that ran at the same moment on the same device."""
    bad = []
    for device in {entry["device"] for entry in found}:
        here = sorted((e for e in found if e["device"] == device), key=lambda e: e["timed"])
        bad += [(a, b) for a, b in pairwise(here) if b["timed"][0] < a["timed"][1]]
    return bad


def measured(root: Path, name: str, *words: str, **variables: str) -> dict[str, Any]:
    clock = root.parent / f"{name}.clock.json"
    done = run(root, *arguments(root, name), *words, STOPWATCH=str(clock), **variables)
    check(done)
    began, ended = json.loads(clock.read_text())
    found = intervals(root, name)
    order = sorted(found, key=lambda entry: entry["timed"])
    return {
        "session": name,
        "wall_s": done.seconds,
        "after_startup_s": ended - began,
        "measurements": len(found),
        "devices": dict(Counter(entry["device"] for entry in found)),
        "overlaps": len(overlaps(found)),
        # Where the rest of the time goes: [device, from, to] in seconds after the first test.
        "alone": [[e["device"], *(round(at - began, 2) for at in e["timed"])] for e in order],
    }


def check(done: Run) -> None:
    if done.code:
        sys.exit(f"pytest ended with {done.code}\n{done.text}")


def main() -> None:
    dry = "--dry" in sys.argv
    report = Report(Path(sys.argv[1]), "gpu_scaling")
    workers = 2 if dry else min(WORKERS, len(report.found["machine"]["gpus"]))
    with tempfile.TemporaryDirectory() as directory:
        root = project(Path(directory) / "project", dry)
        rows = [measured(root, "serial")]
        report.add("sessions", rows)
        rows.append(measured(root, f"n{workers}", "-n", str(workers)))
        report.add("sessions", rows)
        share = rows[1]["after_startup_s"] / rows[0]["after_startup_s"]
        report.add("share_of_serial", share)
        shown = [{key: row[key] for key in row if key != "alone"} for row in rows]
        report.table("Serial and distributed", shown)
        print(f"{share:.3f} of the serial time after start-up (asked: 0.30 on four)", flush=True)


if __name__ == "__main__":
    main()
