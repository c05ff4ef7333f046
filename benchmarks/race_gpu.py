"""Live races of eight versions of a kernel whose speeds are known.

python benchmarks/race_gpu.py OUT [races=10] [copies=20] [jobs=1] [seed=8] [cases=4] [device=cpu]

The incumbent launches the template's GEMM (on a CPU: torch's) 200 times a call, a candidate as
often as makes its gain; so the truth is known. `races` fields of eight lie 0.5 % apart and more,
each in a campaign of its own with a round of one candidate after it. `copies` are eight versions
that do the same, and are timed though a GPU runs the same machine code: as many campaigns as
`jobs`, one race after the other in each. `jobs` campaigns run side by side: their seconds are then
not those of a race alone. Writes OUT/race.json after every race.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bisect_gpu import KERNEL, LAUNCHES, OPS, made
from bisect_gpu import run as command
from gpu_report import Report, run

NAME, PATH = "race", "kernels/op.py"


def source(device: str, edit: int, launches: int) -> str:
    imports, function, _ = OPS[device]
    return KERNEL.format(imports=imports, edit=edit, launches=launches, function=function)


def campaign(root: Path, device: str, cases: int) -> None:
    """Make a project with a campaign whose baseline is measured."""
    made(root, device, [LAUNCHES], cases)
    backend = ("--backend", "TRITON", "--gpu", "H200") if device == "cuda" else ()
    words = ("init", NAME, "--op", "op", "--kernel", PATH)
    backend = backend or ("--backend", "TORCH", "--gpu", "cpu")
    done = command(root, sys.executable, "-m", "pytest_kopt.cli", *words, *backend)
    if done.returncode:
        sys.exit(done.stderr)
    first = run(root, "--kopt-campaign", NAME, "--kopt-round", "1")
    if first.code:
        sys.exit(first.text)


def race(root: Path, device: str, launches: Sequence[int], number: int) -> dict[str, Any]:
    """Run the race of round `number`; returns what was found."""
    words = []
    for place, count in enumerate(launches):
        name = f"agent/candidates/{number}-{place}"
        file = root / name / PATH
        file.parent.mkdir(parents=True)
        file.write_text(source(device, 100 * number + place, count))
        words += ["--kopt-candidates", name]
    done = run(root, "--kopt-campaign", NAME, "--kopt-round", "next", "--kopt-measure-same", *words)
    path = root / f"agent/workspace/{NAME}/rounds/round-{number}/verdict.json"
    if not path.exists():
        sys.exit(done.text)
    verdict = json.loads(path.read_text())
    chosen = verdict["candidates"][0]["name"].split(", ")[0]
    return {
        "field": "copies" if len(set(launches)) == 1 else "known gains",
        "best %": max(map(gain, launches)),
        "chosen %": gain(launches[int(chosen.rpartition("-")[2])]),
        "decision": verdict["decision"],
        "seen %": (verdict["aggregate"] or {}).get("change_pct"),
        "seconds": round(done.seconds, 1),
    }


def gain(launches: int) -> float:
    return (LAUNCHES / launches - 1) * 100


def raced(device: str, cases: int, fields: Sequence[Sequence[int]]) -> Iterator[dict[str, Any]]:
    """Run races in a campaign of their own, after known gains a round of one candidate as well."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "project"
        campaign(root, device, cases)
        for number, launches in enumerate(fields, start=2):
            found = race(root, device, launches, number)
            if found["field"] == "known gains":
                (root / PATH).write_text(source(device, 2000, 180))
                single = run(root, "--kopt-campaign", NAME, "--kopt-round", "next")
                found["a single round"] = round(single.seconds, 1)
            yield found


def main() -> None:
    wishes = dict(word.split("=") for word in sys.argv[2:])
    device, draw = wishes.get("device", "cuda"), random.Random(int(wishes.get("seed", 8)))
    report, rows = Report(Path(sys.argv[1]), "race"), list[dict[str, Any]]()
    jobs, field = int(wishes.get("jobs", 1)), [200, 199, 198, 197, 196, 195, 202, 206]
    campaigns = [[draw.sample(field, len(field))] for _ in range(int(wishes.get("races", 10)))]
    copies = [[LAUNCHES] * 8] * int(wishes.get("copies", 20))
    campaigns += [each for place in range(jobs) if (each := copies[place::jobs])]

    def play(fields: Sequence[Sequence[int]]) -> None:
        for found in raced(device, int(wishes.get("cases", 4)), fields):
            rows.append(found)
            report.add("races", rows)
            print(found, flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(play, campaigns))
    report.table("Races", rows)


if __name__ == "__main__":
    main()
