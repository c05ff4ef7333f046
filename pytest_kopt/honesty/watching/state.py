"""State of the process that a kernel must not change: collector, hooks, modes, defaults.

Taken as plain values, so that two looks can be compared; a change is named with both values.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_kopt.honesty.finding import Finding

State = Mapping[str, object]

_SETTINGS = ("PYTEST_", "KOPT_")
_PLAIN = (bool, int, float, str, tuple, type(None))
#: Changes with every test.
_CURRENT = "PYTEST_CURRENT_TEST"
_DENORMALS = "torch flushes denormals"
_THREADS, _PROFILER = "torch threads", "torch profiler"
#: cudaLimitPersistingL2CacheSize in the CUDA runtime's cudaLimit.
_PERSISTING_L2 = 6
_REAL = ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "CompositeExplicitAutograd", "HIP")


def look(device: str = "cpu") -> State:
    """Return the state of this process as it is now; torch's part where torch is loaded.

    A look at "cuda" initialises it.
    """
    timers = Path("/proc/self/timers")
    found: dict[str, object] = {
        "gc enabled": gc.isenabled(),
        "gc thresholds": gc.get_threshold(),
        "gc frozen": was_frozen() or gc.get_freeze_count() > 0,
        "switch interval": sys.getswitchinterval(),
        "trace function": sys.gettrace(),
        "profile function": sys.getprofile(),
        "profile function of new threads": threading.getprofile(),
        "stdout": sys.stdout,
        "stderr": sys.stderr,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "interval timer": signal.getitimer(signal.ITIMER_REAL)[1],
        "scheduling class": getattr(os, "sched_getscheduler", int)(0),
        "timers": timers.read_text().count("ID:") if timers.exists() else 0,
    }
    for name, value in os.environ.items():
        if name.startswith(_SETTINGS) and name != _CURRENT:
            found[f"environment {name}"] = value
    return found | _torch_state() | (_cuda_state() if device == "cuda" else {})


def changes(before: State, after: State) -> Iterator[Finding]:
    """Say when something in the state is not as it was."""
    # torch's part appears when torch is loaded; variables may come and go.
    names = [n for n in {**before, **after} if (n in before and n in after) or "environment" in n]
    different = [
        f"{name} was {_shown(before.get(name))}, is {_shown(after.get(name))}"
        for name in names
        if name not in (_DENORMALS, _THREADS, _PROFILER)
        and not _equal(before.get(name), after.get(name))
    ]
    if different:
        advice = "a kernel must leave the interpreter and torch as they were"
        yield Finding("process-state", "; ".join(different), advice=advice)
    if after.get(_DENORMALS) and before.get(_DENORMALS) is False:
        # Both versions are timed with it.
        yield Finding(
            "denormals",
            "denormal numbers are zero in this process since the kernel was loaded",
            advice="a library built with -ffast-math or -Ofast does that: link it without",
        )


def taken_threads(threads: int, threads_now: object) -> Iterator[Finding]:
    """Say when torch's number of threads is not the one that was set for timing."""
    if threads_now != threads:
        yield Finding(
            "thread-count",
            f"the kernel set torch's threads from {threads} to {threads_now}",
            advice="cases are timed with the threads that the harness sets, for every version",
        )


def left_threads(before: State, after: State) -> Iterator[Finding]:
    """Say when calls leave torch with another number of threads than they found.

    Whatever uses OpenMP shares this number with torch.
    """
    threads: Any = before[_THREADS]
    advice = f"set it back before returning: torch.set_num_threads({threads})"
    for found in taken_threads(threads, after[_THREADS]):
        yield replace(found, check="threads-left", advice=advice, rejects=False)


def left_profiler(before: State, after: State) -> list[Finding]:
    """Return a finding when calls leave torch's profiler on: it slows whatever runs then."""
    if before[_PROFILER] or not after[_PROFILER]:
        return []
    said, advice = "the kernel leaves torch's profiler on", "stop it before returning, or leave it"
    return [Finding("profiler-left", said, advice=f"{advice} to the harness", rejects=False)]


@functools.cache
def was_frozen() -> bool:
    """Whether what was imported first was frozen; a count walks all of it, forks know already."""
    return gc.get_freeze_count() > 0


def _torch_state() -> dict[str, object]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_dtype"):
        return {}
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    # set_default_device works by a mode of torch's own.
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    foreign = [mode for mode in modes if not type(mode).__module__.startswith("torch.")]
    smallest = torch.full((1,), 2e-310, dtype=torch.float64)
    return {
        "torch default dtype": torch.get_default_dtype(),
        "torch modes": tuple(type(mode).__qualname__ for mode in foreign),
        _DENORMALS: float(smallest * 0.5) == 0.0,
        _THREADS: torch.get_num_threads(),
        _PROFILER: torch._C._autograd._profiler_enabled(),
        "torch registrations": _registrations(torch),
    }


def _cuda_state() -> dict[str, object]:
    import torch

    torch.cuda.init()
    return {
        "current stream": torch.cuda.current_stream().cuda_stream,
        "persisting part of the L2 cache": _persisting_l2_bytes(),
    }


def _persisting_l2_bytes() -> int | None:
    """Return cudaLimitPersistingL2CacheSize; None where the runtime (HIP's, say) has no such limit.

    Asked of the very runtime library that torch has loaded: torch itself does not offer it.
    """
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    library = next((line.split()[-1] for line in lines if "libcudart" in line), None)
    if library is None:
        return None
    size = ctypes.c_size_t()
    status = ctypes.CDLL(library).cudaDeviceGetLimit(ctypes.byref(size), _PERSISTING_L2)
    return None if status else size.value


def _registrations(torch: Any) -> tuple[str, ...]:
    """Return the kernels that Python code registered in place of those of torch's operators.

    They run in whatever else runs here: in the incumbent, and where content is written.
    """
    found = []
    for key in getattr(torch.library, "_impls", ()):
        library, _, rest = key.partition("/")
        operator, _, place = rest.rpartition("/")
        if library == "aten" and place in _REAL:
            known = torch._C._dispatch_dump(f"aten::{operator}")
            found += [key] if f"\n{place} (inactive)" in known else []
    return tuple(sorted(found))


def _equal(one: object, other: object) -> bool:
    return one == other if isinstance(one, _PLAIN) else one is other


def _shown(value: object) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    kind = type(value)
    return str(value) if kind.__module__ == "torch" else f"{kind.__module__}.{kind.__qualname__}"
