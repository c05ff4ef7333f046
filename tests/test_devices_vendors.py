"""What the vendors' tools answer, from recorded formats, becomes devices and readings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.devices import amd_smi, nvml, pinning
from pytest_kopt.devices.amd_smi import AmdSmi
from pytest_kopt.devices.nvml import Nvml
from pytest_kopt.devices.vendor import Device, Reading

H200 = "GPU-5a1b2c3d-0001-0002-0003-000000000001"
DIVIDED = "GPU-5a1b2c3d-0001-0002-0003-000000000002"
PARTS = ["MIG-11111111-aaaa-bbbb-cccc-000000000001", "MIG-22222222-aaaa-bbbb-cccc-000000000002"]


class FakeNvml:
    """The functions of nvidia-ml-py that are used, over two GPUs of which the second is divided.

    Signatures and units as in the NVML API reference (docs.nvidia.com/deploy/nvml-api): power in
    milliwatts, memory in bytes, MIG handles beside whole ones; what a handle does not support
    raises NVMLError.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_FI_DEV_POWER_INSTANT, NVML_SUCCESS = 186, 0

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return (H200, DIVIDED)[index]

    def nvmlDeviceGetHandleByPciBusId(self, pci: bytes) -> str:
        return {b"00000000:03:00.0": H200, b"00000000:04:00.0": DIVIDED}[pci]

    def nvmlDeviceGetUUID(self, handle: str) -> bytes | str:
        return handle.encode() if handle == H200 else handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        pci = b"00000000:03:00.0" if handle == H200 else b"00000000:04:00.0"
        return SimpleNamespace(busId=pci)

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == H200:
            raise self.NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index >= len(PARTS):
            raise self.NVMLError("Not Found")
        return PARTS[index]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=(512 if handle in PARTS else 1024) << 20)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle in PARTS:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=97)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [] if handle in PARTS else [SimpleNamespace(pid=4242), SimpleNamespace(pid=17)]

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert handle not in PARTS
        return {self.NVML_CLOCK_SM: 1755, self.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 698_250

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:
        """Say the power of this moment, which a GPU before Hopper does not know."""
        assert fields == [self.NVML_FI_DEV_POWER_INSTANT]
        known = handle == H200
        return [SimpleNamespace(nvmlReturn=0 if known else 3, value=SimpleNamespace(uiVal=691_500))]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x4 | 0x20


def test_nvml_lists_gpus_and_the_instances_of_divided_ones() -> None:
    devices = Nvml(FakeNvml()).devices()
    assert [device.uuid for device in devices] == [H200, *PARTS]
    assert [device.index for device in devices] == [0, 1, 1]
    assert devices[0] == Device(H200, 0, "NVIDIA H200", "sm_90", "00000000:03:00.0")


def test_nvml_reads_a_whole_gpu() -> None:
    found = Nvml(FakeNvml())
    assert found.read(found.devices()[0]) == Reading(
        memory_mib=1024.0,
        utilisation_pct=97.0,
        processes=(17, 4242),
        sm_mhz=1755.0,
        memory_mhz=3201.0,
        temperature_c=61.0,
        power_w=691.5,
        throttle=("sw_power_cap", "sw_thermal_slowdown"),
    )


def test_nvml_glances_at_what_changes_under_load() -> None:
    found = Nvml(FakeNvml())
    throttle = ("sw_power_cap", "sw_thermal_slowdown")
    whole, part, _ = found.devices()
    assert found.glance(whole) == Reading(sm_mhz=1755.0, power_w=691.5, throttle=throttle)
    assert found.glance(part) == Reading(sm_mhz=1755.0, power_w=698.25, throttle=throttle)


def test_nvml_reads_an_instance_with_its_gpus_clocks() -> None:
    found = Nvml(FakeNvml())
    reading = found.read(found.devices()[2])
    assert (reading.memory_mib, reading.processes, reading.sm_mhz) == (512.0, (), 1755.0)
    assert reading.utilisation_pct is None, "NVML does not tell it of an instance"


class FakeAmdSmi:
    """The functions of amdsmi that are used; rocm.docs.amd.com/projects/amdsmi, Python API.

    An MI300X: no edge sensor, activity in %, VRAM in MB, clocks in MHz; "N/A" for what it lacks.
    """

    class AmdSmiException(Exception):
        pass

    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")
    temperature = 58

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["0000:05:00.0"]

    def amdsmi_get_processor_handle_from_bdf(self, bdf: str) -> str:
        return bdf

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return handle

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, Any]:
        return {
            "market_name": "AMD Instinct MI300X",
            "asic_serial": "0x8D4A2E19C07F33B1",
            "target_graphics_version": "gfx942",
        }

    def amdsmi_get_gpu_vram_usage(self, handle: str) -> dict[str, int]:
        return {"vram_total": 196592, "vram_used": 286}

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
        return {"gfx_activity": 3, "umc_activity": 0, "mm_activity": "N/A"}

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[dict[str, Any]]:
        return [{"name": "N/A", "pid": 991, "mem": 4096}]

    def amdsmi_get_clock_info(self, handle: str, kind: str) -> dict[str, Any]:
        return {"clk": {"gfx": 2104, "mem": 1300}[kind], "clk_locked": "N/A"}

    def amdsmi_get_temp_metric(self, handle: str, sensor: str, metric: str) -> int:
        return self.temperature

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        return {"current_socket_power": "N/A", "average_socket_power": 141}

    def amdsmi_get_violation_status(self, handle: str) -> dict[str, Any]:
        return {"acc_ppt_pwr": 99, "active_ppt_pwr": True, "active_socket_thrm": "N/A"}


