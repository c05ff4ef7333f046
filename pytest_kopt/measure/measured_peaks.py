"""Measuring what a device can reach: copying, multiplying, launching. Our own code, no kernel's."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from pytest_kopt.clock import now
from pytest_kopt.devices.lock import timing_lock
from pytest_kopt.devices.machine import device_model
from pytest_kopt.devices.pinning import discover, in_use
from pytest_kopt.errors import BadInput
from pytest_kopt.knowledge.facts import Copied, MeasuredCeiling, Multiplied
from pytest_kopt.measure.choice import prepare
from pytest_kopt.measure.engine import Call
from pytest_kopt.measure.wall import WallEngine, one_thread

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
#: Bytes of one buffer. A copy of `_BEYOND` and more is beyond every cache.
_COPIES = {
    "cpu": [64 * _KIB, _MIB, 16 * _MIB, 256 * _MIB],
    "cuda": [16 * _MIB, 64 * _MIB, 256 * _MIB, _GIB, 2 * _GIB, 4 * _GIB],
}
_BEYOND = {"cpu": 256 * _MIB, "cuda": _GIB}
_SIZES = {"cpu": [512, 1024], "cuda": [4096, 8192]}
_DTYPES = {
    "cpu": ["float32", "float64", "bfloat16"],
    "cuda": ["bfloat16", "float16", "float32", "tf32", "float64", "float8", "int8"],
}
#: A CPU's product is measured where it lasts long enough; a block there is short.
_CPU = WallEngine(iterations=10, block_seconds=0.05)
_BLOCKS, _PAUSE_SECONDS = 15, 0.02


def measure_ceilings(device: str) -> MeasuredCeiling:
    """Return this device's ceilings; BadInput when even the smallest big copy does not fit.

    Copy bandwidth counts read and written bytes. Matrix rates are of C = A·B with A and B drawn at
    random (constant operands toggle fewer bits and run faster than any real product).
    """
    with one_thread(), timing_lock(in_use(discover(device)).uuid):
        free = math.inf if device == "cpu" else 0.8 * torch.cuda.mem_get_info()[0]
        sweep = [_copied(device, size) for size in _COPIES[device] if 2 * size < free]
        beyond = [point.tb_per_s for point in sweep if point.nbytes >= _BEYOND[device]]
        if not beyond:
            raise BadInput(
                "too little memory is free",
                where="kopt calibrate",
                fix=f"free {2 * _BEYOND[device]} bytes on the device",
            )
        rates, skipped = _matrix_rates(device)
        return MeasuredCeiling(
            device=device_model(device),
            kind="cpu" if device == "cpu" else "gpu",
            measured=now(),
            versions=_versions(),
            copy_tb_per_s=max(beyond),
            sweep=sweep,
            matrix=rates,
            launch_us=_launches(device),
            skipped=skipped,
        )


def _copied(device: str, size: int) -> Copied:
    """Copy `size` bytes; the faster of a copy engine's or library's way and a kernel's counts."""
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device).view(torch.float32)
    target = torch.empty_like(source)
    ways: tuple[Call, ...] = (
        lambda: target.copy_(source),
        lambda: torch.neg(source, out=target),
    )
    milliseconds = min(_best(device, way) for way in ways)
    return Copied(nbytes=size, tb_per_s=2 * size / (milliseconds * 1e9))


def _matrix_rates(device: str) -> tuple[dict[str, Multiplied], dict[str, str]]:
    rates: dict[str, Multiplied] = {}
    skipped = {}
    for dtype_name in _DTYPES[device]:
        name = dtype_name
        if name == "float8":
            architecture = getattr(torch.cuda.get_device_properties(0), "gcnArchName", "")
            name += "_e4m3fnuz" if architecture.startswith("gfx942") else "_e4m3fn"
        try:
            by_size = [_multiplied(device, name, size) for size in _SIZES[device]]
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            # What this build or this device has no product for is left UNKNOWN.
            skipped[name] = str(error).strip().splitlines()[0][:200]
            continue
        rates[name] = max(by_size, key=lambda point: point.tflops)
    return rates, skipped


def _multiplied(device: str, dtype: str, size: int) -> Multiplied:
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    try:
        call = _product(device, dtype, size)
        milliseconds = _best(device, call)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return Multiplied(tflops=2 * size**3 / (milliseconds * 1e9), size=size)


def _product(device: str, dtype: str, size: int) -> Call:
    if dtype == "int8":
        a, b = (
            torch.randint(-128, 128, (size, size), dtype=torch.int8, device=device)
            for _ in range(2)
        )
        # The tensor cores' integer product wants its second operand by columns.
        return lambda: torch._int_mm(a, b.t())
    x, y = (torch.randn(size, size, device=device) for _ in range(2))
    if dtype.startswith("float8"):
        kind: torch.dtype = getattr(torch, dtype)
        left, right = x.to(kind), y.to(kind).t()
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(
            left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    m, n = x.to(kind), y.to(kind)
    return lambda: torch.mm(m, n)


def _launches(device: str) -> dict[str, float]:
    """Return microseconds per launch of next to nothing, by timing engine."""
    x = torch.zeros(1, device=device)

    def call() -> object:
        return x.add_(1)

    if device == "cpu":
        return {"wall": _CPU.prepare([call]).run() * 1e3}
    graph, queue = (prepare(name, device, False, [call] * 100) for name in ("graph", "events"))
    eager = prepare("wall", device, False, [call])
    return {
        name: statistics.median(block.run() for _ in range(_BLOCKS)) * 1e3
        for name, block in (("graph", graph), ("events", queue), ("wall", eager))
    }


def _best(device: str, call: Callable[[], object]) -> float:
    """Return ms per call in the fastest of short blocks, with pauses, as cases are timed.

    Under a load of seconds a power limit lowers the clocks, and a case would pass such a ceiling.
    """
    block = _CPU.prepare([call]) if device == "cpu" else prepare("auto", device, False, [call])
    rates = []
    for _ in range(_BLOCKS if device != "cpu" else 3):
        rates.append(block.run())
        time.sleep(_PAUSE_SECONDS)
    return min(rates)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "pytest-kopt"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.version.hip:
        versions["hip"] = torch.version.hip
    return versions
