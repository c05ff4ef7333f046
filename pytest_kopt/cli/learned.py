"""`kopt tips` and `kopt memory`: what campaigns learned, and which of it planning may look at."""

from __future__ import annotations

import argparse
import secrets
from typing import get_args

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.history import memory
from pytest_kopt.campaign.notes import Bucket, Notes
from pytest_kopt.cli.command_line import (
    EXAMPLE,
    NAME,
    Argument,
    Command,
    argument,
    changing,
    command,
)
from pytest_kopt.clock import now
from pytest_kopt.figures import changed
from pytest_kopt.options.project import Project
from pytest_kopt.show.files import projections

_ADDED = f"kopt tips add {EXAMPLE} 3 'exp2 with a folded scale saves a multiply'"


def _judged(bucket: str) -> tuple[Argument, ...]:
    """Return the arguments of a tip that is told here."""
    return (
        argument("text", metavar="TEXT"),
        argument("--bucket", choices=get_args(Bucket), help=bucket),
        argument("--anti-pattern", action="store_true", help="it says what not to do"),
    )


@command(f"kopt tips show {EXAMPLE}", NAME)
def tips_show(arguments: argparse.Namespace) -> None:
    """Show the tips."""
    campaign = Project.here().campaign(arguments.name)
    path = tips.path_of(campaign.home, campaign.manifest)
    entries = tips.entries(path)
    if not entries:
        print(f"no tips yet; the first goes to {path}")
    for entry in entries:
        print(f"{entry.number}. {entry.title}\n{entry.text}\n")


@command(
    _ADDED,
    NAME,
    argument("round", type=int, metavar="N"),
    *_judged("the round's bucket, if its notes do not name it"),
)
def tips_add(arguments: argparse.Namespace) -> None:
    """Add what a round taught.

    Lines 'Context: …', 'Signal: …', 'Takeaway: …' and 'Applicability: …' fill those fields; other
    text is the takeaway.
    """
    with changing(arguments.name) as campaign:
        campaign.note(arguments.round, _noted(arguments))
    if campaign.state.rounds[arguments.round].is_open:
        print("noted; it is appended when the round is decided")
    else:
        print(f"appended to {tips.path_of(campaign.home, campaign.manifest)}")


@command(
    f"kopt tips correct {EXAMPLE} 2 'only below 4096 columns'",
    NAME,
    argument("tip", type=int, metavar="TIP", help="its number in `kopt tips show`"),
    *_judged("the tip's bucket, if it has none"),
)
def tips_correct(arguments: argparse.Namespace) -> None:
    """Append a correction to a tip: tips are never changed."""
    campaign = Project.here().campaign(arguments.name)
    path = tips.path_of(campaign.home, campaign.manifest)
    with campaign.locked():
        more = tips.correction(arguments.tip, _noted(arguments), now(), tips.entries(path))
        projections.append(path, lambda _: more)
    print(f"appended to {path}")


def _noted(arguments: argparse.Namespace) -> Notes:
    marked = arguments.anti_pattern or None
    return Notes(tip=arguments.text, bucket=arguments.bucket, anti_pattern=marked)


TIPS = Command(
    "tips",
    "Show or add tips for a campaign's GPU, op and backend.",
    _ADDED,
    (),
    actions=(tips_show, tips_add, tips_correct),
)


_VERSIONS = argument("versions", nargs="+", metavar="VERSION")


@command(f"kopt memory list {EXAMPLE}", NAME)
def memory_list(arguments: argparse.Namespace) -> None:
    """List the versions."""
    campaign = Project.here().campaign(arguments.name)
    for round in campaign.state.decided_rounds():
        decided = round.last.outcome()
        total = decided.aggregate
        change = f" {changed(total.change_pct)}" if total and total.change_pct is not None else ""
        masked = " (masked)" if round.version in campaign.state.masked else ""
        print(f"v{round.version} round {round.number}: {decided.decision}{change}{masked}")


@command(f"kopt memory show {EXAMPLE} v3", NAME, argument("version", metavar="VERSION"))
def memory_show(arguments: argparse.Namespace) -> None:
    """Print one version."""
    campaign = Project.here().campaign(arguments.name)
    version = memory.parse_version(arguments.version)
    path = campaign.layout.memory(version)
    if version not in memory.versions(campaign.state) or not path.is_file():
        raise memory.missing(campaign.state, version)
    print(path.read_text().rstrip())


@command(
    f"kopt memory mask {EXAMPLE} v3",
    NAME,
    _VERSIONS,
    argument("--reason", default="", metavar="TEXT"),
)
def memory_mask(arguments: argparse.Namespace) -> None:
    """Skip versions everywhere."""
    _mark(arguments, masked=True, reason=arguments.reason)


@command(f"kopt memory unmask {EXAMPLE} v3", NAME, _VERSIONS)
def memory_unmask(arguments: argparse.Namespace) -> None:
    """Use masked versions again."""
    _mark(arguments, masked=False)


@command(
    f"kopt memory restart {EXAMPLE} --seed 7",
    NAME,
    argument("--seed", type=int, metavar="N", help="default: drawn, recorded"),
)
def memory_restart(arguments: argparse.Namespace) -> None:
    """Partial restart: mask about half, drawn by a seed, but never v0 or the best."""
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(2**31)
    with changing(arguments.name) as campaign:
        drawn = memory.draw_restart(campaign.state, seed)
        campaign.mask(drawn, masked=True, reason="partial restart", seed=seed)
    print(f"masked {_named(drawn)} (seed {seed})")


def _mark(arguments: argparse.Namespace, *, masked: bool, reason: str = "") -> None:
    with changing(arguments.name) as campaign:
        named = sorted({memory.parse_version(text) for text in arguments.versions})
        memory.check_versions(campaign.state, named, masked=masked)
        campaign.mask(named, masked=masked, reason=reason)
    print(f"{'masked' if masked else 'unmasked'} {_named(named)}")


def _named(versions: list[int]) -> str:
    return ", ".join(f"v{version}" for version in versions)


MEMORY = Command(
    "memory",
    "List, show and mask the iteration memory (v0 is the baseline, vN round N + 1).",
    f"kopt memory mask {EXAMPLE} v3 v4",
    (),
    actions=(memory_list, memory_show, memory_mask, memory_unmask, memory_restart),
)
