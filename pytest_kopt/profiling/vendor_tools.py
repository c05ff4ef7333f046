"""The vendors' profilers, Nsight Compute and rocprofv3: how each is called, and what it saw."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.profiling.kernel_table import KernelRow, number, whole

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
#: Names that the kernel of `torch.cuda._sleep` contains; one stands before, one after the steps.
_MARK = "spin_kernel"
_NAME = "kopt"


@dataclass(frozen=True, slots=True)
class VendorTool:
    """A profiler that starts the process it profiles."""

    #: The program.
    name: str
    #: The words in front of a command line, given a folder for the tool's files.
    command: Callable[[Path], list[str]]
    #: The text of its report in that folder; OSError or ValueError where there is none.
    report: Callable[[Path], str]
    #: The launches in that text; ValueError where it is no table of them.
    launches: Callable[[str], list[KernelRow]]


def ncu_command(directory: Path) -> list[str]:
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


def ncu_launches(text: str) -> list[KernelRow]:
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
            KernelRow(
                kernel=row["Kernel Name"],
                calls=1,
                mean_us=(number(row[_TIME]) or 0.0) * scale,
                registers=whole(row.get(_REGISTERS)),
                shared_bytes=None if shared is None else int(shared * per_byte),
                occupancy_pct=number(row.get(_OCCUPANCY)),
            )
        )
    return profiled


def rocprof_command(directory: Path) -> list[str]:
    """Return the words in front of a command line; its CSV goes below `directory`."""
    return [
        *("rocprofv3", "--kernel-trace", "--output-format", "csv"),
        *("-d", str(directory), "-o", _NAME, "--"),
    ]


def rocprof_report(directory: Path) -> str:
    """Return the text of the kernel trace below `directory`; ValueError when there is none."""
    traces = sorted(directory.rglob("*kernel_trace.csv"))
    if not traces:
        raise ValueError("wrote no kernel trace")
    return traces[0].read_text(encoding="utf-8")


def rocprof_launches(text: str) -> list[KernelRow]:
    """Return the launches between two marks of a kernel trace; ValueError where it is none."""
    # Names of columns differ in case between versions; times are in nanoseconds.
    rows = [
        {str(name).lower(): cell for name, cell in row.items()}
        for row in csv.DictReader(text.splitlines())
    ]
    if not rows or not {"kernel_name", "start_timestamp", "end_timestamp"} <= rows[0].keys():
        raise ValueError("its table is no kernel trace")
    rows.sort(key=lambda row: int(row["start_timestamp"]))
    marks = [i for i, row in enumerate(rows) if _MARK in row["kernel_name"]]
    if len(marks) < 2:
        raise ValueError("the steps' marks are not in its kernel trace")
    return [
        KernelRow(
            kernel=row["kernel_name"],
            calls=1,
            mean_us=(int(row["end_timestamp"]) - int(row["start_timestamp"])) * 1e-3,
            registers=whole(row.get("vgpr_count")),
            accum_registers=whole(row.get("accum_vgpr_count")),
            scalar_registers=whole(row.get("sgpr_count")),
            shared_bytes=whole(row.get("lds_block_size")),
        )
        for row in rows[marks[0] + 1 : marks[-1]]
    ]


#: The page raw of Nsight Compute's CSV, and the kernel trace of rocprofv3's.
VENDOR_TOOLS = (
    VendorTool(
        "ncu",
        ncu_command,
        lambda folder: (folder / _REPORT).read_text(encoding="utf-8"),
        ncu_launches,
    ),
    VendorTool("rocprofv3", rocprof_command, rocprof_report, rocprof_launches),
)
