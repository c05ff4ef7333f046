"""Memory, first calls and a whole program, as a campaign reports them, next to other counts.

python benchmarks/beyond_times.py OUT [--part memory|e2e] [--turns N] [--dry]

memory: five kernels become leaner in round 2. What a call holds is counted again in a process of
its own, from the record of every allocation of a GPU. It takes a minute.

e2e: four kernels of a small model become faster in round 2, and the final round runs the model in
turns with both versions. A turn is four processes, and most of their time is the import of torch:
a plugin of this script's ends the runs after N turns, 3 by default, where kopt goes on up to 6. The
interval is that of so many turns. It takes about a minute and a half.

Without --part both run. A part writes OUT/beyond_times_PART.json and .md, after every round. --dry
runs it on the CPU, with small tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_report import ROOT, Report, start
from gpu_report import machine as this_machine

CAMPAIGN = "beyond"
#: Begins a line with what a run of the model took.
RUN = "run of the model, ms a step: "
#: The kernels that the model calls.
OF_THE_MODEL = ("norm", "shares", "gated", "product")
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
@pytest.mark.parametrize("name", {names!r} or OPS)
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
#: Prints the milliseconds of a step, the median of many.
MODEL = """\
import statistics
import sys
import time

import torch

sys.path.insert(0, ".")
from kernels import ops

DEVICE, N = "{device}", {size}
torch.set_num_threads(1)
x = torch.randn(N, N, device=DEVICE)
layers = [(torch.randn(N, 2 * N, device=DEVICE), torch.randn(N, N, device=DEVICE),
           torch.ones(N, device=DEVICE)) for _ in range(4)]


def step(x):
    for up, down, weight in layers:
        x = x + ops.product(ops.gated(ops.norm(x, weight) @ up / N**0.5), down) / N**0.5
    return ops.shares(x)


def seconds():
    start = time.perf_counter()
    step(x)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


for _ in range(5):
    seconds()
print(1000 * statistics.median(seconds() for _ in range(100)))
"""
#: The plugin that says how far the runs of the model are, and when they end.
TURNS = """\
from pytest_kopt.trials import end_to_end

assert end_to_end._LEAST <= {turns} <= end_to_end._MOST
end_to_end._MOST = {turns}
run = end_to_end.InBoth._run


def shown(both, tree):
    figure = run(both, tree)
    print(f"\\n{run_text}{{figure:.4g}}", flush=True)
    return figure


end_to_end.InBoth._run = shown
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


