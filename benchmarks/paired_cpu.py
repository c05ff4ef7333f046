"""Live paired verdicts on the CPU, by default while other processes keep every core busy.

[taskset -c 0,1] python benchmarks/paired_cpu.py OUT [aa=50] [slow=5] [gain=0] [busy=2]

`aa` rounds judge an edit without effect; `slow` rounds a version that does its work
twice (five regressions in a row end a campaign); `gain` rounds one that does it 19
times instead of 20, which is 5.3 % faster. Writes OUT/paired_cpu.json after every
verdict.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KERNEL = """\
import torch

TIMES, EDIT = 1, 0


def rmsnorm(x, weight):
    for _ in range(TIMES if EDIT >= 0 else 2):
        out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    return out
"""
CASES = """\
import pytest
import torch
from kernels.rmsnorm import rmsnorm


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("rows, hidden", [(64, 256), (256, 512), (512, 1024)])
def test_rmsnorm(kopt, rows, hidden):
    kopt(
        rmsnorm,
        inputs=lambda: (torch.randn(rows, hidden), torch.randn(hidden)),
        reference=lambda x, w: x.double()
        * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
        * w.double(),
        dims={"rows": rows, "hidden": hidden},
        nbytes=8 * rows * hidden,
    )
"""
SETTINGS = '[tool.pytest.ini_options]\npythonpath = ["."]\ntestpaths = ["tests"]\n'


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes spinning."""
    spin = "while True: sum(range(10000))"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def kernel(times: int, number: int) -> str:
    """Return a version that does its work so many times; comments alone would be no round."""
    return KERNEL.replace("TIMES, EDIT = 1, 0", f"TIMES, EDIT = {times}, {number}")


def write_project(root: Path, times: int = 1) -> None:
    """Write three cases and their kernel."""
    for name, text in (
        ("pyproject.toml", SETTINGS),
        ("kernels/__init__.py", ""),
        ("kernels/rmsnorm.py", kernel(times, 0)),
        ("tests/test_rmsnorm.py", CASES),
    ):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)


def project(root: Path, times: int = 1) -> None:
    """Make a project with a campaign whose baseline is measured."""
    write_project(root, times)
    words = ("init", "cpu", "--op", "rmsnorm", "--kernel", "kernels/rmsnorm.py")
    made = run(root, sys.executable, "-m", "pytest_kopt.cli", *words, "--backend", "TORCH",
               "--gpu", "cpu")  # fmt: skip
    baseline = measure(root)
    if made.returncode or baseline["decision"] != "BASELINE":
        sys.exit(f"{made.stdout}{made.stderr}{baseline}")


def measure(root: Path) -> dict[str, Any]:
    """Run the next round and return its verdict in short."""
    out = root / "verdict.json"
    out.unlink(missing_ok=True)
    start = time.perf_counter()
    done = run(
        root,
        *(sys.executable, "-m", "pytest", "--kopt-campaign", "cpu", "--kopt-round", "next"),
        *("--kopt-verdict", str(out), "--kopt-device", "cpu"),
    )
    if not out.exists():
        sys.exit(f"the round ended with {done.returncode}\n{done.stdout}{done.stderr}")
    verdict = json.loads(out.read_text())
    return {
        "exit": done.returncode,
        "seconds": round(time.perf_counter() - start, 1),
        "decision": verdict["decision"],
        "reason": verdict["reason"],
        "change_pct": (verdict["aggregate"] or {}).get("change_pct"),
        "regressed": sum(shape["status"] == "regressed" for shape in verdict["shapes"]),
    }


def judged(root: Path, kind: str, number: int) -> dict[str, Any]:
    """Judge one more version; each gain in a copy, since a campaign keeps it."""
    if kind == "gain":
        root = Path(shutil.copytree(root, f"{root}-{number}", symlinks=True))
    times = {"aa": 1, "slow": 2, "gain": 19}[kind]
    (root / "kernels/rmsnorm.py").write_text(kernel(times, number + 1))
    return measure(root)


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    wishes = {"aa": 50, "slow": 5, "gain": 0, "busy": 2}
    wishes |= {key: int(value) for key, value in (word.split("=") for word in sys.argv[2:])}
    os.environ.pop("PYTEST_ADDOPTS", None)
    found: dict[str, Any] = {
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}",
        "busy": wishes["busy"],
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["benchmarks/paired_cpu.py OUT", *sys.argv[2:]]),
        "aa": [],
        "slow": [],
        "gain": [],
    }
    with tempfile.TemporaryDirectory() as name, busy(wishes["busy"]):
        for kinds, times in ((("aa", "slow"), 1), (("gain",), 20)):
            if not any(wishes[kind] for kind in kinds):
                continue
            root = Path(name) / f"{times}-times"
            root.mkdir()
            project(root, times)
            for kind in kinds:
                for number in range(wishes[kind]):
                    found[kind].append(judged(root, kind, number))
                    print(kind, found[kind][-1], flush=True)
                    (out / "paired_cpu.json").write_text(json.dumps(found, indent=1))
    for kind in ("aa", "slow", "gain"):
        rounds = found[kind]
        worst = max((abs(r["change_pct"] or 0) for r in rounds), default=0)
        print(kind, dict(Counter(r["decision"] for r in rounds)), f"worst {worst:.2f} %")


if __name__ == "__main__":
    main()
