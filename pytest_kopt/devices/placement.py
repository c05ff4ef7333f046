"""Which devices of this host a session measures on, decided once, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_kopt.devices.idle import AvailabilityGate
from pytest_kopt.devices.pinning import Host, discover, for_target
from pytest_kopt.devices.vendor import CPU, Device, Reading


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of this host, those to measure on in the order the caller's mask has them.

    `best` is the most idle of them. `wait_minutes` is how long a GPU that somebody else uses may
    hold a measurement up, None where nothing is gated.
    """

    host: Host
    devices: tuple[Device, ...]
    best: Device
    say: Callable[[str], None]
    wait_minutes: float | None = None

    def pin(self, place: int) -> dict[str, str]:
        """Return the environment of this host's `place`-th worker."""
        return self.host.pin(self.devices[place % len(self.devices)])

    def pin_to(self, device: Device) -> dict[str, str]:
        """Return the environment of a process on one device."""
        return self.host.pin(device)

    def find(self, uuid: object) -> Device | None:
        """Return the device of this host that has a UUID."""
        return next((device for device in self.devices if device.uuid == uuid), None)

    def read(self, device: Device) -> Reading:
        """Return a device's state."""
        return self.host.read(device)

    def keep_strangers_off(self, device: Device) -> None:
        """Wait until nobody else computes on a device; NoIdleGpu when it takes too long."""
        if self.host.vendor is not None and self.wait_minutes is not None:
            AvailabilityGate(self.host.vendor, self.say).free_of_strangers(
                device, self.wait_minutes
            )

    def group(self, uuids: Mapping[str, object]) -> dict[Device, list[str]]:
        """Return node ids by device, given the UUID of each one's; the most idle takes the rest."""
        found: dict[Device, list[str]] = {}
        for nodeid, uuid in uuids.items():
            found.setdefault(self.find(uuid) or self.best, []).append(nodeid)
        return found


#: Before anything is known, and where the CPU is measured on.
ON_CPU = Placement(Host(None, (CPU,)), (CPU,), CPU, print)


def place(
    kind: str, target: str | None, wait_minutes: float | None, say: Callable[[str], None]
) -> Placement:
    """Find the devices of a kind, "cpu" or "cuda"; with `wait_minutes` only idle ones.

    `target` is what a campaign is for, None for any. Raises BadInput where there is none, NoIdleGpu
    where none gets idle.
    """
    host = for_target(discover(kind), target)
    if host.vendor is None:
        return ON_CPU
    if wait_minutes is None:
        return Placement(host, host.devices, host.devices[0], say)
    idle = AvailabilityGate(host.vendor, say).idle(host.devices, wait_minutes)
    kept = tuple(device for device in host.devices if device in idle)
    return Placement(host, kept, idle[0], say, wait_minutes)
