"""`kopt advise`: what to read and what to try before the next round."""

from __future__ import annotations

import argparse
import json

from pytest_kopt.campaign.outlook.advice import advice
from pytest_kopt.cli.commands import Commands, add_name, command
from pytest_kopt.options.project import Project
from pytest_kopt.show.advice import lines


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "advise",
        "Show what to read, what bounds the cases, what was learned, and what was not tried yet.",
        "kopt advise softmax_triton_sm90_20261121",
    )
    add_name(parser)
    parser.add_argument("--json", action="store_true", help="print data instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    document = advice(Project.here().campaign(arguments.name))
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(lines(document)))
    return 0
