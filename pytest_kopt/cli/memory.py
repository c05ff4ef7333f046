"""`kopt memory`: the iteration memory, and which of it planning may look at."""

from __future__ import annotations

import argparse
import secrets

from pytest_kopt.campaign.history import memory
from pytest_kopt.cli.commands import Commands, add_name, command
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed
from pytest_kopt.options.project import Project
from pytest_kopt.show.files import projections

_CAMPAIGN = "softmax_triton_sm90_20261121"


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "memory",
        "List, show and mask the iteration memory (v0 is the baseline, vN round N + 1).",
        f"kopt memory mask {_CAMPAIGN} v3 v4",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, help, example, run in (
        ("list", "List the versions.", f"kopt memory list {_CAMPAIGN}", _list),
        ("show", "Print one version.", f"kopt memory show {_CAMPAIGN} v3", _show),
        ("mask", "Skip versions everywhere.", f"kopt memory mask {_CAMPAIGN} v3", _change),
        ("unmask", "Use masked versions again.", f"kopt memory unmask {_CAMPAIGN} v3", _change),
        (
            "restart",
            "Partial restart: mask about half, drawn by a seed, but never v0 or the best.",
            f"kopt memory restart {_CAMPAIGN} --seed 7",
            _restart,
        ),
    ):
        action = command(actions, name, help, example)
        add_name(action)
        if name == "show":
            action.add_argument("version", metavar="VERSION")
        if name in ("mask", "unmask"):
            action.add_argument("versions", nargs="+", metavar="VERSION")
            action.set_defaults(reason="")
        if name == "mask":
            action.add_argument("--reason", metavar="TEXT")
        if name == "restart":
            action.add_argument("--seed", type=int, metavar="N", help="default: drawn, recorded")
        action.set_defaults(run=run, masked=name == "mask")


def _list(arguments: argparse.Namespace) -> int:
    campaign = Project.here().campaign(arguments.name)
    for item in campaign.state.decided_rounds():
        version = memory.version_of(item.number)
        decided = item.verdict
        assert decided is not None
        total = decided.aggregate
        change = f" {changed(total.change_pct)}" if total and total.change_pct is not None else ""
        masked = " (masked)" if version in campaign.state.masked else ""
        print(f"v{version} round {item.number}: {decided.decision}{change}{masked}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    campaign = Project.here().campaign(arguments.name)
    version = memory.parse_version(arguments.version)
    path = campaign.layout.memory(version)
    if version not in memory.versions(campaign.state) or not path.is_file():
        known = [f"v{there}" for there in memory.versions(campaign.state)]
        raise BadInput(f"v{version} does not exist", where="kopt memory", legal=known or "none yet")
    print(path.read_text().rstrip())
    return 0


def _change(arguments: argparse.Namespace) -> int:
    campaign, masked = Project.here().campaign(arguments.name), arguments.masked
    wanted = sorted({memory.parse_version(text) for text in arguments.versions})
    with campaign.locked():
        memory.check_versions(campaign.state, wanted, masked=masked)
        campaign.mask(wanted, masked=masked, reason=arguments.reason)
        projections.refresh(campaign)
    word = "masked" if masked else "unmasked"
    print(f"{word} {', '.join(f'v{version}' for version in wanted)}")
    return 0


def _restart(arguments: argparse.Namespace) -> int:
    campaign = Project.here().campaign(arguments.name)
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(2**31)
    with campaign.locked():
        drawn = memory.draw_restart(campaign.state, seed)
        campaign.mask(drawn, masked=True, reason="partial restart", seed=seed)
        projections.refresh(campaign)
    print(f"masked {', '.join(f'v{version}' for version in drawn)} (seed {seed})")
    return 0
