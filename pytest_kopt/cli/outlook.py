"""`kopt status` and `kopt advise`: the pages to read before the next round."""

from __future__ import annotations

import argparse

from pytest_kopt.campaign.outlook.advice import advice as advice_document
from pytest_kopt.campaign.outlook.status import status as status_document
from pytest_kopt.cli.command_line import EXAMPLE, JSON, NAME, command, show
from pytest_kopt.options.project import Project
from pytest_kopt.show.advice_text import lines as advice_lines
from pytest_kopt.show.standing import status_lines
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
