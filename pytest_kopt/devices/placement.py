"""Chooses devices of this host that a session measures on, once, before anything is measured."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pytest_kopt.devices.idle import AvailabilityGate, Occupancy
from pytest_kopt.devices.pinning import Host, discover, for_target
from pytest_kopt.devices.vendor import CPU, Device, Reading


class DeviceAccess(Protocol):
    """The requests to a host whose devices are measured on: this one (see `Host`), or another."""

    def pin(self, device: Device) -> dict[str, str]: ...

    def read(self, device: Device) -> Reading: ...

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

    def pin(self, place: int) -> dict[str, str]:
        return self.host.pin(self.devices[place % len(self.devices)])

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


class EarlyLook:
    """A look at this host's GPUs that goes on while a session opens: it takes a second."""

    def __init__(self) -> None:
        self._findings: list[Occupancy] = []
        # It is not waited for where the session ends before it is asked for.
        self._thread = threading.Thread(target=self._look, name="kopt-early-look", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        # Who places the session hears of what is wrong with its devices.
        with contextlib.suppress(Exception):
            host = discover("cuda")
            if host.vendor is not None:
                self._findings = AvailabilityGate(host.vendor, print).look(host.devices)

    def of(self, devices: Sequence[Device]) -> list[Occupancy]:
        """Wait for the look; return what it found on these devices if nobody used any, else []."""
        self._thread.join()
        findings = [finding for finding in self._findings if finding.device in devices]
        unused = [finding for finding in findings if finding.idle and not finding.shared]
        return findings if len(unused) == len(devices) else []


#: Before anything is known, and where the CPU is measured on.
ON_CPU = Placement(Host(None, (CPU,)), (CPU,), CPU, print)


def place(
    kind: str,
    target: str | None,
    wait_minutes: float | None,
    say: Callable[[str], None],
    early: EarlyLook | None = None,
) -> Placement:
    """Return devices, idle ones with `wait_minutes`; BadInput for no such one, or AllGpusBusy."""
    host = for_target(discover(kind), target)
    if host.vendor is None:
        return ON_CPU
    if wait_minutes is None:
        return Placement(host, host.devices, host.devices[0], say)
    early_findings = early.of(host.devices) if early else []
    idle = AvailabilityGate(host.vendor, say).idle(host.devices, wait_minutes, early_findings)
    idle_devices = tuple(device for device in host.devices if device in idle)
    return Placement(host, idle_devices, idle[0], say, wait_minutes)
