"""Nsight Compute: its command line, and launches out of its CSV (page raw)."""

from __future__ import annotations

import csv
from pathlib import Path

from pytest_kopt.profiling.kernel_table import KernelLaunch, number, whole

TOOL = "ncu"
_REPORT = "report.csv"
_TIME = "gpu__time_duration.sum"
_REGISTERS = "launch__registers_per_thread"
_SHARED = "launch__shared_mem_per_block"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_MICROSECONDS = {
    **dict.fromkeys(("ns", "nsecond"), 1e-3),
    **dict.fromkeys(("us", "usecond"), 1.0),
    **dict.fromkeys(("ms", "msecond"), 1e3),
    **dict.fromkeys(("s", "second"), 1e6),
}
_BYTES = {"byte": 1, "Kbyte": 1000, "Mbyte": 1000**2}
#: What NVIDIA's driver says where counters are for administrators, as in most clouds.
_FORBIDDEN = "ERR_NVGPUCTRPERM"


def command(directory: Path) -> list[str]:
    """Return the words in front of a command line; its CSV goes into `directory`.

    Only what lies between start and stop of the CUDA profiler is seen. Clocks and caches are left
    as they are, so that times compare with those of other tools.
    """
    metrics = ",".join((_TIME, _REGISTERS, _SHARED, _OCCUPANCY))
    return [
        *("ncu", "--target-processes", "all", "--profile-from-start", "off"),
        *("--clock-control", "none", "--cache-control", "none"),
        *("--metrics", metrics, "--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", str(directory / _REPORT)),
    ]


def report(directory: Path) -> str:
    """Return the text of the page in `directory`; OSError when there is none."""
    return (directory / _REPORT).read_text()


def launches(text: str) -> list[KernelLaunch]:
    """Return the launches of a raw page; ValueError with the tool's last word without a table."""
    if _FORBIDDEN in text:
        raise ValueError(
            f"{_FORBIDDEN}: this machine forbids performance counters; verdict.json has registers "
            "and memory from the machine code, under kernels"
        )
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError(lines[-1].strip() if lines else "wrote nothing")
    table = list(csv.DictReader(lines[start:]))
    if not table or _TIME not in table[0]:
        raise ValueError(f"its table has no column {_TIME}")
    units, rows = table[0], table[1:]
    scale = _MICROSECONDS[units[_TIME]]
    per_byte = _BYTES.get(units.get(_SHARED, "").split("/")[0], 1)
    profiled = []
    for row in rows:
        shared = number(row.get(_SHARED))
        profiled.append(
            KernelLaunch(
                kernel=row["Kernel Name"],
                duration_us=(number(row[_TIME]) or 0.0) * scale,
                registers=whole(row.get(_REGISTERS)),
                shared_bytes=None if shared is None else int(shared * per_byte),
                occupancy_pct=number(row.get(_OCCUPANCY)),
            )
        )
    return profiled
