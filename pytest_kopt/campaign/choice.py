"""Which campaign is meant when none is named."""

from __future__ import annotations

from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.layout import campaigns
from pytest_kopt.errors import BadInput


def choose_campaign(named: str | None, root: Path, workspace: Path) -> str:
    """Return the campaign's name: the given one, else the branch's, else the only one there is."""
    if named:
        return named
    repository = Repository.around(root)
    branch = repository.branch if repository else None
    known = campaigns(workspace)
    if branch and branch.startswith("optimize/") and branch.removeprefix("optimize/") in known:
        return branch.removeprefix("optimize/")
    if len(known) == 1:
        return known[0]
    if not known:
        raise BadInput(
            f"none exists yet in {root}",
            where="campaign",
            legal="`kopt init` begins one. Write options with a path outside of the project with "
            "an equals sign, or pytest looks for the project there",
        )
    raise BadInput(
        f"{len(known)} exist, and none is named",
        where="campaign",
        legal=f"NAME or --kopt-campaign NAME: {', '.join(known)}",
    )
