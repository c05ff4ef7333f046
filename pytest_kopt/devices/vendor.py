"""The vendors' tools: a device, its state, how to ask, and which devices a process may use.

All of them only read. CUDA: docs.nvidia.com, CUDA Programming Guide, "CUDA Environment Variables";
ROCm: rocm.docs.amd.com, "GPU isolation techniques". An entry is an index, a UUID or the unique
beginning of one. From the first entry on that names no device nothing is visible; a device named
twice hides all of them.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

#: Filters of what a process sees, applied one after the other, each by the first of its variables
#: that is set; an index in a later one counts what the earlier ones left.
Stages = tuple[tuple[str, ...], ...]
#: The device's owner has set its clocks, and that is what holds them. NVML tells it of the moment
#: alone: it has no question for the setting of `nvidia-smi --lock-gpu-clocks`.
LOCKED = "applications_clocks_setting"
#: Reasons to run below the highest clock that are no sign of trouble: nothing to do, told to, or a
#: kernel that takes all the power there is.
HARMLESS = frozenset({"gpu_idle", LOCKED, "display_clock_setting", "sw_power_cap", "ppt_pwr"})
NVIDIA: Stages = (("CUDA_VISIBLE_DEVICES",),)
AMD: Stages = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
MASKS = tuple(name for stage in AMD for name in stage)
_NODES = ("nvidia[0-9]*", "kfd", "dxg")
_NUMBER = re.compile(r"[+-]?\d+")


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

    Memory in MiB, utilisation in %, clocks in MHz (`sm_mhz` of a CPU is the mean of its cores'),
    temperature in degrees Celsius, power in W.
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

    def glance(self, device: Device) -> Reading:
        """Return what changes under load, in less than a ms: clock, power, `throttle`."""


def choose(
    option: str,
    environ: Mapping[str, str] = os.environ,
    dev: Path = Path("/dev"),
    *,
    target: str | None = None,
) -> str:
    """Return "cpu" or "cuda", which AMD's GPUs are for torch, for the option auto, cpu or cuda.

    auto is cpu for a campaign whose `target` is the CPU, else cuda where a GPU's device node exists
    and the caller's mask does not hide every GPU.
    """
    if option != "auto":
        return option
    if target == "cpu":
        return "cpu"
    masked = any(environ.get(mask, "0").strip() in ("", "-1") for mask in MASKS)
    present = any(True for pattern in _NODES for _ in dev.glob(pattern))
    return "cuda" if present and not masked else "cpu"


def interpreter_environment(device: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what has to be set before Triton is imported: its interpreter without a GPU."""
    if device == "cpu" and "TRITON_INTERPRET" not in environ:
        return {"TRITON_INTERPRET": "1"}
    return {}


def visible(devices: Sequence[Device], stages: Stages, environ: Mapping[str, str]) -> list[Device]:
    """Return the devices that a process with this environment sees, in the order it sees them.

    Indices of CUDA are taken in the order of nvidia-smi, as its documentation has it. (Where
    GPUs of different speed share a host, CUDA itself wants CUDA_DEVICE_ORDER=PCI_BUS_ID for that.)
    """
    remaining = list(devices)
    for number, stage in enumerate(stages):
        mask = next((environ[name] for name in stage if name in environ), None)
        if number:
            remaining = [replace(device, index=i) for i, device in enumerate(remaining)]
        if mask is not None:
            remaining = _selected(remaining, mask)
    return remaining


def pin(device: Device, stages: Stages) -> dict[str, str]:
    """Return the variables that leave a process this one device."""
    if device.kind == "cpu":
        return {}
    first, *later = stages
    return {first[0]: device.uuid} | {name: "0" for stage in later for name in stage}


def _selected(devices: Sequence[Device], mask: str) -> list[Device]:
    selected: list[Device] = []
    for entry in mask.split(","):
        device = _named(devices, entry.strip())
        if device is None:
            break
        if device in selected:
            return []
        selected.append(device)
    return selected


def _named(devices: Sequence[Device], entry: str) -> Device | None:
    number = _NUMBER.match(entry)
    if number:
        # Of a GPU that is divided, CUDA enumerates the first instance.
        return next((d for d in devices if d.index == int(number.group())), None)
    matching = [d for d in devices if entry and d.uuid.lower().startswith(entry.lower())]
    return matching[0] if len(matching) == 1 else None
