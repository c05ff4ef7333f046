"""Launches out of the trace that torch.profiler exports (Chrome's trace format, by Kineto)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_kopt.profiling.kernel_table import KernelLaunch, number, whole

TOOL = "torch.profiler"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def launches(trace: Mapping[str, Any]) -> list[KernelLaunch]:
    """Return what ran on the device, in order; what it occupies is told on NVIDIA only."""
    on_device = []
    for event in trace.get("traceEvents", ()):
        if event.get("ph") != "X" or event.get("cat") not in _ON_DEVICE:
            continue
        details = event.get("args", {})
        on_device.append(
            KernelLaunch(
                kernel=str(event["name"]),
                duration_us=float(event["dur"]),
                registers=whole(details.get("registers per thread")),
                shared_bytes=whole(details.get("shared memory")),
                occupancy_pct=number(details.get("est. achieved occupancy %")),
            )
        )
    return on_device
