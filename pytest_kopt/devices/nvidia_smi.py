"""NVIDIA GPUs through `nvidia-smi`, where NVML's Python bindings are not installed."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from pytest_kopt.devices.masks import NVIDIA
from pytest_kopt.devices.nvml import reasons_of
from pytest_kopt.devices.tool import Unanswered, ask, is_there, number
from pytest_kopt.devices.vendor import Device, Reading

_TOOL = "nvidia-smi"
_FORMAT = "--format=csv,noheader,nounits"
_STATE = (
    *("memory.used", "utilization.gpu", "clocks.sm", "clocks.mem"),
    *("temperature.gpu", "power.draw"),
)
#: Drivers before 535 call the second what later ones call the first.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_INSTANCE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")


def connect() -> NvidiaSmi | None:
    """Return the tool, None where it is absent or finds no driver."""
    if not is_there(_TOOL):
        return None
    try:
        ask(_TOOL, "-L")
    except Unanswered:
        return None
    return NvidiaSmi()


class NvidiaSmi:
    """Queries of `nvidia-smi`, each a process of its own."""

    name = _TOOL
    stages = NVIDIA

    def devices(self) -> list[Device]:
        instances = self._instances()
        found = []
        for row in _rows("--query-gpu=index,uuid,pci.bus_id,name,compute_cap"):
            index, uuid, pci, name, capability = row
            architecture = f"sm_{capability.replace('.', '')}"
            for part in instances.get(uuid) or [uuid]:
                found.append(Device(part, int(index), name, architecture, pci))  # noqa: PERF401
        return found

    def read(self, device: Device) -> Reading:
        *state, bits = self._state(device)
        memory, busy, sm, mem, celsius, watts = (number(text) for text in state)
        return Reading(
            memory_mib=memory,
            utilisation_pct=busy,
            processes=self._processes(device),
            sm_mhz=sm,
            memory_mhz=mem,
            temperature_c=celsius,
            power_w=watts,
            throttle=reasons_of(int(bits, 16) if bits.startswith("0x") else 0),
        )

    def _state(self, device: Device) -> list[str]:
        for reasons in _REASONS:
            try:
                fields = ",".join([*_STATE, reasons])
                return next(_rows(f"--query-gpu={fields}", f"--id={device.pci}"))
            except Unanswered as error:
                failure = error
        raise failure

    def _processes(self, device: Device) -> tuple[int, ...] | None:
        try:
            rows = list(_rows("--query-compute-apps=gpu_uuid,pid", f"--id={device.pci}"))
        except Unanswered:
            return None
        return tuple(sorted({int(pid) for _, pid in rows if pid.isdecimal()}))

    def _instances(self) -> dict[str, list[str]]:
        """Return the MIG instances by their GPU's UUID."""
        found: dict[str, list[str]] = {}
        gpu = ""
        for line in ask(_TOOL, "-L").splitlines():
            if whole := _GPU.match(line):
                gpu = whole.group(2)
            elif part := _INSTANCE.match(line):
                found.setdefault(gpu, []).append(part.group(1))
        return found


def _rows(*query: str) -> Iterator[list[str]]:
    lines = ask(_TOOL, *query, _FORMAT).splitlines()
    for row in csv.reader(lines, skipinitialspace=True):
        yield [field.strip() for field in row]
