"""Which machine and device a session runs on, and whether another one measured before."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_machine() -> dict[str, str]:
    """Return the machine's name and its CPU's, as sessions record them."""
    return {"host": platform.node(), "cpu": cpu_model()}


def elsewhere(session: Mapping[str, Any]) -> str:
    """Return on which other machine a recorded session ran; "" for this one or an unknown one."""
    here = this_machine()
    if all(session.get(key, text) == text for key, text in here.items()):
        return ""
    return f"{_shown(session)}, this is {_shown(here)}"


def _shown(machine: Mapping[str, Any]) -> str:
    return f"{machine.get('host', 'an unknown host')} ({machine.get('cpu', 'CPU not recorded')})"


def device_model(device: str) -> str:
    """Return a name such as `NVIDIA H200`, `AMD Instinct MI300X` or a CPU's model name."""
    if device == "cpu":
        return cpu_model()
    import torch

    return str(torch.cuda.get_device_name())


def cpu_clock_mhz(folder: Path = Path("/sys/devices/system/cpu")) -> float | None:
    """Return the mean clock of this host's cores, None where the system tells none."""
    try:
        files = folder.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        clocks = [int(file.read_text(encoding="utf-8")) / 1e3 for file in files]
    except (OSError, ValueError):
        return None
    return statistics.fmean(clocks) if clocks else None


def cpu_ticks(path: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """Return how many ticks this host's cores were busy since its start, and all; None untold."""
    try:
        ticks = [
            int(word) for word in path.read_text(encoding="utf-8").splitlines()[0].split()[1:9]
        ]
    except (OSError, ValueError, IndexError):
        return None
    # The fourth and the fifth figure are of idle cores.
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def busy_pct(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Return the share of the time between two readings that cores were busy, in percent."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return 100 * (after[0] - before[0]) / (after[1] - before[1])


def cpu_model() -> str:
    """Return the CPU's model name, its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else f"{platform.machine()} CPU"
