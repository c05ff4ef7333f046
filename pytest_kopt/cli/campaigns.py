"""Commands about one campaign.

`kopt status`, `advise`, `tips` and `memory` show it; `note`, `restore`, `retry`, `discard`, `stop`,
`abandon` and `remove` change it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal, get_args

from pytest_kopt.campaign import notes, tips
from pytest_kopt.campaign.attempt import Evidence
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import branch_of
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.layout import find
from pytest_kopt.campaign.notes import Bucket, Notes
from pytest_kopt.campaign.outlook.status import final_command
from pytest_kopt.campaign.outlook.status import status as status_document
from pytest_kopt.campaign.outlook.status_model import advice as advice_document
from pytest_kopt.campaign.recording import record_attempt
from pytest_kopt.campaign.running import remove as remove_campaign
from pytest_kopt.cli.command_line import (
    EXAMPLE,
    JSON,
    NAME,
    ROUND,
    Command,
    argument,
    changing,
    command,
    show,
)
from pytest_kopt.clock import now
from pytest_kopt.decide.grounds import GO_ON, RESTORED, Ground, Observation
from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options.project import Project
from pytest_kopt.show.standing import advice_lines, status_lines
from pytest_kopt.trials.harness import edited_harness

_ADDED = f"kopt tips add {EXAMPLE} 3 'exp2 with a folded scale saves a multiply'"
_VERSIONS = argument("versions", nargs="+", metavar="VERSION")


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
                f"round {following} is open",
                where="kopt retry",
                fix=f"pytest --kopt-round {following}, or kopt discard",
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
        file.write_text(
            json.dumps({"summary": f"round {number} again"} | repeated), encoding="utf-8"
        )
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
    _warn_of_build(campaign)


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
            what = "asks for confirmation, and the input is no terminal"
            raise BadInput(what, where="kopt remove", fix=f"kopt remove {layout.name} --yes")
        print(f"pack and delete {layout.directory}? [y/N] ", end="", flush=True)
        if terminal.readline().strip().lower() not in ("y", "yes"):
            print("nothing was changed")
            return int(ExitCode.USAGE)
    print(f"removed; kept as {remove_campaign(layout)}")
    branch, repository = f"optimize/{layout.name}", Repository.around(project.root)
    if repository is not None and repository.has_branch(branch):
        leave = "git switch - && " if repository.branch == branch else ""
        print(f"branch {branch} is left: {leave}git branch -D {branch} deletes it")
    return int(ExitCode.OK)


def _end(arguments: argparse.Namespace, how: Literal["stopped", "abandoned"]) -> None:
    with changing(arguments.name) as campaign:
        if campaign.state.ended:
            raise BadInput(f"the campaign was {campaign.state.ended} already", where=campaign.name)
        campaign.end(how)
    print(f"campaign {campaign.name} was {how}")
    if final := final_command(campaign):
        branch = branch_of(campaign.name, campaign.manifest)
        merges = f"; git merge {branch} brings it to your branch" if branch else ""
        print(f"{final} compares its best with the baseline{merges}")


def _settle(campaign: Campaign) -> None:
    """Carry out what was decided; BadInput where the tree is in no state for it."""
    from pytest_kopt.trials.campaign_trial import carry_out

    campaign.check_ready()
    carry_out(campaign)


def _put_back(campaign: Campaign, number: int) -> None:
    files = campaign.restore(number)
    replaced = campaign.layout.replaced(len(campaign.state.restores))
    what = f"{', '.join(files)} restored; what was there is kept in {replaced}"
    print(f"round {number}: {what if files else 'its version is in the tree already'}", flush=True)
    _warn_of_build(campaign)


def _warn_of_build(campaign: Campaign) -> None:
    if advice := campaign.foreign_build:
        print(advice, flush=True)


def _discarded(campaign: Campaign) -> int:
    """Decide the open round and return its number; BadInput where none is open, and for round 1."""
    number = campaign.state.next_round
    if campaign.state.baseline is None or not campaign.state.has_begun(number):
        raise BadInput("no round after the baseline is open", where=campaign.name)
    before = campaign.state.rounds[number].last.decided
    after = f" after {before.decision}: {before.reason}" if before else ""
    record_attempt(
        campaign,
        number,
        started=now(),
        evidence=Evidence(campaign.candidate(), (), None, {"started": now(), "discarded": True}),
        verdict=Observation(
            Ground.DISCARDED,
            f"discarded by its author{after}",
            f"{RESTORED}; {GO_ON}",
            {"level": before.level} if before else {},
        ).verdict(campaign.policy().name),
    )
    return number


@command(f"kopt tips show {EXAMPLE}", NAME)
def tips_show(arguments: argparse.Namespace) -> None:
    """Show the tips."""
    campaign = Project.here().campaign(arguments.name)
    path = tips.path_of(campaign.root, campaign.manifest)
    entries = tips.entries(path)
    if not entries:
        print(f"no tips yet; the first goes to {path}")
    for entry in entries:
        print(f"{entry.number}. {entry.title}\n{entry.text}\n")


@command(
    _ADDED,
    NAME,
    argument("round", type=int, metavar="N"),
    argument("text", metavar="TEXT"),
    argument("--bucket", choices=get_args(Bucket), help="if the round's notes do not name it"),
    argument("--anti-pattern", action="store_true", help="it says what not to do"),
)
def tips_add(arguments: argparse.Namespace) -> None:
    """Add what a round taught."""
    with changing(arguments.name) as campaign:
        marked = arguments.anti_pattern or None
        tip = Notes(tip=arguments.text, bucket=arguments.bucket, anti_pattern=marked)
        campaign.note(arguments.round, tip)
    if campaign.state.rounds[arguments.round].is_open:
        print("noted; it is appended when the round is decided")
    else:
        print(f"appended to {tips.path_of(campaign.root, campaign.manifest)}")


TIPS = Command(
    "tips",
    "Show or add tips for a campaign's GPU, op and backend.",
    _ADDED,
    (),
    actions=(tips_show, tips_add),
)


@command(f"kopt memory mask {EXAMPLE} v3", NAME, _VERSIONS)
def memory_mask(arguments: argparse.Namespace) -> None:
    """Leave versions out of every view."""
    with changing(arguments.name) as campaign:
        _mark(campaign, _versions(arguments, campaign), masked=True)


@command(f"kopt memory unmask {EXAMPLE} v3", NAME, _VERSIONS)
def memory_unmask(arguments: argparse.Namespace) -> None:
    """Show masked versions again."""
    with changing(arguments.name) as campaign:
        _mark(campaign, _versions(arguments, campaign), masked=False)


@command(
    f"kopt memory restart {EXAMPLE} --seed 7",
    NAME,
    argument("--seed", type=int, metavar="N", help="default: drawn, recorded"),
)
def memory_restart(arguments: argparse.Namespace) -> None:
    """Mask about half of the versions, drawn by a seed, but never v0 or the best."""
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(2**31)
    with changing(arguments.name) as campaign:
        drawn = campaign.state.half(seed)
        if not drawn:
            what = "every version that is not masked is the baseline or the best"
            raise BadInput(what, where="kopt memory restart")
        _mark(campaign, drawn, masked=True, seed=seed)


def _versions(arguments: argparse.Namespace, campaign: Campaign) -> list[int]:
    legal = [f"v{round.version}" for round in campaign.state.decided_rounds()]
    for version in arguments.versions:
        if version not in legal:
            what = f"{version} does not exist"
            raise BadInput(what, where="kopt memory", legal=legal or "none yet")
    return sorted(int(version[1:]) for version in {*arguments.versions})


def _mark(
    campaign: Campaign, versions: list[int], *, masked: bool, seed: int | None = None
) -> None:
    campaign.mask(versions, masked=masked, seed=seed)
    named = ", ".join(f"v{version}" for version in versions)
    print(f"{'masked' if masked else 'unmasked'} {named}")


MEMORY = Command(
    "memory",
    "Mask versions of memory/vN.json, or half of them (v0 is the baseline, vN round N + 1).",
    f"kopt memory mask {EXAMPLE} v3 v4",
    (),
    actions=(memory_mask, memory_unmask, memory_restart),
)
