"""Entry of `kopt`: which command, and bad input as one message with exit code 4."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_kopt.cli import (
    advise,
    calibrate,
    decide,
    demo,
    init,
    lifecycle,
    memory,
    note,
    report,
    status,
    tips,
)
from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode

_COMMANDS = (
    demo,
    init,
    status,
    advise,
    note,
    decide,
    report,
    calibrate,
    tips,
    memory,
    lifecycle,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="kopt",
        description="Kernel optimisation campaigns: everything around `pytest --kopt-round`.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_parser(commands)
    # argparse's own exit code for usage is 2; ours is 4, as pytest's.
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:
        return int(ExitCode.USAGE) if stop.code else 0
    try:
        return int(arguments.run(arguments))
    except BadInput as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return int(ExitCode.USAGE)
