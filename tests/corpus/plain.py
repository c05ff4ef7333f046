"""The harness everyone writes: run once, allclose, warm up, time the same inputs in a loop.

    python plain.py KERNEL.py [KERNEL.py ...]

Every kernel gets a process of its own, forked from one that has imported nothing but torch and
this folder. What it prints is believed, and so is its exit status: that is how naive it is.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import ModuleType

import torch

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from ops import OPS, Op  # noqa: E402

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
WARMUP, SAMPLES = 3, 9


def load(path: Path) -> ModuleType:
    """Import a kernel file the way a test would, under its own name, beside its helpers."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def close(actual, expected, dtype):
    limit = TOLERANCE[dtype]
    a, b = actual.double(), expected.double()
    return torch.allclose(a, b, rtol=limit, atol=limit, equal_nan=True)


def step(op: Op, kernel, inputs, grad):
    """One call, with its backward where the operation has one; returns what is to be checked."""
    out = kernel(*inputs)
    if not op.backward:
        return (out,)
    return (out, *torch.autograd.grad(out, inputs, grad))


def check(op: Op, kernel, inputs, grad, device):
    actual = step(op, kernel, inputs, grad)
    synchronize(device)
    wide = None if grad is None else grad.double()
    expected = step(op, op.reference, inputs, wide)
    return all(close(a, e, a.dtype) for a, e in zip(actual, expected, strict=True))


def time_it(op: Op, kernel, inputs, grad, device):
    """Median milliseconds of a call, and the last output."""
    for _ in range(WARMUP):
        out = step(op, kernel, inputs, grad)
    synchronize(device)
    samples: list[float] = []
    gc.disable()
    for _ in range(SAMPLES):
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            out = step(op, kernel, inputs, grad)
            end.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(end))
        else:
            begin = time.perf_counter()
            out = step(op, kernel, inputs, grad)
            samples.append((time.perf_counter() - begin) * 1e3)
    gc.enable()
    return statistics.median(samples), out


def run(op: Op, kernel, baseline, dims, device="cpu", seed=0):
    """Milliseconds of both, and whether the kernel's answer was right."""
    torch.manual_seed(seed)
    inputs = op.make_inputs(dims, device)
    grad = torch.ones_like(op.reference(*inputs), dtype=inputs[0].dtype) if op.backward else None
    grad = None if grad is None else grad.detach() * 0.5
    baseline_ms, seen = time_it(op, baseline, inputs, grad, device)
    ok = check(op, kernel, inputs, grad, device)
    ms, out = time_it(op, kernel, inputs, grad, device)
    same_shape = [tuple(t.shape) for t in out] == [tuple(t.shape) for t in seen]
    return {"ok": bool(ok and same_shape), "baseline_ms": baseline_ms, "ms": ms}


def judge(path: Path, device: str) -> int:
    """Measure one kernel file over all shapes; 0 when every answer was right."""
    op = OPS[path.stem.split("__")[0]]
    baseline = getattr(load(HERE / "baseline" / f"{op.name}.py"), op.name)
    module = load(path)
    kernel = getattr(module, op.name)
    interpreted = getattr(module, "LANG", "torch") == "triton"
    on_cpu = op.tiny_shapes if interpreted else op.shapes
    rows = []
    for dims in on_cpu if device == "cpu" else op.gpu_shapes:
        row = {"kernel": path.stem, **dims, **run(op, kernel, baseline, dims, device)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return 0 if all(row["ok"] for row in rows) else 1


def _leave(status: int) -> None:
    """What the interpreter does at its end, without the half second of taking torch down."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


def main(argv: list[str]) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    if len(argv) == 1:
        path = Path(argv[0]).resolve()
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            return judge(path, device)
    if device == "cuda":
        raise SystemExit("one kernel per process on cuda: a context does not survive fork")
    for name in argv:
        sys.stdout.flush()
        with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as log:
            child = os.fork()
            if child == 0:
                os.chdir(scratch)
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                sys.argv = [sys.argv[0], name]
                try:
                    status = judge(Path(name).resolve(), device)
                except Exception:
                    traceback.print_exc()
                    status = 2
                _leave(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            log.seek(0)
            print(json.dumps({"file": name, "exit": status, "log": log.read()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
