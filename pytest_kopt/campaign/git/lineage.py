"""Whether a tree holds what its campaign accepted: either may have come from another machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.state import CampaignState
from pytest_kopt.errors import BadInput


def check_branch(name: str, root: Path, repository: Repository, state: CampaignState) -> None:
    """Raise BadInput when HEAD has neither the last accepted commit nor that commit's kernel.

    History may have been rewritten or cut off, as long as it ends in what was accepted.
    """
    attempt = state.incumbent
    if attempt is None or attempt.decided is None or attempt.applied is None:
        return
    commit = attempt.applied.git_commit
    if commit is None or repository.holds(commit):
        return
    if _holds_kernel(root, repository, attempt.decided.kernel):
        return
    raise BadInput(
        f"the tree's branch lacks commit {commit[:12]} of round "
        f"{state.incumbent_round}, the last accepted",
        where="git",
        legal="fetch the campaign's branch and merge it (git merge --ff-only), or begin a new "
        f"campaign (kopt init NEW --from {name})",
    )


def edited(root: Path, manifest: Manifest, state: CampaignState) -> list[str]:
    """Return the kernel files of the tree that are not the last accepted ones; none before."""
    attempt = state.incumbent
    if attempt is None or attempt.decided is None:
        return []
    accepted = attempt.decided.kernel
    known = [path for path in manifest.kernel_source if (root / path).exists()]
    found = KernelVersion.take(root, known).hashes
    return [path for path in sorted({*accepted, *found}) if accepted.get(path) != found.get(path)]


def _holds_kernel(root: Path, repository: Repository, kernel: Mapping[str, str]) -> bool:
    """Say whether HEAD holds the kernel files as they were accepted; git keeps no ignored ones."""
    paths = {repository.relative(root, path): sha256 for path, sha256 in kernel.items()}
    kept = repository.committed(paths)
    return all(hashlib.sha256(content).hexdigest() == paths[path] for path, content in kept.items())
