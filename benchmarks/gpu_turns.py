"""Sessions that share a GPU: who timed on it when, and whether all were judged as if alone.

python benchmarks/gpu_turns.py OUT [--sessions N] [--dry]      (a minute and a half, three sessions)

N sessions (2 unless told) at once on the first GPU, each with four of the cases of gpu_scaling.py.
--dry: small sizes on the CPU.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from itertools import pairwise
from pathlib import Path

from gpu_report import Report, Run, start
from gpu_scaling import arguments, check, intervals, overlaps, project

CASES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    report = Report(asked.out, "gpu_turns")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    one = {} if asked.dry else {"CUDA_VISIBLE_DEVICES": first}
    names = [f"session {number}" for number in range(1, asked.sessions + 1)]
    with tempfile.TemporaryDirectory() as directory:
        root = project(Path(directory) / "project", asked.dry)
        cases = [f"test_ops.py::test_product[{number}]" for number in range(CASES)]
        running = [start(root, *arguments(root, name), *cases, **one) for name in names]
        for process in running:
            text, _ = process.communicate()
            check(Run(process.returncode, 0.0, text))
        found = [entry for name in names for entry in intervals(root, name)]
    found.sort(key=lambda entry: entry["timed"])
    report.add("measured", found)
    row = {
        "sessions": len(names),
        "cases passed": CASES * len(names),
        "measurements": len(found),
        "devices": len({entry["device"] for entry in found}),
        "changes of turn": sum(a["session"] != b["session"] for a, b in pairwise(found)),
        "at the same moment": len(overlaps(found)),
    }
    report.add("turns", row)
    report.table("Sessions at once on one device", [row])


if __name__ == "__main__":
    main()
