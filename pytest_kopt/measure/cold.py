"""Inputs that are not in the cache when their call is timed, and the stream calls are made on."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_kopt.numerics.nested import tensors

#: Sets a pool has at most; a graph of so many launches is still captured in a moment.
MOST_SETS = 512
#: One round of calls shall not last much longer than this, or a block would.
ROUND_MS = 5.0
_SPIN_CYCLES = 2_000_000
#: What has to be touched between two uses of a set, in caches that all units share.
CACHES = 2
_MIB = 1 << 20
#: cudaLimitPersistingL2CacheSize in the CUDA runtime's cudaLimit.
_PERSISTING_L2 = 6


@dataclass(frozen=True, slots=True)
class InputPool:
    """Sets of arguments to go round, in bytes.

    In one that `is_warm` all sets are the same arguments, and nothing is flushed.
    """

    sets: list[tuple[Any, ...]]
    set_bytes: int
    cache_bytes: int
    is_warm: bool = False

    def flush(self, *, is_written_to: bool = False) -> Callable[[], object] | None:
        """Return what clears the cache, None where a round of sets fills it and nobody writes."""
        size = CACHES * self.cache_bytes
        if self.is_warm or not size:
            return None
        is_filled = len(self.sets) * self.set_bytes >= size and not is_written_to
        return None if is_filled else flusher(size)


def warm_pool(arguments: tuple[Any, ...], *calls: Callable[..., object]) -> InputPool:
    """Return a GPU's pool whose calls find their arguments, and room for results, in the cache.

    A round has as many calls as find room there with results of their own, one at least.
    """
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    size, results = _bytes_of(arguments), max(_bytes_of(call(*arguments)) for call in calls)
    room = max(1, min(MOST_SETS, (cache // CACHES - size) // max(results, 1)))
    slowest = max(_call_ms(call, arguments, arguments) for call in calls)
    count = min(room, math.ceil(ROUND_MS / slowest))
    return InputPool([arguments] * count, size, cache, is_warm=True)


def _bytes_of(values: Any) -> int:
    return sum(x.numel() * x.element_size() for x in tensors(values))


def largest_cache_bytes() -> int:
    """Return the size of the largest cache that all units of the GPU share.

    An MI300X says 4 MiB, the L2 of one of its dies. Its Infinity Cache of 256 MiB, which it does
    not name, would keep all inputs.
    """
    properties = torch.cuda.get_device_properties(0)
    architecture = getattr(properties, "gcnArchName", "").partition(":")[0]
    if not architecture:
        return int(properties.L2_cache_size)
    # A process that runs cases loads the tables only where they say what torch does not.
    from pytest_kopt.knowledge.facts import fact_of

    behind_l2 = fact_of("infinity_cache", architecture).value
    return max(int(properties.L2_cache_size), int((behind_l2 or 0) * _MIB))


def input_pool(
    make: Callable[[int], tuple[Any, ...]], device: str, *calls: Callable[..., object]
) -> InputPool:
    """Return enough input sets to go round at least twice the largest cache; one on the CPU.

    `make(i)` returns the i-th set. On a GPU they are two at least, and no more than calls fit into
    a block, by the slowest of `calls`: a graph of many launches would take minutes.
    """
    first = make(0)
    size = _bytes_of(first)
    if device == "cpu":
        return InputPool([first], size, 0)
    cache = largest_cache_bytes()
    sets = max(2, math.ceil(CACHES * cache / max(size, 1)))
    if sets > 2:
        slowest = max(_call_ms(call, make(0), make(1)) for call in calls)
        sets = max(2, min(MOST_SETS, sets, math.ceil(ROUND_MS / slowest)))
    return InputPool([first, *(make(i) for i in range(1, sets))], size, cache)


def _call_ms(call: Callable[..., object], first: tuple[Any, ...], inputs: tuple[Any, ...]) -> float:
    """Return about how long a compiled call keeps the device busy; it may write to its inputs."""
    call(*first)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The launch itself shall not count, or a small kernel would look like a long one.
    torch.cuda._sleep(_SPIN_CYCLES)
    start.record()
    call(*inputs)
    end.record()
    end.synchronize()
    return max(1e-3, float(start.elapsed_time(end)))


@contextmanager
def launch_stream(device: str) -> Iterator[None]:
    """Make GPU calls on the stream that graphs are captured on; nothing on the CPU."""
    if device == "cpu":
        yield
        return
    stream = capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@functools.cache
def capture_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


@functools.cache
def flusher(size: int) -> Callable[[], object]:
    buffer = torch.empty(size, dtype=torch.int8, device="cuda")
    return buffer.zero_


def forbid_persisting_lines() -> None:
    """Leave no part of the L2 cache to lines that stay when others are read.

    Flushing and going round many sets would leave a kernel's inputs there. A kernel may have asked
    for it; nothing is done where the runtime (HIP's, say) has no such limit.
    """
    if library := _cuda_runtime():
        library.cudaCtxResetPersistingL2Cache()
        library.cudaDeviceSetLimit(_PERSISTING_L2, ctypes.c_size_t(0))


@functools.cache
def _cuda_runtime() -> ctypes.CDLL | None:
    """Return the very runtime library that torch has loaded; torch does not offer such limits."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []
    name = next((line.split()[-1] for line in lines if "libcudart" in line), None)
    return None if name is None else ctypes.CDLL(name)
