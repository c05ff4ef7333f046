"""GPUs that are not there: a vendor in memory, and an `nvidia-smi` for other processes to find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_kopt.devices.masks import NVIDIA
from pytest_kopt.devices.vendor import Device, Reading, Stages


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


# Formats as `nvidia-smi --help-query-gpu`, `--help-query-compute-apps` and `-L` of driver 580 have
# them; docs.nvidia.com/deploy/nvidia-smi.
_NVIDIA_SMI = """\
#!{python}
import json
import sys
from pathlib import Path

gpus = json.loads(Path({state!r}).read_text())
asked = {{a.partition("=")[0]: a.partition("=")[2] for a in sys.argv[1:]}}
if "-L" in asked:
    for i, gpu in enumerate(gpus):
        print(f"GPU {{i}}: {{gpu['name']}} (UUID: {{gpu['uuid']}})")
    sys.exit()
chosen = [g for g in gpus if asked.get("--id", g["pci.bus_id"]) == g["pci.bus_id"]]
if "--query-compute-apps" in asked:
    for gpu in chosen:
        for pid in gpu["pids"]:
            print(f"{{gpu['uuid']}}, {{pid}}")
else:
    for gpu in chosen:
        print(", ".join(str(gpu[field]) for field in asked["--query-gpu"].split(",")))
    if "utilization.gpu" in asked["--query-gpu"]:
        with Path({state!r}).with_name("asked.log").open("a") as log:
            print(chosen[0]["uuid"], file=log)
"""


class FakeNvidiaSmi:
    """A directory with an `nvidia-smi` in it, and with a `pynvml` that cannot be imported.

    `variables` are what a process needs to find them first. What it answers can be changed while
    processes run.
    """

    def __init__(self, directory: Path, count: int, *, first: int = 0) -> None:
        self._state = directory / "gpus.json"
        directory.mkdir(parents=True, exist_ok=True)
        self.uuids = [gpu(first + i).uuid for i in range(count)]
        self._gpus = [
            {
                "index": i,
                "uuid": uuid,
                "pci.bus_id": gpu(first + i).pci,
                "name": "NVIDIA H200",
                "compute_cap": "9.0",
                "memory.used": 4,
                "utilization.gpu": 0,
                "clocks.sm": 1980,
                "clocks.mem": 3201,
                "temperature.gpu": 31,
                "power.draw": 76.52,
                "clocks_event_reasons.active": "0x0000000000000001",
                "pids": [],
            }
            for i, uuid in enumerate(self.uuids)
        ]
        self.set(0)
        tool = directory / "nvidia-smi"
        tool.write_text(_NVIDIA_SMI.format(python=sys.executable, state=str(self._state)))
        tool.chmod(0o755)
        (directory / "pynvml.py").write_text("raise ImportError('not here')\n")
        self.directory = directory

    def set(self, index: int, **fields: object) -> None:
        """Change what is said of a GPU."""
        import json

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
        return {
            "PATH": f"{self.directory}:{environ['PATH']}",
            "PYTHONPATH": f"{self.directory}:{environ.get('PYTHONPATH', '')}",
        }
