"""NVIDIA GPUs through NVML's own Python bindings (`pynvml`, the package nvidia-ml-py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from pytest_kopt.devices.vendor import LOCKED, NVIDIA, Device, Reading

_T = TypeVar("_T")
#: Bits of the clocks' event (once: throttle) reasons; NVML API reference, nvmlClocksEventReasons.
REASONS = {
    0x001: "gpu_idle",
    0x002: LOCKED,
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_MIB = 1 << 20


def connect() -> Nvml | None:
    """Return NVML, None where its bindings or its library are absent."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return Nvml(pynvml)


class Nvml:
    """An open connection to NVML."""

    name = "NVML"
    stages = NVIDIA

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def devices(self) -> list[Device]:
        nvml = self._nvml
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            pci = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
            name = _text(nvml.nvmlDeviceGetName(handle))
            for part in self._instances(handle) or [handle]:
                uuid = _text(nvml.nvmlDeviceGetUUID(part))
                gpus.append(Device(uuid, index, name, f"sm_{major}{minor}", pci))
        return gpus

    def read(self, device: Device) -> Reading:
        nvml = self._nvml
        whole = nvml.nvmlDeviceGetHandleByPciBusId(device.pci.encode())
        # Clocks, temperature and power belong to the whole GPU, the rest to its instance.
        part = whole
        for instance in self._instances(whole):
            if _text(nvml.nvmlDeviceGetUUID(instance)) == device.uuid:
                part = instance
        ask = self._ask
        running = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(part))
        return replace(
            self.glance(device),
            memory_mib=ask(lambda: nvml.nvmlDeviceGetMemoryInfo(part).used / _MIB),
            utilisation_pct=ask(lambda: float(nvml.nvmlDeviceGetUtilizationRates(part).gpu)),
            processes=None if running is None else tuple(sorted({p.pid for p in running})),
            memory_mhz=ask(lambda: float(nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_MEM))),
            temperature_c=ask(
                lambda: float(nvml.nvmlDeviceGetTemperature(whole, nvml.NVML_TEMPERATURE_GPU))
            ),
        )

    def glance(self, device: Device) -> Reading:
        nvml, ask = self._nvml, self._ask
        whole = nvml.nvmlDeviceGetHandleByPciBusId(device.pci.encode())
        bits = ask(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(whole))) or 0
        return Reading(
            sm_mhz=ask(lambda: float(nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_SM))),
            power_w=self._watts(whole),
            throttle=tuple(name for bit, name in REASONS.items() if bits & bit),
        )

    def _watts(self, handle: Any) -> float | None:
        """Return what the sensor says at once, or the mean of a second from an old driver.

        The sensor of an A100 or H100 sees a quarter of the time. Old drivers give a GPU of
        Ampere or later that mean, but not an A100.
        """
        nvml = self._nvml
        field = getattr(nvml, "NVML_FI_DEV_POWER_INSTANT", None)
        values = (
            None
            if field is None
            else self._ask(lambda: nvml.nvmlDeviceGetFieldValues(handle, [field]))
        )
        if values and values[0].nvmlReturn == nvml.NVML_SUCCESS:
            return float(values[0].value.uiVal) / 1000
        return self._ask(lambda: float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000)

    def _instances(self, handle: Any) -> list[Any]:
        nvml = self._nvml
        mode = self._ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        if not mode:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        instances = [
            self._ask(lambda i=i: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i))  # type: ignore[misc]
            for i in range(count)
        ]
        return [instance for instance in instances if instance is not None]

    def _ask(self, question: Callable[[], _T]) -> _T | None:
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
