"""Sessions at once on one host: who timed on which GPU when, and whether all were judged.

python benchmarks/gpu_turns.py OUT [--sessions 2] [--workers 2] [--busy 3] [--later 8] [--dry]

So many sessions, each with four equal cases a worker, each case checked, timed and compared with
itself in four fresh processes (`--kopt-calibrate 4`). Without `--workers` all of them run on the
first GPU and take turns; with it each starts that many workers and all GPUs are visible to all.
`--later`: seconds from the start of one session to the next. `--busy`: another program keeps this
GPU busy meanwhile. A minute and a half for three sessions. --dry: small sizes on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_gate import occupied
from gpu_report import Report, start

CASES, PROCESSES = 4, 4
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


def project(root: Path, cases: int, dry: bool) -> Path:
    size = 64 if dry else 4096
    root.mkdir()
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (root / "ops.py").write_text("def product(a, b):\n    return a @ b\n")
    (root / "test_ops.py").write_text(TESTS.format(cases=cases, size=size))
    return root


def arguments(out: Path, name: str) -> tuple[str, ...]:
    return (
        *("--kopt-calibrate", str(PROCESSES), "--kopt-verdict", str(out / f"{name}.noise.json")),
        *("--summary-csv", str(out / f"{name}.csv"), "--kopt-gpu-wait", "2"),
    )


def intervals(out: Path, name: str) -> list[dict[str, Any]]:
    """Return who timed what when, alone on which device."""
    rows = json.loads((out / f"{name}.csv.evidence.json").read_text())
    noise = json.loads((out / f"{name}.noise.json").read_text())
    timed = [*(row["evidence"] for row in rows), *noise["measured"]]
    return [{"session": name, "device": e["device"], "timed": e["timed"]} for e in timed]


def overlaps(timed: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Return pairs of measurements that ran at the same moment on the same device."""
    bad = []
    for device in {entry["device"] for entry in timed}:
        here = sorted((e for e in timed if e["device"] == device), key=lambda e: e["timed"])
        bad += [(a, b) for a, b in pairwise(here) if b["timed"][0] < a["timed"][1]]
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--busy", type=int)
    parser.add_argument("--later", type=float, default=0.0)
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    report = Report(asked.out, "gpu_turns")
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    words = ("-n", str(asked.workers)) if asked.workers else ()
    visible = {} if asked.dry or words else {"CUDA_VISIBLE_DEVICES": gpus[0]}
    names = [f"session {number}" for number in range(1, asked.sessions + 1)]
    busy = {} if asked.busy is None else {"CUDA_VISIBLE_DEVICES": str(asked.busy)}
    with tempfile.TemporaryDirectory() as directory, occupied(busy) if busy else nullcontext():
        out = Path(directory)
        cases = CASES * (asked.workers or 1)
        root = project(out / "project", cases, asked.dry)
        running = []
        for name in names:
            time.sleep(asked.later if running else 0.0)
            running.append(start(root, *arguments(out, name), *words, **visible))
        for process in running:
            text, _ = process.communicate()
            if process.returncode:
                sys.exit(f"pytest ended with {process.returncode}\n{text}")
        timed = [entry for name in names for entry in intervals(out, name)]
    timed.sort(key=lambda entry: entry["timed"])
    report.add("measured", timed)
    row = {
        "sessions": len(names),
        "workers each": asked.workers or 1,
        "kept busy": report.found["machine"]["gpus"][asked.busy] if busy else "",
        "cases passed": cases * len(names),
        "measurements": len(timed),
        "changes of turn": sum(a["session"] != b["session"] for a, b in pairwise(timed)),
        "at the same moment": len(overlaps(timed)),
    }
    report.add("turns", row)
    report.table("Sessions at once", [row])
    by_device = Counter((entry["session"], entry["device"]) for entry in timed)
    devices = [
        {"session": session, "device": device, "measurements": number}
        for (session, device), number in sorted(by_device.items())
    ]
    report.add("devices", devices)
    report.table("Where each session timed", devices)


if __name__ == "__main__":
    main()
