"""Commands about one campaign.

`kopt status` and `advise` show it; `note`, `restore`, `retry`, `discard`, `stop`, `abandon` and
`remove` change it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from pytest_kopt.campaign import notes
from pytest_kopt.campaign.attempt import Evidence
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.layout import find
from pytest_kopt.campaign.outlook.advice import advice as advice_document
from pytest_kopt.campaign.outlook.status import status as status_document
from pytest_kopt.campaign.recording import record_attempt
from pytest_kopt.campaign.removal import remove as remove_campaign
from pytest_kopt.cli.command_line import (
    EXAMPLE,
    JSON,
    NAME,
    ROUND,
    argument,
    changing,
    command,
    show,
)
from pytest_kopt.clock import now
from pytest_kopt.decide.hard_gates import uncompared
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options.project import Project
from pytest_kopt.show.files import projections
from pytest_kopt.show.standing import advice_lines, status_lines
from pytest_kopt.trials.harness import edited_harness


@command("kopt status --json", NAME, JSON)
def status(arguments: argparse.Namespace) -> None:
    """Show where a campaign stands and what is next."""
    project = Project.here()
    campaign = project.campaign(arguments.name)
    document = status_document(campaign, project.root, edited_harness(campaign))
    show(arguments, document, status_lines)


@command(f"kopt advise {EXAMPLE}", NAME, JSON)
def advise(arguments: argparse.Namespace) -> None:
    """Show what to read, what bounds the cases, what was learned, and what was not tried yet."""
    show(arguments, advice_document(Project.here().campaign(arguments.name)), advice_lines)


@command(
    f"kopt note {EXAMPLE} 3 notes.md",
    NAME,
    ROUND,
    argument(
        "file", type=Path, metavar="FILE", help="YAML, or sections as in summary.md (FILE.md)"
    ),
)
def note(arguments: argparse.Namespace) -> None:
    """Add notes to a finished round or to the next one; later notes override earlier ones."""
    added = notes.load(arguments.file)
    with changing(arguments.name) as campaign:
        campaign.note(arguments.round, added)
    print(f"round {arguments.round}: noted {', '.join(added.given()) or 'nothing'}")


@command("kopt restore 3", NAME, ROUND)
def restore(arguments: argparse.Namespace) -> None:
    """Put the version that a round measured into the tree; what is there is kept."""
    with changing(arguments.name) as campaign:
        _settle(campaign)
        _put_back(campaign, arguments.round)


@command("kopt retry 3", NAME, ROUND)
def retry(arguments: argparse.Namespace) -> int:
    """Restore the version that a round measured, and measure it again as the next round."""
    number = arguments.round
    with changing(arguments.name) as campaign:
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
        written = campaign.state.rounds[number].notes.given()
    # Its tip has been told already.
    repeated = {key: text for key, text in written.items() if key not in ("tip", "anti_pattern")}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "notes.yaml"
        file.write_text(json.dumps({"summary": f"round {number} again"} | repeated))
        words = ("--kopt-campaign", campaign.name, "--kopt-round", str(following))
        return subprocess.call(
            [sys.executable, "-m", "pytest", *words, f"--kopt-notes={file}"], cwd=campaign.root
        )


@command("kopt discard", NAME)
def discard(arguments: argparse.Namespace) -> None:
    """End the open round: it is rolled back, and its version is kept."""
    with changing(arguments.name) as campaign:
        _settle(campaign)
        number = _discarded(campaign)
        _settle(campaign)
    print(f"round {number} was discarded; round {campaign.state.incumbent_round}'s version is back")


@command(f"kopt stop {EXAMPLE}", NAME)
def stop(arguments: argparse.Namespace) -> None:
    """End a campaign: no further rounds; its best may still be compared with the baseline
    (--kopt-round final). Everything is kept.
    """
    _end(arguments, "stopped")


@command(f"kopt abandon {EXAMPLE}", NAME)
def abandon(arguments: argparse.Namespace) -> None:
    """Give a campaign up: no further rounds and no final comparison. Everything is kept."""
    _end(arguments, "abandoned")


@command(
    f"kopt remove {EXAMPLE}",
    argument("name", metavar="NAME", help="the campaign"),
    argument("--yes", action="store_true", help="do not ask"),
)
def remove(arguments: argparse.Namespace) -> int:
    """Take a campaign away: its directory is packed into a tarball in the workspace and deleted.
    Branch and kernel files stay. It asks first.
    """
    # Pytest, which finds the project, puts a stream of its own in this one's place.
    terminal = sys.stdin
    project = Project.here()
    layout = find(project.workspace, arguments.name)
    if not arguments.yes:
        if not terminal.isatty():
            raise BadInput("it asks before it deletes", where="kopt remove", legal="--yes")
        print(f"pack and delete {layout.directory}? [y/N] ", end="", flush=True)
        if terminal.readline().strip().lower() not in ("y", "yes"):
            print("nothing was changed")
            return int(ExitCode.USAGE)
    print(f"removed; kept as {remove_campaign(layout)}")
    branch, repository = f"optimize/{layout.name}", Repository.around(project.root)
    if repository is not None and repository.has_branch(branch):
        print(f"branch {branch} is left: git branch -D {branch} deletes it")
    return int(ExitCode.OK)


def _end(arguments: argparse.Namespace, how: Literal["stopped", "abandoned"]) -> None:
    with changing(arguments.name) as campaign:
        if campaign.state.ended:
            raise BadInput(f"the campaign was {campaign.state.ended} already", where=campaign.name)
        campaign.end(how)
    print(f"campaign {campaign.name} was {how}")


def _settle(campaign: Campaign) -> None:
    """Carry out what was decided; BadInput where the tree is in no state for it."""
    campaign.check_ready()
    campaign.settle(beside=projections.performance)
    projections.refresh(campaign)


def _put_back(campaign: Campaign, number: int) -> None:
    files = campaign.restore(number)
    replaced = campaign.layout.replaced(len(campaign.state.restores))
    what = f"{', '.join(files)} restored; what was there is kept in {replaced}"
    print(f"round {number}: {what if files else 'its version is in the tree already'}", flush=True)


def _discarded(campaign: Campaign) -> int:
    """Decide the open round and return its number; BadInput where none is open, and for round 1."""
    number = campaign.state.next_round
    if campaign.state.baseline is None or not campaign.state.has_begun(number):
        raise BadInput("no round after the baseline is open", where=campaign.name)
    last = campaign.state.rounds[number].last
    before = last.decided
    after = f" after {before.decision}: {before.reason}" if before else ""
    record_attempt(
        campaign,
        number,
        started=now(),
        level=last.level,
        evidence=Evidence(campaign.candidate(), (), None, {"started": now(), "discarded": True}),
        verdict=uncompared(
            campaign.policy(),
            Decision.ROLLED_BACK,
            f"discarded by its author{after}",
            "the incumbent is back; go on with the next round",
        ).model_copy(update={"level": last.level}),
    )
    return number
