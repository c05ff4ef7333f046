"""`kopt stop` and `kopt abandon`: the user ends a campaign (T4)."""

from __future__ import annotations

import argparse

from pytest_kopt.cli.commands import Commands, add_name, command
from pytest_kopt.errors import BadInput
from pytest_kopt.options.project import Project
from pytest_kopt.show.files import projections


def add_parser(commands: Commands) -> None:
    for name, how, help in (
        (
            "stop",
            "stopped",
            "End a campaign: no further rounds; its best may still be compared with the baseline "
            "(--kopt-round final). Everything is kept.",
        ),
        (
            "abandon",
            "abandoned",
            "Give a campaign up: no further rounds and no final comparison. Everything is kept.",
        ),
    ):
        parser = command(commands, name, help, f"kopt {name} softmax_triton_sm90_20261121")
        add_name(parser)
        parser.set_defaults(run=run, how=how)


def run(arguments: argparse.Namespace) -> int:
    campaign = Project.here().campaign(arguments.name)
    with campaign.locked():
        if campaign.state.ended:
            raise BadInput(f"the campaign was {campaign.state.ended} already", where=campaign.name)
        campaign.end(arguments.how)
        projections.refresh(campaign)
    print(f"campaign {campaign.name} was {arguments.how}")
    return 0
