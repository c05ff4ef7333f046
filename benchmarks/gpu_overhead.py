"""How much of a paired session's device-busy time is spent in blocks of the case.

python benchmarks/gpu_overhead.py OUT [--dry]     (about a minute)

One case of about 0.2 ms (bf16 matmul 4096^3) is checked, timed and compared with itself in eight
fresh processes. In every process torch.profiler records each kernel, and a plugin of this script's
marks the spans of blocks and of the warm-up before a capture; kernels that run within them are the
case's, all others (inputs, checks, references, comparisons) the harness's.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from gpu_report import Report, run

PROCESSES = 8
ASKED_PCT = 85.0

TESTS = """\
import pytest
import torch


def product(a, b):
    return a @ b


@pytest.mark.kopt(schema="gemm")
def test_product(kopt):
    def draw():
        return torch.randn({size}, {size}, device=kopt.device, dtype=torch.bfloat16)

    kopt(
        product,
        inputs=lambda: (draw(), draw()),
        reference=lambda a, b: a.double() @ b.double(),
        dims={{"M": {size}, "N": {size}, "K": {size}}},
    )
"""

SPANS = '''\
"""Marks the spans of blocks and warm-ups, and adds up what ran on the device inside and outside."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_kopt.measure import gpu, wall

ON_GPU = torch.cuda.is_available()
KIND = "CUDA" if ON_GPU else "CPU"


def marked(function, name):
    def run(*arguments, **keywords):
        with record_function(name):
            return function(*arguments, **keywords)

    return run


gpu._warm_up = marked(gpu._warm_up, "kopt-warm-up")
for block in (gpu._GraphBlock, gpu._EventsBlock, wall.WallBlock):
    block.run = marked(block.run, "kopt-block")


def pytest_sessionstart(session):
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * ON_GPU
    session.profile = profile(activities=activities)
    session.profile.__enter__()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if ON_GPU:
        torch.cuda.synchronize()
    session.profile.__exit__(None, None, None)
    events = list(session.profile.events())
    spans = {}
    for event in events:
        if event.name.startswith("kopt-") and event.device_type.name == "CPU":
            spans.setdefault(event.name, []).append((event.time_range.start, event.time_range.end))
    # Top-level operators stand in for kernels where there is no GPU.
    work = [
        event
        for event in events
        if event.device_type.name == KIND
        and not event.name.startswith("kopt-")
        and (ON_GPU or event.cpu_parent is None or event.cpu_parent.name.startswith("kopt-"))
    ]
    found = {"kernels": len(work), "busy_us": 0.0, "kopt-block": 0.0, "kopt-warm-up": 0.0}
    names = {}
    for event in work:
        start, lasts = event.time_range.start, event.time_range.elapsed_us()
        found["busy_us"] += lasts
        inside = [n for n, some in spans.items() if any(a <= start <= b for a, b in some)]
        if inside:
            found[inside[0]] += lasts
        else:
            names[event.name[:60]] = names.get(event.name[:60], 0.0) + lasts
    found["harness"] = dict(sorted(names.items(), key=lambda item: -item[1])[:8])
    Path(os.environ["SPANS"], f"{os.getpid()}.json").write_text(json.dumps(found))
'''


def main() -> None:
    dry = "--dry" in sys.argv
    report = Report(Path(sys.argv[1]), "gpu_overhead")
    with tempfile.TemporaryDirectory() as directory:
        root, spans = Path(directory) / "project", Path(directory) / "spans"
        root.mkdir()
        spans.mkdir()
        # A plugin, so that it is in place before the watch over the harness begins.
        (root / "spans.py").write_text(SPANS)
        (root / "test_product.py").write_text(TESTS.format(size=256 if dry else 4096))
        done = run(
            root,
            *("-p", "spans"),
            *("--kopt-calibrate", str(4 if dry else PROCESSES), "--kopt-gpu-wait", "2"),
            SPANS=str(spans),
        )
        if done.code:
            sys.exit(f"pytest ended with {done.code}\n{done.text[-4000:]}")
        found = [json.loads(path.read_text()) for path in sorted(spans.iterdir())]
    report.add("processes", found)
    busy = sum(one["busy_us"] for one in found)
    row = {
        "processes": len(found),
        "device busy ms": busy / 1e3,
        "in blocks %": sum(one["kopt-block"] for one in found) / busy * 100,
        "in warm-ups %": sum(one["kopt-warm-up"] for one in found) / busy * 100,
    }
    row["in both %"] = row["in blocks %"] + row["in warm-ups %"]
    report.add("total", row)
    report.table("Device-busy time of a paired session", [row])
    print(f"{row['in both %']:.1f} % inside blocks or warm-ups (asked: {ASKED_PCT})")


if __name__ == "__main__":
    main()
