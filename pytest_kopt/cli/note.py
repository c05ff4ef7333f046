"""`kopt note`: what is only known after a round."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_kopt.campaign import notes
from pytest_kopt.cli.commands import Commands, add_name, command
from pytest_kopt.options.project import Project
from pytest_kopt.show.files import projections


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "note",
        "Add notes to a finished round or to the next one; later notes override earlier ones.",
        "kopt note softmax_triton_sm90_20261121 3 notes.md",
    )
    add_name(parser)
    parser.add_argument("round", type=int, metavar="N", help="number of the round")
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="YAML, or sections as in summary.md (FILE.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    given = notes.load(arguments.file)
    campaign = Project.here().campaign(arguments.name)
    with campaign.locked():
        campaign.note(arguments.round, given)
        projections.refresh(campaign)
    print(f"round {arguments.round}: noted {', '.join(given.given()) or 'nothing'}")
    return 0
