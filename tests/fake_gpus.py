"""GPUs that are not there: a vendor in memory, and a `pynvml` for other processes to find."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_kopt.devices.vendor import NVIDIA, Device, Reading, Stages

from . import nursery


def gpu(index: int, uuid: str | None = None) -> Device:
    """Return an H200."""
    name = uuid or f"GPU-{index:08x}-0000-0000-0000-000000000000"
    return Device(name, index, "NVIDIA H200", "sm_90", f"00000000:{index + 1:02X}:00.0")


class FakeVendor:
    """A vendor whose answers a test scripts: `state(device, number of the reading)`."""

    name = "fake"

    def __init__(
        self,
        devices: Sequence[Device],
        state: Callable[[Device, int], Reading] = lambda device, number: Reading(),
        stages: Stages = NVIDIA,
    ) -> None:
        self.stages = stages
        self._devices = list(devices)
        self._state = state
        self._read: dict[str, int] = {}

    def devices(self) -> list[Device]:
        return self._devices

    def read(self, device: Device) -> Reading:
        number = self._read[device.uuid] = self._read.get(device.uuid, -1) + 1
        return self._state(device, number)

    def glance(self, device: Device) -> Reading:
        return self.read(device)


# Signatures and units as in the NVML API reference; docs.nvidia.com/deploy/nvml-api.
_PYNVML = """\
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
HERE = Path(__file__).parent


class NVMLError(Exception):
    pass


def _gpus():
    return json.loads((HERE / "gpus.json").read_text())


def nvmlInit():
    pass


def nvmlDeviceGetCount():
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetHandleByPciBusId(pci):
    return [gpu["pci"] for gpu in _gpus()].index(pci.decode())


def nvmlDeviceGetUUID(handle):
    return _gpus()[handle]["uuid"]


def nvmlDeviceGetName(handle):
    return "NVIDIA H200"


def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId=_gpus()[handle]["pci"])


def nvmlDeviceGetCudaComputeCapability(handle):
    return 9, 0


def nvmlDeviceGetMigMode(handle):
    raise NVMLError("Not Supported")


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(used=4 << 20)


def nvmlDeviceGetUtilizationRates(handle):
    gpu = _gpus()[handle]
    # Processes that run kernel code may not write there.
    with suppress(PermissionError), (HERE / "asked.log").open("a") as log:
        print(gpu["uuid"], file=log)
    return SimpleNamespace(gpu=gpu["utilisation"])


def nvmlDeviceGetComputeRunningProcesses(handle):
    return [SimpleNamespace(pid=pid) for pid in _gpus()[handle]["pids"]]


def nvmlDeviceGetClockInfo(handle, kind):
    return {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 3201}[kind]


def nvmlDeviceGetTemperature(handle, sensor):
    return 31


def nvmlDeviceGetPowerUsage(handle):
    return 76520


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 1
"""


#: They cannot be woken up either. Loaded at once they are found whatever path a process gets later.
_SITE = """\
import pynvml
from pytest_kopt.devices import context

context.rouse = lambda kind: None
"""


class FakeDriver:
    """A directory with a `pynvml` in it that lists GPUs which are not there.

    `variables` are what a process needs to find it first. What it answers can be changed while
    processes run.
    """

    def __init__(self, directory: Path, count: int, *, first: int = 0) -> None:
        self._state = directory / "gpus.json"
        directory.mkdir(parents=True, exist_ok=True)
        self.uuids = [gpu(first + i).uuid for i in range(count)]
        self._gpus: list[dict[str, object]] = [
            {"uuid": uuid, "pci": gpu(first + i).pci, "utilisation": 0, "pids": []}
            for i, uuid in enumerate(self.uuids)
        ]
        self.set(0)
        (directory / "pynvml.py").write_text(_PYNVML)
        (directory / "sitecustomize.py").write_text(_SITE)
        self.directory = directory

    def set(self, index: int, **fields: object) -> None:
        """Change what is said of a GPU: its `utilisation` in %, the `pids` that compute on it."""
        self._gpus[index] |= fields
        building = self._state.with_suffix(".new")
        building.write_text(json.dumps(self._gpus))
        building.replace(self._state)

    @property
    def readings(self) -> int:
        """How often a GPU's state was asked for."""
        path = self.directory / "asked.log"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def variables(self, environ: dict[str, str]) -> dict[str, str]:
        """Return the variables of a process that finds these GPUs."""
        path = f"{self.directory}:{environ.get('PYTHONPATH', '')}"
        return {"PYTHONPATH": path, **nursery.FAKE_GPUS}
