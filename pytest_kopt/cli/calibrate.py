"""`kopt calibrate`: what this machine can resolve for these cases."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from pytest_kopt.cli.project import Commands, command


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "calibrate",
        "Compare cases with themselves in fresh processes: noise floor, smallest resolvable gain.",
        "kopt calibrate --tests tests/test_softmax.py --processes 20",
    )
    parser.add_argument("--tests", default="", metavar="'ARGS'", help="pytest arguments")
    parser.add_argument("--processes", type=int, default=8, metavar="N")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write JSON there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    words = [sys.executable, "-m", "pytest", "--kopt-calibrate", str(arguments.processes)]
    if arguments.output:
        words += ["--kopt-verdict", str(arguments.output)]
    return subprocess.run([*words, *shlex.split(arguments.tests)], check=False).returncode
