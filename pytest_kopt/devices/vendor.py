"""The common part of the vendors' tools: a device, its state, and how to ask. All only read."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Literal, Protocol

#: Filters of what a process sees, applied one after the other, each by the first of its variables
#: that is set; an index in a later one counts what the earlier ones left.
Stages = tuple[tuple[str, ...], ...]
#: Reasons to run below the highest clock that are no sign of trouble: nothing to do, or told to.
HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting"})


@dataclass(frozen=True, slots=True)
class Device:
    """One device; `index` is its place in the vendor's order (a MIG instance has its GPU's).

    `uuid` is what the vendor's runtime takes in its visibility variable, `architecture` sm_90,
    gfx942 and the like, `pci` the bus id.
    """

    uuid: str
    index: int
    name: str
    architecture: str
    pci: str = ""
    kind: Literal["cpu", "cuda"] = "cuda"


CPU = Device("cpu", 0, platform.processor() or platform.machine(), platform.machine(), kind="cpu")


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a device at one moment; None where its vendor does not say.

    Memory in MiB, utilisation in %, clocks in MHz, temperature in degrees Celsius, power in W.
    `processes` are the pids that compute on it, as the vendor sees them. `throttle` names why the
    clock is below its highest.
    """

    memory_mib: float | None = None
    utilisation_pct: float | None = None
    processes: tuple[int, ...] | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] = ()

    @property
    def throttled(self) -> tuple[str, ...]:
        """The reasons in `throttle` that mean the device could not do its best."""
        return tuple(reason for reason in self.throttle if reason not in HARMLESS)


class Vendor(Protocol):
    """A vendor's tool on this host."""

    name: str
    #: How the vendor's runtime is told which devices it may see.
    stages: Stages

    def devices(self) -> list[Device]:
        """Return every device of the host, whatever the caller's masks hide."""

    def read(self, device: Device) -> Reading:
        """Return the device's state now."""