MI300X = Device("GPU-8d4a2e19c07f33b1", 0, "AMD Instinct MI300X", "gfx942", "0000:05:00.0")


def test_amdsmi_lists_and_reads_a_gpu() -> None:
    found = AmdSmi(FakeAmdSmi())
    assert found.devices() == [MI300X]
    assert found.read(MI300X) == Reading(
        memory_mib=286.0,
        utilisation_pct=3.0,
        processes=(991,),
        sm_mhz=2104.0,
        memory_mhz=1300.0,
        temperature_c=58.0,
        power_w=141.0,
        throttle=("ppt_pwr",),
    )


def test_amdsmi_of_an_older_release() -> None:
    """Without violations, with thousandths of degrees, and a question it refuses."""

    class Older(FakeAmdSmi):
        temperature = 58_000
        amdsmi_get_violation_status = None  # type: ignore[assignment]

        def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
            raise self.AmdSmiException("not supported on a virtual machine")

    reading = AmdSmi(Older()).read(MI300X)
    assert (reading.temperature_c, reading.utilisation_pct, reading.throttle) == (58.0, None, ())


def test_no_tool_no_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nvml, amd_smi):
        monkeypatch.setattr(module, "connect", lambda: None)
    assert pinning.find_vendor() is None


def test_the_bindings_are_asked_for_where_nvidia_has_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pinning, "find_spec", lambda name: None)
    assert pinning.why_none(tmp_path) == "no vendor's tool lists a GPU here"
    (tmp_path / "nvidia0").touch()
    assert "nvidia-ml-py" in pinning.why_none(tmp_path)
    monkeypatch.setattr(pinning, "find_spec", lambda name: object())
    assert "nvidia-ml-py" not in pinning.why_none(tmp_path), "there is no driver then"


def test_no_module_can_change_a_setting() -> None:
    """The vendors' interfaces have functions that set clocks, limits and modes; none is named."""
    directory = Path(pinning.__file__).parent
    for path in directory.glob("*.py"):
        text = path.read_text().lower()
        for word in ("nvmldeviceset", "amdsmi_set", "reset", "--set", "-pm", "-pl", "-lgc", "-ac"):
            assert word not in text, (path.name, word)
