"""Memory, first calls and a whole program, as a campaign reports them, next to other counts.

python benchmarks/beyond_times.py OUT [--dry]     (about a minute and a half; --dry: on the CPU)

Five kernels become leaner in round 2; the final round runs a small model in turns with both. What a
call holds is counted again in a process of its own: on a GPU from the record of every allocation,
on the CPU from sizes. Writes OUT/beyond_times.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_report import ROOT, Report, run
from gpu_report import machine as this_machine

CAMPAIGN = "beyond"
SETTINGS = '[tool.pytest.ini_options]\npythonpath = ["."]\ntestpaths = ["tests"]\n'
BEFORE = """\
import torch
from torch.nn import functional as F

_kept = {}


def norm(x, weight):
    wide = x.double()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return (scaled * weight.double()).to(x)


def shares(x):
    e = torch.exp(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def gated(x):
    a, b = (half.contiguous() for half in x.chunk(2, -1))
    return F.silu(a.clone()) * b


def product(a, b):
    padded = F.pad(a, (0, 0, 0, a.shape[0]))
    return (padded @ b)[: a.shape[0]].clone()


def running(x):
    if x.shape not in _kept:
        _kept[x.shape] = torch.empty(4, *x.shape, dtype=x.dtype, device=x.device)
    work = _kept[x.shape]
    torch.mul(x, 2, out=work[0])
    torch.add(work[0], x, out=work[1])
    return work[1] * x
"""
AFTER = """\
import torch
from torch.nn import functional as F


def norm(x, weight):
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def shares(x):
    return torch.softmax(x, -1)


def gated(x):
    a, b = x.chunk(2, -1)
    return F.silu(a).mul_(b)


def product(a, b):
    return a @ b


def running(x):
    return (x * 3).mul_(x)
"""
CASES = """\
import pytest
import torch
from kernels import ops
from pytest_kopt import snr

N = {size}
OPS = {{
    "norm": (2, lambda d: (d(N, N), d(N)), lambda x, w: x * torch.rsqrt(
        x.square().mean(-1, keepdim=True) + 1e-6) * w),
    "shares": (1, lambda d: (d(N, N),), lambda x: torch.softmax(x, -1)),
    "gated": (1, lambda d: (d(N, 2 * N),), lambda x: torch.nn.functional.silu(
        x[:, :N]) * x[:, N:]),
    "product": (2, lambda d: (d(N, N), d(N, N)), lambda a, b: a @ b),
    "running": (1, lambda d: (d(N, N),), lambda x: 3 * x * x),
}}


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("name", OPS)
def test_op(kopt, name):
    _, inputs, reference = OPS[name]

    def draw(*shape):
        return torch.randn(*shape, device=kopt.device)

    kopt(
        getattr(ops, name),
        inputs=lambda: inputs(draw),
        reference=lambda *given: reference(*(x.double() for x in given)),
        dims={{"op": name, "rows": N, "columns": N}},
        nbytes=8 * N * N,
        gate=snr(40),
    )
"""
MODEL = """\
import sys
import time

import torch

sys.path.insert(0, ".")
from kernels import ops

DEVICE, N = "{device}", {size} // 2
x = torch.randn(N, N, device=DEVICE)
layers = [(torch.randn(N, 2 * N, device=DEVICE), torch.randn(N, N, device=DEVICE),
           torch.ones(N, device=DEVICE)) for _ in range(4)]


def step(x):
    for up, down, weight in layers:
        x = x + ops.product(ops.gated(ops.norm(x, weight) @ up / N**0.5), down) / N**0.5
    return ops.shares(x)


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


for _ in range(3):
    step(x)
wait()
start = time.perf_counter()
for _ in range(20):
    step(x)
wait()
print((time.perf_counter() - start) * 1000 / 20)
"""
#: Prints what the second call of each kernel holds at most beyond what was there before the first.
COUNT = """\
import json
import sys

import torch

sys.path[:0] = [".", "tests"]
from kernels import ops
from test_ops import OPS

DEVICE = "{device}"


def at_most(call):
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(max_entries=100000)
    held = {{}}
    most = 0
    call()
    torch.cuda.synchronize()
    first = len(torch.cuda.memory._snapshot()["device_traces"][0])
    call()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    for number, event in enumerate(trace):
        if event["action"] == "alloc":
            held[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            held.pop(event["addr"], None)
        if number >= first:
            most = max(most, sum(held.values()))
    return most


if DEVICE == "cuda":
    found = {{}}
    for name, (_, inputs, _) in OPS.items():
        given = inputs(lambda *shape: torch.randn(*shape, device=DEVICE))
        found[name] = at_most(lambda: getattr(ops, name)(*given))
        del given
    print(json.dumps(found))
"""


def project(root: Path, device: str, size: int) -> None:
    """Write the project with its lavish kernels."""
    for path, text in {
        "pyproject.toml": SETTINGS,
        "kernels/__init__.py": "",
        "kernels/ops.py": BEFORE,
        "tests/test_ops.py": CASES.format(size=size),
        "model.py": MODEL.format(device=device, size=size),
        "count.py": COUNT.format(device=device),
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def counted(root: Path) -> dict[str, int]:
    """Return the other count of the kernels as they are, {} on the CPU."""
    words = [sys.executable, "count.py"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout or "{}")
    return found


def verdict(root: Path, *words: str, place: str) -> dict[str, Any]:
    """Run a session of the campaign and return its newest verdict below `place`, or stop."""
    done = run(root, "--kopt-campaign", CAMPAIGN, *words)
    files = sorted((root / "agent/workspace" / CAMPAIGN).glob(f"{place}/verdict.json"))
    if done.code or not files:
        raise SystemExit(f"{' '.join(words)} ended with {done.code}\n{done.text[-3000:]}")
    found: dict[str, Any] = json.loads(files[-1].read_text())
    return {**found, "wall_seconds": round(done.seconds, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    device, size = ("cpu", 256) if asked.dry else ("cuda", 4096)
    report = Report(asked.out, "beyond_times")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        project(root, device, size)
        gpus = this_machine()["gpus"]
        target = "cpu" if asked.dry else "H200" if "H200" in gpus[0] else "H100"
        words = ["init", CAMPAIGN, "--op", "ops", "--backend", "TORCH", "--gpu", target]
        words += ["--kernel", "kernels/ops.py", "--metric", "Forward GB/s"]
        words += ["--e2e", f"{sys.executable} model.py"]
        init = [sys.executable, "-m", "pytest_kopt.cli", *words]
        subprocess.run(init, cwd=root, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        verdict(root, "--kopt-round", "1", place="rounds/round-1")
        before = counted(root)
        (root / "kernels/ops.py").write_text(AFTER)
        after = counted(root)
        round_2 = verdict(root, "--kopt-round", "2", place="rounds/round-2")
        report.add("round", round_2)
        rows = [
            {
                "case": case["label"],
                "before, MiB": case["memory"]["incumbent_bytes"] / 2**20,
                "counted": before.get(name, float("nan")) / 2**20,
                "after, MiB": case["memory"]["candidate_bytes"] / 2**20,
                "counted after": after.get(name, float("nan")) / 2**20,
                "first call, ms": case["first_call_ms"]["candidate"],
            }
            for case in round_2["shapes"]
            for name in [case["dims"]["op"]]
        ]
        report.add("memory", rows)
        report.table("memory", rows)
        final = verdict(root, "--kopt-round", "final", place="final/attempt-*")
        report.add(
            "e2e", {key: final.get(key) for key in ("e2e", "aggregate", "flags", "wall_seconds")}
        )
        report.table("end to end", [final["e2e"] or {}])


if __name__ == "__main__":
    main()
