"""`kopt memory`: the iteration memory, and which of it planning may look at."""

from __future__ import annotations

import argparse
import secrets

from pytest_kopt.campaign.history import memory
from pytest_kopt.cli.commands import EXAMPLE, NAME, Command, argument, changing, command
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed
from pytest_kopt.options.project import Project

_VERSIONS = argument("versions", nargs="+", metavar="VERSION")


@command("list", "List the versions.", f"kopt memory list {EXAMPLE}", NAME)
def _list(arguments: argparse.Namespace) -> None:
    campaign = Project.here().campaign(arguments.name)
    for item in campaign.state.decided_rounds():
        version = memory.version_of(item.number)
        decided = item.verdict
        assert decided is not None
        total = decided.aggregate
        change = f" {changed(total.change_pct)}" if total and total.change_pct is not None else ""
        masked = " (masked)" if version in campaign.state.masked else ""
        print(f"v{version} round {item.number}: {decided.decision}{change}{masked}")


@command(
    "show",
    "Print one version.",
    f"kopt memory show {EXAMPLE} v3",
    NAME,
    argument("version", metavar="VERSION"),
)
def _show(arguments: argparse.Namespace) -> None:
    campaign = Project.here().campaign(arguments.name)
    version = memory.parse_version(arguments.version)
    path = campaign.layout.memory(version)
    if version not in memory.versions(campaign.state) or not path.is_file():
        known = [f"v{there}" for there in memory.versions(campaign.state)]
        raise BadInput(f"v{version} does not exist", where="kopt memory", legal=known or "none yet")
    print(path.read_text().rstrip())


@command(
    "mask",
    "Skip versions everywhere.",
    f"kopt memory mask {EXAMPLE} v3",
    *(NAME, _VERSIONS),
    argument("--reason", default="", metavar="TEXT"),
)
def _mask(arguments: argparse.Namespace) -> None:
    _change(arguments, masked=True, reason=arguments.reason)


@command(
    "unmask",
    "Use masked versions again.",
    f"kopt memory unmask {EXAMPLE} v3",
    *(NAME, _VERSIONS),
)
def _unmask(arguments: argparse.Namespace) -> None:
    _change(arguments, masked=False)


@command(
    "restart",
    "Partial restart: mask about half, drawn by a seed, but never v0 or the best.",
    f"kopt memory restart {EXAMPLE} --seed 7",
    NAME,
    argument("--seed", type=int, metavar="N", help="default: drawn, recorded"),
)
def _restart(arguments: argparse.Namespace) -> None:
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(2**31)
    with changing(arguments.name) as campaign:
        drawn = memory.draw_restart(campaign.state, seed)
        campaign.mask(drawn, masked=True, reason="partial restart", seed=seed)
    print(f"masked {_named(drawn)} (seed {seed})")


def _change(arguments: argparse.Namespace, *, masked: bool, reason: str = "") -> None:
    with changing(arguments.name) as campaign:
        wanted = sorted({memory.parse_version(text) for text in arguments.versions})
        memory.check_versions(campaign.state, wanted, masked=masked)
        campaign.mask(wanted, masked=masked, reason=reason)
    print(f"{'masked' if masked else 'unmasked'} {_named(wanted)}")


def _named(versions: list[int]) -> str:
    return ", ".join(f"v{version}" for version in versions)


COMMAND = Command(
    "memory",
    "List, show and mask the iteration memory (v0 is the baseline, vN round N + 1).",
    f"kopt memory mask {EXAMPLE} v3 v4",
    (),
    actions=(_list, _show, _mask, _unmask, _restart),
)
