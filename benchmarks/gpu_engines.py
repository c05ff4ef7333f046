"""Graph-replay times against the profilers' own kernel durations.

python benchmarks/gpu_engines.py OUT [--dry]      (about a minute; --dry: small sizes on the CPU)

Every case of `gpu_project` goes round a cold pool of inputs in one captured graph, as in a session.
The same replays are measured by torch.profiler, alternating, and its launches by ncu where that
runs. A replay also holds the device's latency between two kernels of a graph; what an empty kernel
shows of it is listed, and the difference with and without it.
"""

from __future__ import annotations

import csv
import functools
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gpu_report import GPU_PROJECT, Report

from pytest_kopt.measure.choice import prepare
from pytest_kopt.measure.cold import input_pool
from pytest_kopt.measure.engine import Block

ROUNDS = 5
NCU_LAUNCHES = 24


def cases(dry: bool) -> dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]]:
    """Return each case's function and what makes its inputs."""
    sys.path.insert(0, str(GPU_PROJECT))
    device = "cpu" if dry else "cuda"

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    if dry:
        return {"torch_64": (torch.matmul, lambda i: (draw(64, 64), draw(64, 64)))}
    from tests.test_ops import CASES

    def inputs(m: int, n: int, k: int) -> Callable[[int], tuple[Any, ...]]:
        return lambda i: (draw(m, k), draw(k, n)) if k else (draw(m, n), draw(n))

    return {name: (function, inputs(*dims)) for name, (function, dims) in CASES.items()}


def block_of(function: Callable[..., Any], make: Callable[[int], Any], device: str) -> Block:
    pool = input_pool(make, device, function)
    calls = [functools.partial(function, *given) for given in pool.sets]
    return prepare("auto", device, False, calls, pool.flush)


def profiled(work: Callable[[], object]) -> list[tuple[float, float]]:
    """Return start and end in us of every kernel that ran, in order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in found.events()
        if event.device_type.name == "CUDA" and "Mem" not in event.name
    ]
    return sorted(spans)


def against_profiler(block: Any) -> dict[str, float]:
    """Return the block's own time and the profiler's, in us a call, medians of alternating runs."""
    own, kernels, gaps, launches = [], [], [], []
    block.run()
    for _ in range(ROUNDS):
        own.append(block.run() * 1e3)
        spans = profiled(block.run)
        # A run replays once more than it times; kernels of that replay count as well.
        calls = block.calls * (1 + 1 / block._replays)
        kernels.append(sum(end - start for start, end in spans) / calls)
        launches.append(len(spans) / calls)
        between = [b[0] - a[1] for a, b in pairwise(spans)]
        gaps.append(statistics.median(between) if between else 0.0)
    return {
        "graph_us": statistics.median(own),
        "profiler_us": statistics.median(kernels),
        "kernels": statistics.median(launches),
        "gap_under_profiler_us": statistics.median(gaps),
    }


def with_ncu(name: str) -> float | str:
    """Return ncu's mean duration of a case's kernels in us, or why there is none."""
    tool = shutil.which("ncu")
    if tool is None:
        return "ncu is not installed"
    command = [
        *(tool, "--csv", "--metrics", "gpu__time_duration.sum"),
        *("--cache-control", "all", "--clock-control", "none"),
        *("--launch-skip", "8", "--launch-count", str(NCU_LAUNCHES)),
        *("--kernel-name-base", "function", "--kernel-name", "regex:matmul|rmsnorm|gemm|nvjet"),
        *(sys.executable, __file__, "--launch", name),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    found = [float(row["Metric Value"].replace(",", "")) for row in rows if row["Metric Value"]]
    if not found:
        return (done.stdout + done.stderr).strip()[-300:] or f"status {done.returncode}"
    unit = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3}
    return statistics.median(found) * unit[rows[0]["Metric Unit"]]


def launch(name: str) -> None:
    """Launch a case often enough for ncu to look at; run under ncu."""
    function, make = cases(dry=False)[name]
    sets = [make(i) for i in range(4)]
    for i in range(8 + NCU_LAUNCHES + 4):
        function(*sets[i % 4])
    torch.cuda.synchronize()


def main() -> None:
    if sys.argv[1] == "--launch":
        launch(sys.argv[2])
        return
    dry = "--dry" in sys.argv
    report = Report(Path(sys.argv[1]), "gpu_engines")
    device = "cpu" if dry else "cuda"
    latency = 0.0
    if not dry:
        empty = against_profiler(prepare("graph", "cuda", False, [_nothing] * 500))
        latency = empty["graph_us"] - empty["profiler_us"]
        report.add("empty_kernel", empty | {"latency_us": latency})
    rows = []
    for name, (function, make) in cases(dry).items():
        block = block_of(function, make, device)
        if dry:
            row: dict[str, Any] = {"case": name, "engine": block.engine, "us": block.run() * 1e3}
        else:
            found = against_profiler(block)
            truth, own = found["profiler_us"], found["graph_us"]
            row = {"case": name, "engine": block.engine, **found}
            row["difference_pct"] = (own / truth - 1) * 100
            net = own - found["kernels"] * latency
            row["difference_without_latency_pct"] = (net / truth - 1) * 100
            ncu = with_ncu(name)
            row["ncu_us"] = ncu if isinstance(ncu, float) else None
            if isinstance(ncu, float):
                row["difference_from_ncu_pct"] = (own / ncu - 1) * 100
            else:
                report.add(f"no_ncu_{name}", ncu)
        rows.append(row)
        report.add("cases", rows)
    report.table("Graph replay and profilers, us a call", rows)
    worst = max((abs(row.get("difference_pct", 0.0)) for row in rows), default=0.0)
    report.add("worst_difference_pct", worst)
    print(f"worst difference from torch.profiler: {worst:.2f} % (asked: 2)")


def _nothing() -> None:
    torch.cuda._sleep(0)


if __name__ == "__main__":
    main()
