"""The one interface to the vendors' tools: which devices there are, and the state each is in.

Everything here reads. No vendor's module offers a way to change a setting of a card.
"""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from pytest_kopt.devices.masks import Stages

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

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, without what is unknown."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found | {"throttle": list(self.throttle)}


class Vendor(Protocol):
    """A vendor's tool on this host."""

    name: str
    #: How the vendor's runtime is told which devices it may see.
    stages: Stages

    def devices(self) -> list[Device]:
        """Return every device of the host, whatever the caller's masks hide."""

    def read(self, device: Device) -> Reading:
        """Return the device's state now."""


def find_vendor() -> Vendor | None:
    """Return the first tool that finds a GPU on this host, None where there is none.

    NVML through `pynvml`, else nvidia-smi; amdsmi, else rocm-smi.
    """
    from pytest_kopt.devices import amd_smi, nvidia_smi, nvml, rocm_smi

    for connect in (nvml.connect, nvidia_smi.connect, amd_smi.connect, rocm_smi.connect):
        vendor: Vendor | None = connect()
        if vendor is not None and vendor.devices():
            return vendor
    return None
