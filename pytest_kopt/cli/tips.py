"""`kopt tips`: what earlier campaigns on the same GPU, op and backend learned."""

from __future__ import annotations

import argparse
from typing import get_args

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.notes import Bucket, Notes
from pytest_kopt.cli.commands import Commands, add_name, command
from pytest_kopt.clock import now
from pytest_kopt.options.project import Project
from pytest_kopt.show.files import projections


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "tips",
        "Show or add tips for a campaign's GPU, op and backend.",
        "kopt tips add softmax_triton_sm90_20261121 3 'exp2 with a folded scale saves a multiply'",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = command(actions, "show", "Show the tips.", "kopt tips show softmax_triton_sm90_20261121")
    add_name(show)
    show.set_defaults(run=_show)
    add = command(
        actions,
        "add",
        "Add what a round taught. Lines 'Context: …', 'Signal: …', 'Takeaway: …' and "
        "'Applicability: …' fill those fields; other text is the takeaway.",
        "kopt tips add softmax_triton_sm90_20261121 3 'exp2 with a folded scale saves a multiply'",
    )
    add_name(add)
    add.add_argument("round", type=int, metavar="N")
    _add_judgement(add, "the round's bucket, if its notes do not name it")
    add.set_defaults(run=_add)
    correct = command(
        actions,
        "correct",
        "Append a correction to a tip: tips are never changed.",
        "kopt tips correct softmax_triton_sm90_20261121 2 'only below 4096 columns'",
    )
    add_name(correct)
    correct.add_argument("tip", type=int, metavar="TIP", help="its number in `kopt tips show`")
    _add_judgement(correct, "the tip's bucket, if it has none")
    correct.set_defaults(run=_correct)


def _add_judgement(parser: argparse.ArgumentParser, bucket: str) -> None:
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument("--bucket", choices=get_args(Bucket), help=bucket)
    parser.add_argument("--anti-pattern", action="store_true", help="it says what not to do")


def _noted(arguments: argparse.Namespace) -> Notes:
    return Notes(
        tip=arguments.text,
        bucket=arguments.bucket,
        anti_pattern=arguments.anti_pattern or None,
    )


def _show(arguments: argparse.Namespace) -> int:
    campaign = Project.here().campaign(arguments.name)
    path = tips.path_of(campaign.home, campaign.manifest)
    known = tips.entries(path)
    if not known:
        print(f"no tips yet; the first goes to {path}")
    for entry in known:
        print(f"{entry.number}. {entry.title}\n{entry.text}\n")
    return 0


def _add(arguments: argparse.Namespace) -> int:
    campaign = Project.here().campaign(arguments.name)
    with campaign.locked():
        campaign.note(arguments.round, _noted(arguments))
        projections.refresh(campaign)
    if campaign.state.rounds[arguments.round].is_open:
        print("noted; it is appended when the round is decided")
    else:
        print(f"appended to {tips.path_of(campaign.home, campaign.manifest)}")
    return 0


def _correct(arguments: argparse.Namespace) -> int:
    campaign = Project.here().campaign(arguments.name)
    path = tips.path_of(campaign.home, campaign.manifest)
    with campaign.locked():
        more = tips.correction(arguments.tip, _noted(arguments), now(), tips.entries(path))
        projections.append(path, lambda _: more)
    print(f"appended to {path}")
    return 0
