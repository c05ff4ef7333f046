"""Live paired verdicts on a GPU: identical code, known changes, recorded processes, cost.

Run on a machine with a GPU:  python benchmarks/paired_gpu.py OUT [aa=20] [known=1] [record=200]
Writes OUT/verdicts.json and OUT/noise.json; `benchmarks/paired_power.py` resamples the latter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).parent / "gpu_project"
KERNEL = Path("kernels/ops.py")
#: Launches of incumbent and candidate: gains of 0.50, 1.01, 2.04 and 5.26 %, and losses.
KNOWN = ((200, 199), (200, 198), (200, 196), (200, 190), (200, 202), (200, 212))


def run(root: Path, *arguments: str) -> tuple[int, float, str]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, time.perf_counter() - start, done.stdout


def campaign(directory: Path, launches: int, select: str = "") -> Path:
    """Make a project with a campaign whose baseline is measured."""
    root = directory / f"project-{launches}-{len(list(directory.iterdir()))}"
    shutil.copytree(PROJECT, root)
    launch(root, launches)
    tests = f"tests/test_ops.py {select}".strip()
    words = ["init", "gpu", "--op", "ops", "--kernel", str(KERNEL), "--backend", "TRITON"]
    subprocess.run(
        [sys.executable, "-m", "pytest_kopt.cli", *words, "--gpu", "H200", "--tests", tests],
        cwd=root,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    code, _, text = run(root, "--kopt-campaign", "gpu", "--kopt-round", "1")
    if code:
        sys.exit(f"the baseline ended with {code}\n{text}")
    return root


def launch(root: Path, launches: int) -> None:
    source = (PROJECT / KERNEL).read_text()
    (root / KERNEL).write_text(source.replace("LAUNCHES = 1\n", f"LAUNCHES = {launches}\n"))


def judge(root: Path, number: int, truth_pct: float) -> dict[str, object]:
    out = root / f"verdict-{number}.json"
    arguments = ("--kopt-campaign", "gpu", "--kopt-round", "next", "--kopt-verdict", str(out))
    code, seconds, text = run(root, *arguments, "--kopt-compare", "paired")
    if not out.exists():
        sys.exit(f"round {number} ended with {code}\n{text}")
    verdict = json.loads(out.read_text())
    found = {
        "truth_pct": truth_pct,
        "exit": code,
        "seconds": round(seconds, 2),
        "decision": verdict["decision"],
        "reason": verdict["reason"],
        "engine": verdict["engine"],
        "flags": verdict["flags"],
        "aggregate": verdict["aggregate"],
        "shapes": {s["label"]: (s["change_pct"], s["status"]) for s in verdict["shapes"]},
    }
    change = (verdict["aggregate"] or {}).get("change_pct")
    print(truth_pct, verdict["decision"], change, f"{seconds:.1f} s", verdict["flags"], flush=True)
    return found


def main() -> None:
    out = Path(sys.argv[1])
    wishes = dict(word.split("=") for word in sys.argv[2:])
    os.environ.pop("PYTEST_ADDOPTS", None)
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if "aa" in wishes:
            root = campaign(directory, 1)
            found += [judge(root, i, 0.0) for i in range(int(wishes["aa"]))]
        if "known" in wishes:
            for before, after in KNOWN:
                root = campaign(directory, before, "-k 'rmsnorm or 1024 or 512'")
                launch(root, after)
                found.append(judge(root, 0, (before / after - 1) * 100))
        (out / "verdicts.json").write_text(json.dumps(found, indent=1))
        if "record" in wishes:
            root = directory / "record"
            shutil.copytree(PROJECT, root)
            noise = str((out / "noise.json").resolve())
            _, seconds, text = run(
                root, "--kopt-calibrate", wishes["record"], "--kopt-verdict", noise
            )
            print(text[-1500:], f"{seconds:.1f} s")


if __name__ == "__main__":
    main()
