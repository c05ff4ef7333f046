"""`kopt record`: the arguments of a function in a real run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_kopt.cli.command_line import argument, command
from pytest_kopt.recording.recorded_cases import recorded
from pytest_kopt.recording.recorder import run_recorded


@command(
    "kopt record --call kernels.softmax:softmax -- python train.py",
    argument("--call", required=True, metavar="MODULE:NAME", help="the function: pkg.mod:softmax"),
    argument(
        "--into",
        type=lambda text: Path(text).resolve(),
        default=Path("recorded"),
        metavar="FOLDER",
        help="where the record goes (default: recorded)",
    ),
    argument("--contents", action="store_true", help="keep the tensors too, up to 64 MiB each"),
)
def record(arguments: argparse.Namespace) -> int:
    """Run a Python program and record with which arguments it calls a function: each signature,
    how often, and how long the calls take. Tests draw such arguments with
    pytest_kopt.recorded(FOLDER). The exit code is the program's, or 4: nothing that can be drawn
    was called.
    """
    into, contents = arguments.into.resolve(), arguments.contents
    code = run_recorded(arguments.words, arguments.call, into, contents=contents)
    if not code:
        cases = recorded(into)
        calls = sum(case.calls for case in cases)
        # What the program prints may be data.
        print(f"{into}: {calls} calls of {len(cases)} signatures", file=sys.stderr)
    return code
