"""`kopt tips`: what earlier campaigns on the same GPU, op and backend learned."""

from __future__ import annotations

import argparse
from typing import get_args

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.notes import Bucket, Notes
from pytest_kopt.cli.commands import EXAMPLE, NAME, Argument, Command, argument, changing, command
from pytest_kopt.clock import now
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


@command("show", "Show the tips.", f"kopt tips show {EXAMPLE}", NAME)
def _show(arguments: argparse.Namespace) -> None:
    campaign = Project.here().campaign(arguments.name)
    path = tips.path_of(campaign.home, campaign.manifest)
    known = tips.entries(path)
    if not known:
        print(f"no tips yet; the first goes to {path}")
    for entry in known:
        print(f"{entry.number}. {entry.title}\n{entry.text}\n")


@command(
    "add",
    "Add what a round taught. Lines 'Context: …', 'Signal: …', 'Takeaway: …' and "
    "'Applicability: …' fill those fields; other text is the takeaway.",
    _ADDED,
    *(NAME, argument("round", type=int, metavar="N")),
    *_judged("the round's bucket, if its notes do not name it"),
)
def _add(arguments: argparse.Namespace) -> None:
    with changing(arguments.name) as campaign:
        campaign.note(arguments.round, _noted(arguments))
    if campaign.state.rounds[arguments.round].is_open:
        print("noted; it is appended when the round is decided")
    else:
        print(f"appended to {tips.path_of(campaign.home, campaign.manifest)}")


@command(
    "correct",
    "Append a correction to a tip: tips are never changed.",
    f"kopt tips correct {EXAMPLE} 2 'only below 4096 columns'",
    NAME,
    argument("tip", type=int, metavar="TIP", help="its number in `kopt tips show`"),
    *_judged("the tip's bucket, if it has none"),
)
def _correct(arguments: argparse.Namespace) -> None:
    campaign = Project.here().campaign(arguments.name)
    path = tips.path_of(campaign.home, campaign.manifest)
    with campaign.locked():
        more = tips.correction(arguments.tip, _noted(arguments), now(), tips.entries(path))
        projections.append(path, lambda _: more)
    print(f"appended to {path}")


def _noted(arguments: argparse.Namespace) -> Notes:
    marked = arguments.anti_pattern or None
    return Notes(tip=arguments.text, bucket=arguments.bucket, anti_pattern=marked)


COMMAND = Command(
    "tips",
    "Show or add tips for a campaign's GPU, op and backend.",
    _ADDED,
    (),
    actions=(_show, _add, _correct),
)
