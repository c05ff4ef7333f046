"""Ceilings, rooflines and profiles of the five kernels on one GPU, held against what is expected.

Run on a machine with an H200, ncu on PATH:  python benchmarks/gpu_profiles.py OUT
Writes OUT/profiles.json and OUT/profiles.md; ends with 1 when something is not as expected.
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
from typing import Any

import yaml

from pytest_kopt import models
from pytest_kopt.profiling.kernel_table import CaseProfile

PROJECT = Path(__file__).parent / "gpu_project"
#: Read on an H200 by other means: device copy in TB/s, bf16 product of 8192 in TFLOPS.
COPY_TB_PER_S, BF16_TFLOPS = 4.3, 790.0
CEILING_PCT, AGREEMENT_PCT = 5.0, 3.0
BOUNDS = {
    "matmul_4096": "compute",
    "matmul_1024x8192x4096": "compute",
    "matmul_512": "launch",
    "torch_4096": "compute",
    "rmsnorm": "memory",
}
#: One Triton and one torch kernel have to agree; the others are shown.
AGREE = ("rmsnorm", "torch_4096")


def run(root: Path, *words: str) -> str:
    print("$", *words, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def off_pct(found: float, expected: float) -> float:
    return (found / expected - 1) * 100


def ceilings(workspace: Path) -> dict[str, Any]:
    (path,) = (workspace / "ceilings").glob("*.yaml")
    found = yaml.safe_load(path.read_text())
    return {
        "measured": found,
        "copy_off_pct": off_pct(found["copy_tb_per_s"], COPY_TB_PER_S),
        "bf16_off_pct": off_pct(found["matrix"]["bfloat16"]["tflops"], BF16_TFLOPS),
    }


def agreement(profiles: list[CaseProfile]) -> dict[str, dict[str, Any]]:
    """Return each case's hottest kernel by both tools and how far they are apart."""
    tools = {tool: {p.label: p for p in profiles if p.tool == tool} for tool in _tools(profiles)}
    found: dict[str, dict[str, Any]] = {}
    for label in BOUNDS:
        hot = {tool: seen[label].hottest for tool, seen in tools.items() if label in seen}
        line: dict[str, Any] = {
            tool: row and [row.kernel, row.mean_us] for tool, row in hot.items()
        }
        ours, theirs = hot.get("torch.profiler"), hot.get("ncu")
        line["apart_pct"] = off_pct(ours.mean_us, theirs.mean_us) if ours and theirs else None
        found[label] = line
    return found


def _tools(profiles: list[CaseProfile]) -> list[str]:
    return sorted({item.tool for item in profiles})


def complaints(found: dict[str, Any]) -> list[str]:
    said = [
        f"{name} is {found['ceilings'][name]:+.1f} %"
        for name in ("copy_off_pct", "bf16_off_pct")
        if abs(found["ceilings"][name]) > CEILING_PCT
    ]
    said += [
        f"{line['label']} is {line['bound']} bound, not {BOUNDS[line['label']]}"
        for line in found["rooflines"]
        if line["bound"] != BOUNDS[line["label"]]
    ]
    for label in AGREE:
        apart = found["agreement"][label]["apart_pct"]
        if apart is None or abs(apart) > AGREEMENT_PCT:
            said.append(f"{label}: the two profilers are {apart} % apart")
    return said


def page(found: dict[str, Any]) -> str:
    measured = found["ceilings"]["measured"]
    lines = [
        f"# {measured['device']}, {measured['measured']}",
        "",
        f"copy {measured['copy_tb_per_s']:.3f} TB/s ({found['ceilings']['copy_off_pct']:+.1f} %), "
        f"bf16 {measured['matrix']['bfloat16']['tflops']:.1f} TFLOPS "
        f"({found['ceilings']['bf16_off_pct']:+.1f} %), launch {measured['launch_us']}",
        "",
        "| case | bound | FLOP/B | ridge | attainable | achieved | of it (%) |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in found["rooflines"]:
        cells = [line[name] for name in ("intensity", "ridge", "attainable", "achieved")]
        shown = [f"{cell:.1f}" if cell else "-" for cell in [*cells, line["achieved_pct"]]]
        lines.append(f"| {line['label']} | {line['bound']} | {' | '.join(shown)} |")
    lines += ["", "| case | torch.profiler (us) | ncu (us) | apart (%) |", "|---|---|---|---|"]
    for label, line in found["agreement"].items():
        times = [f"{seen[1]:.3f}" if seen else "-" for seen in map(line.get, _PAIR)]
        apart = "-" if line["apart_pct"] is None else f"{line['apart_pct']:+.2f}"
        lines.append(f"| {label} | {' | '.join(times)} | {apart} |")
    lines += ["", *(found["complaints"] or ["all as expected"]), ""]
    return "\n".join(lines)


_PAIR = ("torch.profiler", "ncu")


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    os.environ.pop("PYTEST_ADDOPTS", None)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "project"
        shutil.copytree(PROJECT, root)
        workspace = root / "agent" / "workspace"
        said = run(root, "pytest_kopt.cli", "calibrate", "--ceilings", "--device", "cuda")
        words = ("--op", "ops", "--kernel", "kernels/ops.py", "--backend", "TRITON")
        run(
            root,
            "pytest_kopt.cli",
            "init",
            "gpu",
            *words,
            "--gpu",
            "H200",
            "--tests",
            "tests/test_ops.py",
        )
        said += run(root, "pytest", "--kopt-campaign", "gpu", "--kopt-round", "1", "--kopt-profile")
        campaign = workspace / "gpu"
        verdict = json.loads((campaign / "rounds" / "round-1" / "verdict.json").read_text())
        seen = json.loads((campaign / "profiles" / "round-1" / "attempt-1.json").read_text())
        profiles = [models.read(CaseProfile, item) for item in seen["profiles"]]
        found: dict[str, Any] = {
            "ceilings": ceilings(workspace),
            "rooflines": verdict["rooflines"],
            "agreement": agreement(profiles),
            "profiles": seen["profiles"],
        }
        (out / "page.md").write_text((campaign / "profiles/round-1/attempt-1.md").read_text())
    found["seconds"] = round(time.perf_counter() - start, 1)
    found["complaints"] = complaints(found)
    (out / "profiles.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "profiles.md").write_text(page(found))
    print(said)
    print(page(found))
    sys.exit(bool(found["complaints"]))


if __name__ == "__main__":
    main()
