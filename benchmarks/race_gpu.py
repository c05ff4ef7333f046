"""Live races of eight versions of a kernel whose speeds are known.

python benchmarks/race_gpu.py OUT [races=10] [copies=20] [jobs=1] [seed=8] [device=cpu]

The incumbent launches the template's GEMM (on a CPU: torch's) 200 times a call, a candidate as
often as makes its gain; so the truth is known. `races` fields of eight lie 0.5 % apart and more,
`copies` are eight versions that do the same. After each race a round of one candidate is timed too.
`jobs` races run side by side: their seconds are then not those of a race alone.
Writes OUT/race.json after every race.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from bisect_gpu import KERNEL, LAUNCHES, OPS, made
from bisect_gpu import run as command
from gpu_report import Report, run

NAME, PATH = "race", "kernels/op.py"


def source(device: str, edit: int, launches: int) -> str:
    imports, function, _ = OPS[device]
    return KERNEL.format(imports=imports, edit=edit, launches=launches, function=function)


def campaign(root: Path, device: str) -> None:
    """Make a project with a campaign whose baseline is measured."""
    made(root, device, [LAUNCHES])
    backend = ("--backend", "TRITON", "--gpu", "H200") if device == "cuda" else ()
    words = ("init", NAME, "--op", "op", "--kernel", PATH)
    backend = backend or ("--backend", "TORCH", "--gpu", "cpu")
    done = command(root, sys.executable, "-m", "pytest_kopt.cli", *words, *backend)
    if done.returncode:
        sys.exit(done.stderr)
    first = run(root, "--kopt-campaign", NAME, "--kopt-round", "1")
    if first.code:
        sys.exit(first.text)


def race(root: Path, device: str, launches: Sequence[int]) -> tuple[dict[str, Any], float]:
    """Run a race; returns its verdict and how long it took."""
    words = []
    for number, count in enumerate(launches):
        file = root / "agent" / "candidates" / str(number) / PATH
        file.parent.mkdir(parents=True)
        file.write_text(source(device, 1000 + number, count))
        words += ["--kopt-candidates", f"agent/candidates/{number}"]
    done = run(root, "--kopt-campaign", NAME, "--kopt-round", "next", *words)
    path = root / f"agent/workspace/{NAME}/rounds/round-2/verdict.json"
    if not path.exists():
        sys.exit(done.text)
    return json.loads(path.read_text()), done.seconds


def gain(launches: int) -> float:
    return (LAUNCHES / launches - 1) * 100


def raced(device: str, launches: Sequence[int]) -> dict[str, Any]:
    """Run a race and a round of one candidate in a project of their own; returns what was found."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "project"
        campaign(root, device)
        verdict, seconds = race(root, device, launches)
        (root / PATH).write_text(source(device, 2000, 180))
        began = time.perf_counter()
        run(root, "--kopt-campaign", NAME, "--kopt-round", "next")
        single = time.perf_counter() - began
    chosen = verdict["candidates"][0]["name"].split(", ")[0]
    return {
        "field": "copies" if len(set(launches)) == 1 else "known gains",
        "best %": max(map(gain, launches)),
        "chosen %": gain(launches[int(chosen.rpartition("/")[2])]),
        "decision": verdict["decision"],
        "seen %": (verdict["aggregate"] or {}).get("change_pct"),
        "seconds": round(seconds, 1),
        "a single round": round(single, 1),
    }


def main() -> None:
    wishes = dict(word.split("=") for word in sys.argv[2:])
    device, draw = wishes.get("device", "cuda"), random.Random(int(wishes.get("seed", 8)))
    report, rows = Report(Path(sys.argv[1]), "race"), list[dict[str, Any]]()
    fields = [[200, 199, 198, 197, 196, 195, 202, 206]] * int(wishes.get("races", 10))
    fields += [[LAUNCHES] * 8] * int(wishes.get("copies", 20))
    with ThreadPoolExecutor(int(wishes.get("jobs", 1))) as pool:
        races = [pool.submit(raced, device, draw.sample(field, len(field))) for field in fields]
        for done in as_completed(races):
            rows.append(done.result())
            report.add("races", rows)
            print(rows[-1], flush=True)
    report.table("Races", rows)


if __name__ == "__main__":
    main()
