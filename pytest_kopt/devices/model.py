"""The model of the device that a process measures on, by the name that it gives itself."""

from __future__ import annotations

import platform
from pathlib import Path


def device_model(device: str) -> str:
    """Return a name such as `NVIDIA H200`, `AMD Instinct MI300X` or a CPU's model name."""
    if device == "cpu":
        return cpu_model()
    import torch

    return str(torch.cuda.get_device_name())


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU's model name, its architecture where the system does not tell."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else f"{platform.machine()} CPU"
