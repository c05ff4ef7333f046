"""The devices of this host: which there are, which are used, and pinning processes to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from pytest_kopt.devices import amd_smi, nvml
from pytest_kopt.devices.idle import wait_for_idle, wait_for_strangers
from pytest_kopt.devices.lock import timing_lock
from pytest_kopt.devices.machine import cpu_clock_mhz
from pytest_kopt.devices.vendor import (
    CPU,
    Device,
    Reading,
    Vendor,
    pin,
    visible,
)
from pytest_kopt.errors import BadInput


@dataclass(frozen=True, slots=True)
class Host:
    """The devices of this host that this process may use, in the order it sees them."""

    vendor: Vendor | None
    devices: tuple[Device, ...]

    def pin(self, device: Device) -> dict[str, str]:
        return pin(device, self.vendor.stages) if self.vendor else {}

    def read(self, device: Device) -> Reading:
        return self.vendor.read(device) if self.vendor else Reading(sm_mhz=cpu_clock_mhz())

    def glance(self, device: Device) -> Reading:
        return self.vendor.glance(device) if self.vendor else Reading()

    def lock(self, device: Device) -> AbstractContextManager[None]:
        return timing_lock(device.uuid)

    def keep_strangers_off(
        self, device: Device, minutes: float, say: Callable[[str], None]
    ) -> None:
        """Wait until nobody else computes on a device; AllGpusBusy when it takes longer."""
        if self.vendor is not None:
            wait_for_strangers(self.vendor, device, minutes, say)


def find_vendor() -> Vendor | None:
    """Return the first tool that finds a GPU on this host: NVML or amdsmi."""
    for connect in (nvml.connect, amd_smi.connect):
        vendor: Vendor | None = connect()
        if vendor is not None and vendor.devices():
            return vendor
    return None


def why_none(dev: Path = Path("/dev")) -> str:
    """Return why no vendor was found: what is missing where `dev` has the nodes of NVIDIA GPUs."""
    if any(dev.glob("nvidia[0-9]*")) and find_spec("pynvml") is None:
        return "NVML's Python bindings (nvidia-ml-py), which list NVIDIA's GPUs, are not installed"
    return "no vendor's tool lists a GPU here"


def discover(
    kind: str,
    environ: Mapping[str, str] = os.environ,
    connect: Callable[[], Vendor | None] = find_vendor,
) -> Host:
    """Return the devices of a kind, "cpu" or "cuda" (every vendor's); BadInput without any."""
    if kind == "cpu":
        return Host(None, (CPU,))
    vendor = connect()
    if vendor is None:
        raise BadInput(
            why_none(),
            where="--kopt-device",
            fix="install the driver and pip install 'pytest-kopt[nvidia]' (AMD: "
            "'pytest-kopt[amd]'), or run without a GPU: --kopt-device cpu",
        )
    usable = visible(vendor.devices(), vendor.stages, environ)
    if not usable:
        names = [name for stage in vendor.stages for name in stage if name in environ]
        raise BadInput(
            "no GPU is visible: " + ", ".join(f"{name}={environ[name]!r}" for name in names),
            where="environment",
            legal=", ".join(device.uuid for device in vendor.devices()),
        )
    return Host(vendor, tuple(usable))


def for_target(host: Host, target: str | None) -> Host:
    """Return the host with a campaign's devices, "cpu", sm_90 or gfx942; BadInput without any."""
    if target is None:
        return host
    # AMD's tools may add the features of an architecture: gfx942:sramecc+:xnack-.
    names = {
        device.uuid: "cpu" if device.kind == "cpu" else device.architecture.partition(":")[0]
        for device in host.devices
    }
    architecture = target.removesuffix("a") if target.startswith("sm_") else target
    suitable = tuple(device for device in host.devices if names[device.uuid] in ("", architecture))
    if not suitable:
        raise BadInput(
            f"the campaign is for {target}, here is {', '.join(sorted(set(names.values())))}",
            where="target_gpu",
            fix="give --kopt-device cpu" if target == "cpu" else f"use a machine with {target}",
        )
    return replace(host, devices=suitable)


def in_use(host: Host) -> Device:
    """Return torch's "cuda": the first usable one, unless CUDA was initialised before the pin."""
    first = host.devices[0]
    if host.vendor is None:
        return first
    import torch

    uuid = f"GPU-{getattr(torch.cuda.get_device_properties(0), 'uuid', '')}"
    return next((device for device in host.vendor.devices() if device.uuid == uuid), first)


class DeviceAccess(Protocol):
    """The requests to a host whose devices are measured on: this one (see `Host`), or another."""

    def pin(self, device: Device) -> dict[str, str]: ...

    def read(self, device: Device) -> Reading: ...

    def glance(self, device: Device) -> Reading: ...

    def lock(self, device: Device) -> AbstractContextManager[None]: ...

    def keep_strangers_off(
        self, device: Device, minutes: float, say: Callable[[str], None]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a host, those to measure on in the order the caller's mask has them.

    `best` is the most idle of them. `wait_minutes` is how long a GPU that somebody else uses may
    hold a measurement up, None where nothing is gated.
    """

    host: DeviceAccess
    devices: tuple[Device, ...]
    best: Device
    say: Callable[[str], None]
    wait_minutes: float | None = None

    def device(self, place: int) -> Device:
        """Return the device at a place of those who go round them."""
        return self.devices[place % len(self.devices)]

    def find(self, uuid: object) -> Device | None:
        return next((device for device in self.devices if device.uuid == uuid), None)

    def keep_strangers_off(self, device: Device) -> None:
        if self.wait_minutes is not None:
            self.host.keep_strangers_off(device, self.wait_minutes, self.say)

    def group(self, uuids: Mapping[str, object]) -> dict[Device, list[str]]:
        """Return node ids by device, given the UUID of each one's; the most idle takes the rest."""
        groups: dict[Device, list[str]] = {}
        for nodeid, uuid in uuids.items():
            groups.setdefault(self.find(uuid) or self.best, []).append(nodeid)
        return groups


#: Before anything is known, and where the CPU is measured on.
ON_CPU = Placement(Host(None, (CPU,)), (CPU,), CPU, print)


def place(
    kind: str,
    target: str | None,
    wait_minutes: float | None,
    say: Callable[[str], None],
) -> Placement:
    """Return devices, idle ones with `wait_minutes`; BadInput for no such one, or AllGpusBusy."""
    host = for_target(discover(kind), target)
    if host.vendor is None:
        return ON_CPU
    if wait_minutes is None:
        return Placement(host, host.devices, host.devices[0], say)
    idle = wait_for_idle(host.vendor, host.devices, wait_minutes, say)
    idle_devices = tuple(device for device in host.devices if device in idle)
    return Placement(host, idle_devices, idle[0], say, wait_minutes)