class Project:
    """A project in a folder, whose campaign turns lavish kernels into lean ones."""

    def __init__(self, root: Path, report: Report, device: str, size: int, plugin: str) -> None:
        self._root = root
        self._report = report
        self._device = device
        self._size = size
        # In every round: files of the harness are those of round 1.
        self._plugins = {"PYTEST_PLUGINS": "shown"} if plugin else {}
        self.write({"shown.py": plugin})
        self._stages: dict[str, float] = {}

    def write(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            (self._root / path).parent.mkdir(parents=True, exist_ok=True)
            (self._root / path).write_text(text)

    def begin(self, *options: str, names: Sequence[str] = ()) -> None:
        """Set up the campaign with cases of these kernels, of all by default; run the baseline."""
        cases = CASES.format(size=self._size, names=names)
        kernels = {"kernels/__init__.py": "", "kernels/ops.py": BEFORE}
        self.write({"pyproject.toml": SETTINGS, "tests/test_ops.py": cases, **kernels})
        gpus = this_machine()["gpus"]
        target = "cpu" if self._device == "cpu" else "H200" if "H200" in gpus[0] else "H100"
        words = ["init", CAMPAIGN, "--op", "ops", "--backend", "TORCH", "--gpu", target]
        words += ["--kernel", "kernels/ops.py", "--metric", "Forward GB/s", *options]
        init = [sys.executable, "-m", "pytest_kopt.cli", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(init, cwd=self._root, check=True, env=env, stdout=subprocess.DEVNULL)
        self.verdict("1", place="rounds/round-1")

    def counted(self) -> dict[str, int]:
        """Return the other count of the kernels as they are, {} on the CPU."""
        words = [sys.executable, "count.py"]
        done = subprocess.run(words, cwd=self._root, capture_output=True, text=True, check=True)
        found: dict[str, int] = json.loads(done.stdout or "{}")
        return found

    def verdict(self, number: str, *, place: str) -> dict[str, Any]:
        """Run a round of the campaign and return its newest verdict below `place`, or stop."""
        print(f"round {number} ...", flush=True)
        begun, lines = time.perf_counter(), []
        words = ("-s", "--kopt-campaign", CAMPAIGN, "--kopt-round", number)
        process = start(self._root, *words, "--kopt-device", self._device, **self._plugins)
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith(RUN):
                print(line, end="", flush=True)
        code = process.wait()
        files = sorted((self._root / "agent/workspace" / CAMPAIGN).glob(f"{place}/verdict.json"))
        if code or not files:
            raise SystemExit(f"round {number} ended with {code}\n{''.join(lines)[-3000:]}")
        self._stages[number] = round(time.perf_counter() - begun, 1)
        print(f"round {number}: {self._stages[number]} s", flush=True)
        self._report.add("seconds of rounds", self._stages)
        runs = [float(line.removeprefix(RUN)) for line in lines if line.startswith(RUN)]
        if runs:
            self._report.add("runs of the model, ms a step", runs)
        found: dict[str, Any] = json.loads(files[-1].read_text())
        return found


def memory(root: Path, report: Report, device: str) -> None:
    """Compare what a verdict says that calls hold with the other count."""
    size = 256 if device == "cpu" else 4096
    project = Project(root, report, device, size, plugin="")
    project.write({"count.py": COUNT.format(device=device)})
    project.begin()
    before = project.counted()
    project.write({"kernels/ops.py": AFTER})
    after = project.counted()
    rows = [
        {
            "case": case["label"],
            "before, MiB": case["memory"]["incumbent_bytes"] / 2**20,
            "counted": before.get(name, float("nan")) / 2**20,
            "after, MiB": case["memory"]["candidate_bytes"] / 2**20,
            "counted after": after.get(name, float("nan")) / 2**20,
            "first call, ms": case["first_call_ms"]["candidate"],
        }
        for case in project.verdict("2", place="rounds/round-2")["shapes"]
        for name in [case["dims"]["op"]]
    ]
    report.add("memory", rows)
    report.table("memory", rows)


def e2e(root: Path, report: Report, device: str, turns: int) -> None:
    """Compare what the kernels gain with what a model gains by them."""
    size = 128 if device == "cpu" else 2048
    plugin = TURNS.format(turns=turns, run_text=RUN)
    project = Project(root, report, device, size, plugin)
    project.write({"model.py": MODEL.format(device=device, size=size)})
    project.begin("--e2e", f"{sys.executable} model.py", names=OF_THE_MODEL)
    project.write({"kernels/ops.py": AFTER})
    project.verdict("2", place="rounds/round-2")
    final = project.verdict("final", place="final/attempt-*")
    if not final["e2e"]:
        raise SystemExit(f"no figure of the model: {final['reason']} {final['flags']}")
    keys = ("change_pct", "low_pct", "high_pct", "confidence")
    rows = [
        {"what": what, **{key: final[part][key] for key in keys}}
        for what, part in (("kernels", "aggregate"), ("model", "e2e"))
    ]
    report.add("end to end", rows)
    report.table("end to end", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", choices=("memory", "e2e"))
    parser.add_argument("--turns", type=int, default=3, choices=range(3, 7))
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    device = "cpu" if asked.dry else "cuda"
    for part in [asked.part] if asked.part else ["memory", "e2e"]:
        report = Report(asked.out, f"beyond_times_{part}")
        with tempfile.TemporaryDirectory() as directory:
            if part == "memory":
                memory(Path(directory), report, device)
            else:
                e2e(Path(directory), report, device, asked.turns)


if __name__ == "__main__":
    main()
