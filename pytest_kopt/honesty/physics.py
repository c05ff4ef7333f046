"""The least time that a call can take: to write its output, and to compute its products.

The ceilings are the best that this device was seen to do on the spot, with a margin that no better
kernel makes up; only bytes and FLOPs that nobody can save are counted.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch

from pytest_kopt.honesty.finding import Finding

#: How much faster than its best copy or product a device might be.
_MARGIN = 4.0
#: Copies within a processor's caches, and one that outweighs a launch.
_COPY_BYTES = {"cpu": (1 << 15, 1 << 20), "cuda": (1 << 25,)}
_SIDE = {"cpu": 256, "cuda": 4096}
_SECONDS, _AGAIN = 0.004, 10


@dataclass(frozen=True, slots=True)
class PhysicalLimits:
    """Bytes written and FLOPs per second that nothing on a device exceeds; 0 where not known."""

    bytes_per_s: float
    flops_per_s: float


def floor_ms(nbytes: float, flops: float, ceilings: PhysicalLimits) -> float:
    """Return the least time in ms of a call that writes `nbytes` and computes `flops`."""
    written = nbytes / ceilings.bytes_per_s if ceilings.bytes_per_s else 0.0
    computed = flops / ceilings.flops_per_s if ceilings.flops_per_s else 0.0
    return 1e3 * max(written, computed)


def written_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that tensors occupy; one that is there twice, or an element, counts once."""
    sizes = {}
    for tensor in tensors:
        # An expanded dim (stride 0) is one element in memory.
        extents = [
            n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or n == 0
        ]
        sizes[tensor.data_ptr(), tensor.shape] = math.prod(extents) * tensor.element_size()
    return sum(sizes.values())


def too_fast(ms: float, nbytes: float, flops: float, device: str) -> Iterator[Finding]:
    """Say when a call took less time than its output or its product can take."""
    least = floor_ms(nbytes, flops, ceilings(device))
    # A busy host shows less than the device can do: it is looked at again before anything is said.
    for _ in range(_AGAIN if ms < least else 0):
        least = min(least, floor_ms(nbytes, flops, _measured(device)))
    if ms < least:
        yield Finding(
            "faster-than-physics",
            f"a call took {ms:.6g} ms; this device needs {least:.6g} ms at least for {nbytes:.4g} "
            f"bytes of output and {flops:.4g} FLOPs",
            advice="do all the work within the timed call",
        )


def _measured(device: str) -> PhysicalLimits:
    """Measure a device's ceilings: the best of a few copies, and of a product.

    On the CPU one thread's rate counts for every core. A product in a narrower dtype may be far
    faster, so the FLOPs of a GPU are those of bfloat16.
    """
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    workers = 1 if device == "cuda" else os.cpu_count() or 1
    rates = []
    for size in _COPY_BYTES[device]:
        source = torch.ones(size // 4, device=device)
        target = torch.empty_like(source)
        rates.append(size / _best(functools.partial(target.copy_, source), synchronize))
    side = _SIDE[device]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    left = torch.ones(side, side, device=device, dtype=dtype)
    product = 2 * side**3 / _best(functools.partial(torch.matmul, left, left), synchronize)
    return PhysicalLimits(_MARGIN * workers * max(rates), _MARGIN * workers * product)


#: A device's ceilings, measured once in a process.
ceilings = functools.cache(_measured)


def _best(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Return the shortest of the times in seconds of a call, tried for a few milliseconds."""
    call()
    synchronize()
    best, begun = float("inf"), perf_counter()
    while perf_counter() - begun < _SECONDS:
        start = perf_counter()
        call()
        synchronize()
        best = min(best, perf_counter() - start)
    return best
