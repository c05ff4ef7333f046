"""rocprofv3: its command line, and launches out of its kernel trace (CSV)."""

from __future__ import annotations

import csv
from pathlib import Path

from pytest_kopt.profiling.kernel_table import KernelLaunch, whole

TOOL = "rocprofv3"
#: Names that the kernel of `torch.cuda._sleep` contains; one stands before, one after the steps.
_MARK = "spin_kernel"
_NAME = "kopt"


def command(directory: Path) -> list[str]:
    """Return the words in front of a command line; its CSV goes below `directory`."""
    return [
        *("rocprofv3", "--kernel-trace", "--output-format", "csv"),
        *("-d", str(directory), "-o", _NAME, "--"),
    ]


def report(directory: Path) -> str:
    """Return the text of the kernel trace below `directory`; ValueError when there is none."""
    traces = sorted(directory.rglob("*kernel_trace.csv"))
    if not traces:
        raise ValueError("wrote no kernel trace")
    return traces[0].read_text()


def launches(text: str) -> list[KernelLaunch]:
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
        KernelLaunch(
            kernel=row["kernel_name"],
            duration_us=(int(row["end_timestamp"]) - int(row["start_timestamp"])) * 1e-3,
            registers=whole(row.get("vgpr_count")),
            accum_registers=whole(row.get("accum_vgpr_count")),
            scalar_registers=whole(row.get("sgpr_count")),
            shared_bytes=whole(row.get("lds_block_size")),
        )
        for row in rows[marks[0] + 1 : marks[-1]]
    ]
