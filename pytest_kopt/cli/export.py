"""`kopt export`: campaigns as files for other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_kopt.cli.commands import Commands, command


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "export",
        "Write campaigns as tables: rounds, rows, pairs, profiles, conditions, and their units.",
        "kopt export softmax_triton_sm90_20261121 -o tables",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="campaigns, by name or path; default: the branch's or the only one",
    )
    parser.add_argument("-o", dest="output", type=Path, metavar="DIR", required=True)
    parser.add_argument(
        "--format",
        choices=("csv", "parquet"),
        help="default: parquet if pyarrow is installed, else csv",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pytest_kopt.analysis.frames import export, load

    frames = load(*arguments.names)
    for path, rows in export(frames, arguments.output, arguments.format).items():
        print(f"{path}: {rows} rows")
    if frames.missing:
        gone = f"{len(frames.missing)} file(s) of evidence, such as {frames.missing[0]}"
        print(f"not there any more: {gone}")
    return 0
