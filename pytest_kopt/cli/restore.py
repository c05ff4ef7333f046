"""`kopt restore`, `kopt retry` and `kopt discard`: recorded versions, and the open round."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.cli.commands import Commands, add_name, command
from pytest_kopt.errors import BadInput
from pytest_kopt.options.project import Project
from pytest_kopt.show.files import projections
from pytest_kopt.trials.rounds.discard import discard


def add_parser(commands: Commands) -> None:
    for name, text, example, run in (
        (
            "restore",
            "Put the version that a round measured into the tree; what is there is kept.",
            "kopt restore 3",
            _restore,
        ),
        (
            "retry",
            "Restore the version that a round measured, and measure it again as the next round.",
            "kopt retry 3",
            _retry,
        ),
        (
            "discard",
            "End the open round: it is rolled back, and its version is kept.",
            "kopt discard",
            _discard,
        ),
    ):
        parser = command(commands, name, text, example)
        add_name(parser)
        if run is not _discard:
            parser.add_argument("round", type=int, metavar="N", help="number of the round")
        parser.set_defaults(run=run)


def _restore(arguments: argparse.Namespace) -> int:
    campaign = Project.here().campaign(arguments.name)
    with campaign.locked():
        _settle(campaign)
        _put_back(campaign, arguments.round)
    return 0


def _retry(arguments: argparse.Namespace) -> int:
    campaign, number = Project.here().campaign(arguments.name), arguments.round
    with campaign.locked():
        _settle(campaign)
        following = campaign.state.next_round
        if campaign.state.has_begun(following):
            raise BadInput(
                f"round {following} is open", where="kopt retry", legal="mend it, or kopt discard"
            )
        stops.refuse_another_round(
            stops.check(campaign.name, campaign.state, campaign.manifest, campaign.policy())
        )
        _put_back(campaign, number)
        known = campaign.state.rounds[number].notes.given()
    # Its tip has been told already.
    notes = {key: text for key, text in known.items() if key not in ("tip", "anti_pattern")}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "notes.yaml"
        file.write_text(json.dumps({"summary": f"round {number} again"} | notes))
        words = ("--kopt-campaign", campaign.name, "--kopt-round", str(following))
        return subprocess.call(
            [sys.executable, "-m", "pytest", *words, f"--kopt-notes={file}"],
            cwd=campaign.root,
        )


def _discard(arguments: argparse.Namespace) -> int:
    campaign = Project.here().campaign(arguments.name)
    with campaign.locked():
        _settle(campaign)
        number = discard(campaign)
        _settle(campaign)
    print(f"round {number} was discarded; round {campaign.state.incumbent_round}'s version is back")
    return 0


def _settle(campaign: Campaign) -> None:
    """Carry out what was decided; BadInput where the tree is in no state for it."""
    campaign.check_ready()
    campaign.settle(beside=projections.performance)
    projections.refresh(campaign)


def _put_back(campaign: Campaign, number: int) -> None:
    files = campaign.restore(number)
    projections.refresh(campaign)
    kept = campaign.layout.replaced(len(campaign.state.restores))
    what = f"{', '.join(files)} restored; what was there is kept in {kept}"
    print(f"round {number}: {what if files else 'its version is in the tree already'}", flush=True)
