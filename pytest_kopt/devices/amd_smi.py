"""AMD GPUs through the Python bindings of AMD SMI (`amdsmi`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pytest_kopt.devices.vendor import AMD, Device, Reading


def connect() -> AmdSmi | None:
    """Return AMD SMI, None where its bindings, its library or the driver are absent."""
    try:
        import amdsmi
    except (ImportError, KeyError, OSError):
        # The bindings look for their library while they are imported.
        return None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException:
        return None
    return AmdSmi(amdsmi)


class AmdSmi:
    """An open connection to AMD SMI."""

    name = "amdsmi"
    stages = AMD

    def __init__(self, amdsmi: Any) -> None:
        self._smi = amdsmi

    def devices(self) -> list[Device]:
        smi = self._smi
        gpus = []
        for index, handle in enumerate(smi.amdsmi_get_processor_handles()):
            asic = smi.amdsmi_get_gpu_asic_info(handle)
            # What ROCR_VISIBLE_DEVICES takes.
            uuid = str(index)
            with suppress(ValueError):
                uuid = f"GPU-{int(asic['asic_serial'], 16):016x}"
            name, architecture = asic["market_name"], asic["target_graphics_version"]
            pci = smi.amdsmi_get_gpu_device_bdf(handle)
            gpus.append(Device(uuid, index, name, architecture, pci))
        return gpus

    def read(self, device: Device) -> Reading:
        smi = self._smi
        handle = smi.amdsmi_get_processor_handle_from_bdf(device.pci)
        vram = self._ask(smi.amdsmi_get_gpu_vram_usage, handle) or {}
        activity = self._ask(smi.amdsmi_get_gpu_activity, handle) or {}
        running = self._ask(smi.amdsmi_get_gpu_process_list, handle)
        gfx = self._ask(smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.GFX) or {}
        mem = self._ask(smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.MEM) or {}
        power = self._ask(smi.amdsmi_get_power_info, handle) or {}
        watts = _number(power.get("current_socket_power"))
        status = self._violations(handle)
        return Reading(
            memory_mib=_number(vram.get("vram_used")),
            utilisation_pct=_number(activity.get("gfx_activity")),
            processes=None if running is None else tuple(sorted({p["pid"] for p in running})),
            sm_mhz=_number(gfx.get("clk")),
            memory_mhz=_number(mem.get("clk")),
            temperature_c=self._temperature(handle),
            power_w=_number(power.get("average_socket_power")) if watts is None else watts,
            throttle=tuple(
                name.removeprefix("active_")
                for name, value in status.items()
                if name.startswith("active_") and value is True
            ),
        )

    def glance(self, device: Device) -> Reading:
        return self.read(device)

    def _temperature(self, handle: Any) -> float | None:
        """Return the hot spot's temperature: Instinct cards have no edge sensor."""
        smi = self._smi
        kind = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        celsius = _number(self._ask(smi.amdsmi_get_temp_metric, handle, *kind))
        # Documented in thousandths of a degree, returned in degrees by most releases.
        return celsius / 1000 if celsius is not None and celsius > 1000 else celsius

    def _violations(self, handle: Any) -> dict[str, Any]:
        """Return what is said of limits, which only MI300 and later tell."""
        question = getattr(self._smi, "amdsmi_get_violation_status", None)
        return (question and self._ask(question, handle)) or {}

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except self._smi.AmdSmiException:
            return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
