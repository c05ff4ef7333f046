"""`kopt export`: campaigns as files for other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_kopt.cli.commands import EXAMPLE, argument, command


@command(
    "export",
    "Write campaigns as tables: rounds, rows, pairs, profiles, conditions, and their units.",
    f"kopt export {EXAMPLE} -o tables",
    argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="campaigns, by name or path; default: the branch's or the only one",
    ),
    argument("-o", dest="output", type=Path, metavar="DIR", required=True),
    argument(
        "--format",
        choices=("csv", "parquet"),
        help="default: parquet if pyarrow is installed, else csv",
    ),
)
def export(arguments: argparse.Namespace) -> None:
    from pytest_kopt.analysis import frames as analysis

    frames = analysis.load(*arguments.names)
    for path, rows in analysis.export(frames, arguments.output, arguments.format).items():
        print(f"{path}: {rows} rows")
    if frames.missing:
        gone = f"{len(frames.missing)} file(s) of evidence, such as {frames.missing[0]}"
        print(f"not there any more: {gone}")
