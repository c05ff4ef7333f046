"""`kopt bisect` over histories with a planted loss, and one gain in between.

python benchmarks/bisect_gpu.py OUT [histories=10] [commits=64] [losses=1,2,5] [clean=2]
[jobs=1] [seed=64] [cases=4] [device=cpu]

A commit edits a kernel that launches the template's GEMM (on a CPU: torch's) 200 times a call; the
culprit launches more from then on, another commit somewhere fewer, by 0.2 to 0.6 of that.
`clean` histories have no loss. `jobs` histories are walked side by side: their seconds are then not
those of one alone. Writes OUT/bisect.json after every history.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from gpu_report import ROOT, Report

LAUNCHES = 200
OPS = {
    "cuda": (
        "from kernels.gemm_bf16 import gemm",
        "gemm",
        "a, b: torch.randn(a, b, device=kopt.device, dtype=torch.bfloat16)",
    ),
    "cpu": ("import torch", "torch.matmul", "a, b: torch.randn(a, b)"),
}
KERNEL = """\
{imports}

EDIT = {edit}


def op(a, b):
    for _ in range({launches}):
        out = {function}(a, b)
    return out
"""
CASES = """\
import pytest
import torch
from kernels.op import op

SHAPES = {shapes}


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("n", SHAPES)
def test_op(kopt, n):
    matrix = lambda {matrix}
    kopt(
        op,
        inputs=lambda: (matrix(n, n), matrix(n, n)),
        reference=lambda a, b: a.double() @ b.double(),
        dims={{"n": n}},
    )
"""
SHAPES = {"cuda": [256, 512, 768, 1024], "cpu": [48, 96]}
SETTINGS = '[tool.pytest.ini_options]\npythonpath = ["."]\ntestpaths = ["tests"]\n'


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")
    done = run(root, "git", *who, *words)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.strip()


def made(root: Path, device: str, launches: Sequence[int], count: int | None = None) -> list[str]:
    """Make a repository whose commits launch so often, all cases or so many; returns hashes."""
    imports, function, matrix = OPS[device]
    shutil.copytree(ROOT / "conftest_templates" / "kernels", root / "kernels")
    (root / "tests").mkdir()
    (root / "pyproject.toml").write_text(SETTINGS)
    cases = CASES.format(shapes=SHAPES[device][:count], matrix=matrix)
    (root / "tests" / "test_op.py").write_text(cases)
    git(root, "init", "--quiet", "--initial-branch=main")
    hashes = []
    for edit, times in enumerate(launches):
        text = KERNEL.format(imports=imports, edit=edit, launches=times, function=function)
        (root / "kernels" / "op.py").write_text(text)
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", f"Edit {edit}")
        hashes.append(git(root, "rev-parse", "HEAD"))
    return hashes


def bisected(root: Path, good: str) -> tuple[dict[str, Any], float]:
    """Return the report of a bisection and how long it took."""
    began = time.perf_counter()
    done = run(root, sys.executable, "-m", "pytest_kopt.cli", "bisect", good, "--json")
    if not done.stdout:
        sys.exit(f"kopt bisect ended with {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout), time.perf_counter() - began


def history(draw: random.Random, commits: int, loss: float) -> tuple[list[int], int]:
    """Return the launches of GOOD and of each commit, and which commit loses (0: none)."""
    culprit, gain_at = draw.sample(range(1, commits + 1), 2)
    if not loss:
        return [LAUNCHES] * (commits + 1), 0
    more = round(LAUNCHES * loss / (100 - loss)) if loss >= 20 else round(LAUNCHES * loss / 100)
    fewer = max(1, round(more * draw.uniform(0.2, 0.6)))
    return [
        LAUNCHES + more * (i >= culprit) - fewer * (i >= gain_at) for i in range(commits + 1)
    ], culprit


def walked(
    device: str, cases: int, loss: float, launches: Sequence[int], culprit: int
) -> dict[str, Any]:
    """Make a history and bisect it; returns what was found."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "project"
        hashes = made(root, device, launches, cases)
        found, seconds = bisected(root, hashes[0])
    first = found["first_slower"]
    named = hashes.index(first["commit"]) if first else 0
    bound = first or found["bad_against_good"] or {"low_pct": 0.0, "high_pct": 0.0}
    return {
        "planted %": -loss,
        "culprit": culprit,
        "named": named,
        "right": named == culprit,
        "low %": bound["low_pct"],
        "high %": bound["high_pct"],
        "sessions": found["sessions"],
        "seconds": round(seconds, 1),
    }


def main() -> None:
    wishes = dict(word.split("=") for word in sys.argv[2:])
    device, commits = wishes.get("device", "cuda"), int(wishes.get("commits", 64))
    losses = [float(loss) for loss in wishes.get("losses", "1,2,5").split(",")]
    plan = [loss for _ in range(int(wishes.get("histories", 10))) for loss in losses]
    plan += [0.0] * int(wishes.get("clean", 2))
    draw, rows = random.Random(int(wishes.get("seed", 64))), list[dict[str, Any]]()
    report, cases = Report(Path(sys.argv[1]), "bisect"), int(wishes.get("cases", 4))
    with ThreadPoolExecutor(int(wishes.get("jobs", 1))) as pool:
        walks = [
            pool.submit(walked, device, cases, loss, *history(draw, commits, loss)) for loss in plan
        ]
        for done in as_completed(walks):
            rows.append(done.result())
            report.add("histories", rows)
            print(rows[-1], flush=True)
    report.table("Histories", rows)
    right = sum(row["right"] for row in rows)
    print(f"{right} of {len(rows)} right, at most {max(row['seconds'] for row in rows)} s")


if __name__ == "__main__":
    main()
