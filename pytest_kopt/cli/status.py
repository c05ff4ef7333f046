"""`kopt status`: the page an engineer or an agent reads before the next round."""

from __future__ import annotations

import argparse
import json

from pytest_kopt.campaign.outlook.status import status
from pytest_kopt.cli.commands import Commands, add_name, command
from pytest_kopt.options.project import Project
from pytest_kopt.show.status import lines
from pytest_kopt.trials.harness import edited_harness


def add_parser(commands: Commands) -> None:
    parser = command(
        commands, "status", "Show where a campaign stands and what is next.", "kopt status --json"
    )
    add_name(parser)
    parser.add_argument("--json", action="store_true", help="print data instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    project = Project.here()
    campaign = project.campaign(arguments.name)
    document = status(campaign, project.root, edited_harness(campaign))
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(lines(document)))
    return 0
