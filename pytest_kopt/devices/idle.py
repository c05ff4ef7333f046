"""The gate in front of every measurement: a GPU is timed on only while nobody else uses it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_kopt.devices import processes
from pytest_kopt.devices.vendor import Device, Reading, Vendor
from pytest_kopt.errors import NoVerdict
from pytest_kopt.exit_codes import ExitCode

#: A look takes this many readings of every device, this many seconds apart.
SAMPLES, INTERVAL = 4, 0.35
MOST_UTILISATION_PCT = 2.0
#: More movement than this within a look is somebody allocating.
MOST_DRIFT_MIB = 32.0
#: A look is announced this often (minutes); a device that gets free meanwhile is taken at once.
LOOK_MINUTES = 10.0
#: The first pause and the longest, each twice the last: another session's process that ends still
#: stands on the GPU for half a second, and is nobody's by then. So long nothing is said.
_FIRST_POLL_SECONDS, POLL_SECONDS, _SILENT_SECONDS = 0.1, 5.0, 1.0


class AllGpusBusy(NoVerdict):
    """No device became idle within `minutes`; `in_the_way` says what was on each."""

    exit_code = ExitCode.NO_IDLE_GPU

    def __init__(self, minutes: float, in_the_way: Sequence[str]) -> None:
        super().__init__(f"no idle GPU within {_span(minutes)}: {' | '.join(in_the_way)}")
        self.minutes = minutes
        self.in_the_way = tuple(in_the_way)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The result of a look: idle without `reasons`, if `shared` but for other sessions of kopt."""

    device: Device
    reasons: tuple[str, ...]
    utilisation_pct: float
    memory_mib: float
    shared: bool = False

    @property
    def idle(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return f"{self.device.uuid} ({self.device.name}): {'; '.join(self.reasons) or 'idle'}"


def judge(
    device: Device, readings: Sequence[Reading], strangers: Sequence[int], *, shared: bool = False
) -> Occupancy:
    """Judge a device by a look; on a `shared` one what moves may be other sessions' of kopt."""
    if shared:
        strangers = [pid for pid in strangers if processes.is_here(pid)]
    busy = [r.utilisation_pct for r in readings if r.utilisation_pct is not None]
    memory = [r.memory_mib for r in readings if r.memory_mib is not None]
    reasons = [
        f"process {pid} ({processes.name_of(pid) or 'not of this container'})" for pid in strangers
    ]
    if not shared and busy and max(busy) > MOST_UTILISATION_PCT:
        reasons.append(f"utilisation {max(busy):.0f} %")
    if not shared and memory and max(memory) - min(memory) > MOST_DRIFT_MIB:
        reasons.append(f"memory in use moves from {min(memory):.0f} to {max(memory):.0f} MiB")
    figures = max(busy, default=0.0), max(memory, default=0.0)
    return Occupancy(device, tuple(reasons), *figures, shared)


def look(vendor: Vendor, devices: Sequence[Device]) -> list[Occupancy]:
    """Return what is to be found on every device, the most idle first."""
    readings: dict[str, list[Reading]] = {device.uuid: [] for device in devices}
    shared = {device.uuid for device in devices if processes.take_turns_on(device.uuid)}
    for number in range(SAMPLES):
        if number:
            time.sleep(INTERVAL)
        for device in devices:
            readings[device.uuid].append(vendor.read(device))
    # Who came meanwhile counts as well: it announced itself before it used the device.
    shared |= {device.uuid for device in devices if processes.take_turns_on(device.uuid)}
    findings = []
    for device in devices:
        read = readings[device.uuid]
        pids = {pid for reading in read for pid in reading.processes or ()}
        is_shared = device.uuid in shared
        findings.append(judge(device, read, processes.foreign(pids), shared=is_shared))
    return sorted(findings, key=lambda f: (not f.idle, f.shared, f.utilisation_pct, f.memory_mib))


def wait_for_idle(
    vendor: Vendor, devices: Sequence[Device], minutes: float, say: Callable[[str], None]
) -> list[Device]:
    """Return the idle devices, the most idle first, waiting up to `minutes` for one.

    Those that other kopt sessions use are among them only where all are. `say` takes lines of
    progress. Raises AllGpusBusy when none of them got free.
    """
    return _wait(lambda: look(vendor, devices), minutes, say)


def wait_for_strangers(
    vendor: Vendor, device: Device, minutes: float, say: Callable[[str], None]
) -> None:
    """Return once no stranger computes there, as between measurements; AllGpusBusy if not."""

    def running() -> list[Occupancy]:
        pids = processes.foreign(vendor.read(device).processes or ())
        return [judge(device, (), pids, shared=True)]

    _wait(running, minutes, say)


def _wait(
    find: Callable[[], list[Occupancy]], minutes: float, say: Callable[[str], None]
) -> list[Device]:
    start, announced, pause = time.monotonic(), 0, _FIRST_POLL_SECONDS
    while True:
        findings = find()
        idle = [finding for finding in findings if finding.idle]
        free = [finding.device for finding in idle if not finding.shared]
        if idle:
            if announced:
                say(f"kopt: {idle[0].device.uuid} is idle now, going on")
            return free or [finding.device for finding in idle]
        waited = (time.monotonic() - start) / 60
        if waited >= minutes:
            raise AllGpusBusy(minutes, [str(finding) for finding in findings])
        if waited >= max(_SILENT_SECONDS / 60, announced * LOOK_MINUTES):
            announced += 1
            say(
                f"kopt: waiting for an idle GPU, up to {_span(minutes - waited)} more "
                f"(--kopt-gpu-wait): {' | '.join(map(str, findings))}"
            )
        time.sleep(min(pause, max(0.0, (minutes - waited) * 60)))
        pause = min(2 * pause, POLL_SECONDS)


def _span(minutes: float) -> str:
    return f"{minutes:.0f} minutes" if minutes >= 1 else f"{minutes * 60:.0f} s"
