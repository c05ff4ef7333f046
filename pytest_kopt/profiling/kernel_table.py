"""One table whatever the tool: kernels of a case with their mean time and what they occupy.

The launches of torch.profiler come from the trace that it exports (Chrome's format, by Kineto).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: What a launch occupies, of which a row has the most.
OCCUPIED = ("registers", "accum_registers", "scalar_registers", "shared_bytes")
TOOL = "torch.profiler"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Launches of one kernel: how many, their mean in microseconds, what they occupy.

    Registers are 32-bit registers of a thread (the architectural VGPRs of a lane on AMD, with
    accumulation and scalar registers apart); `shared_bytes` is shared memory or LDS of a block.
    None where the tool does not tell.
    """

    kernel: str
    calls: int
    mean_us: float
    registers: int | None = None
    accum_registers: int | None = None
    scalar_registers: int | None = None
    shared_bytes: int | None = None
    occupancy_pct: float | None = None

    @property
    def total_us(self) -> float:
        return self.calls * self.mean_us


@dataclass(frozen=True, slots=True)
class CaseProfile:
    """The profile of a case by one tool in `steps` steps (a forward, and a backward if it has one).

    `on` says whose time it is: a GPU's kernels or, where there is none, a CPU's operators. `note`
    says why there are no rows.
    """

    nodeid: str
    label: str
    tool: str
    on: str
    steps: int
    rows: tuple[KernelRow, ...]
    note: str = ""

    @property
    def hottest(self) -> KernelRow | None:
        """The kernel with the largest share of the time."""
        return self.rows[0] if self.rows else None

    @property
    def step_us(self) -> float:
        """Time of all kernels of one step."""
        return sum(row.total_us for row in self.rows) / self.steps

    def share_pct(self, row: KernelRow) -> float:
        return row.total_us / (self.step_us * self.steps) * 100


def gpu_step_us(profiles: Iterable[CaseProfile]) -> dict[str, float]:
    """Return each case's GPU time of a step by node id, in microseconds."""
    by_label: dict[str, float] = {}
    for profile in profiles:  # torch's profiler comes first, a vendor's tool after it
        if profile.on == "gpu" and profile.step_us > 0:
            by_label.setdefault(profile.nodeid, profile.step_us)
    return by_label


def number(cell: object) -> float | None:
    """Return what a tool tells as a number; thousands may be set apart by commas."""
    try:
        return float(str(cell).replace(",", ""))
    except ValueError:
        return None


def whole(cell: object) -> int | None:
    """Return the same as a whole number."""
    value = number(cell)
    return None if value is None else int(value)


def rows_of(launches: Iterable[KernelRow]) -> tuple[KernelRow, ...]:
    """Group launches by kernel, the one with the most time first."""
    groups: dict[str, list[KernelRow]] = {}
    for launch in launches:
        groups.setdefault(launch.kernel, []).append(launch)
    rows = [_row(kernel, group) for kernel, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: -row.total_us))


def _row(kernel: str, group: list[KernelRow]) -> KernelRow:
    def told(name: str) -> list[Any]:
        return [value for launch in group if (value := getattr(launch, name)) is not None]

    occupancies = told("occupancy_pct")
    return KernelRow(
        kernel=kernel,
        calls=len(group),
        mean_us=statistics.fmean(told("mean_us")),
        **{name: max(told(name), default=None) for name in OCCUPIED},
        occupancy_pct=statistics.fmean(occupancies) if occupancies else None,
    )


def launches(trace: Mapping[str, Any]) -> list[KernelRow]:
    """Return what ran on the device, in order; what it occupies is told on NVIDIA only."""
    on_device = []
    for event in trace.get("traceEvents", ()):
        if event.get("ph") != "X" or event.get("cat") not in _ON_DEVICE:
            continue
        details = event.get("args", {})
        on_device.append(
            KernelRow(
                kernel=str(event["name"]),
                calls=1,
                mean_us=float(event["dur"]),
                registers=whole(details.get("registers per thread")),
                shared_bytes=whole(details.get("shared memory")),
                occupancy_pct=number(details.get("est. achieved occupancy %")),
            )
        )
    return on_device
