"""The commits of a campaign, and whether a tree holds what it accepted.

Tree and campaign may have come from another machine, each.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import branch_of, nested_around
from pytest_kopt.campaign.kernel import KernelVersion, sha256
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.errors import BadInput, CannotFinish

#: Files to commit by their path in the project; None where one goes.
Files = Mapping[str, Path | None]


def check_branch(name: str, root: Path, repository: Repository, state: CampaignState) -> None:
    """Raise BadInput when HEAD has neither the last accepted commit nor that commit's kernel.

    History may have been rewritten or cut off, as long as it ends in what was accepted.
    """
    attempt = state.incumbent
    commit = attempt.applied.git_commit if attempt and attempt.applied else None
    if attempt is None or attempt.decided is None or commit is None or repository.holds(commit):
        return
    # Git keeps no ignored files.
    hashes = {repository.relative(root, path): h for path, h in attempt.decided.kernel.items()}
    committed = repository.committed(hashes)
    if all(sha256(committed[path]) == hashes[path] for path in committed):
        return
    raise BadInput(
        f"the tree's branch lacks commit {commit[:12]} of round "
        f"{state.incumbent_round}, the last accepted",
        where="git",
        legal="fetch the campaign's branch and merge it (git merge --ff-only), or begin a new "
        f"campaign (kopt init NEW --from {name})",
    )


def check_repository(sources: Iterable[str], root: Path, repository: Repository) -> None:
    """Raise BadInput for a kernel whose commits would be another repository's."""
    for source in sources:
        nested = nested_around(repository, root / source)
        if nested is not None:
            raise BadInput(
                f"lies in the repository {os.path.relpath(nested, root)!r} (a submodule?), which "
                "has commits of its own",
                where=f"kernel {source!r}",
                legal=f"cd {shlex.quote(str(nested))} && kopt init …, or --branch none",
            )


def edited(root: Path, manifest: Manifest, state: CampaignState) -> list[str]:
    attempt = state.incumbent
    if attempt is None or attempt.decided is None:
        return []
    accepted = attempt.decided.kernel
    sources = [path for path in manifest.kernel_source if (root / path).exists()]
    hashes = KernelVersion.take(root, sources).hashes
    return [path for path in sorted({*accepted, *hashes}) if accepted.get(path) != hashes.get(path)]


def uncommitted(root: Path, repository: Repository, round: Round) -> list[str]:
    """Return the kernel files that were restored and that HEAD has otherwise.

    A commit made by hand holds the version that was rolled back.
    """
    applied = round.last.applied
    restored = applied.restored if applied else []
    paths = {repository.relative(root, path): path for path in restored}
    return sorted(paths[path] for path in repository.dirty(paths)) if paths else []


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits of a campaign that makes some; `root` is the project's in this tree."""

    repository: Repository
    manifest: Manifest
    layout: Layout
    root: Path

    def check_still_there(self) -> None:
        """Raise CannotFinish when somebody has switched branches since the session began."""
        branch, target = self.repository.branch, branch_of(self.layout.name, self.manifest)
        if target not in (None, branch):
            went = (
                f"git: the tree went from branch {target!r} to {branch or 'no branch'!r} meanwhile"
            )
            raise CannotFinish(f"{went}, git switch {target} puts it back")

    def of_round(self, round: Round, files: Files, result: str | None = None) -> str:
        """Commit files as a round's, with its notes and its verdict's reason or another result."""
        notes, title = round.notes, round.notes.title or "kernel change"
        log, near = self.layout.optimize_log, self.root
        # Of a tree beside the main one the way to the main one's workspace is nobody's business.
        log = log.relative_to(near if log.is_relative_to(near) else self.layout.workspace)
        return self._commit(
            files,
            f"round-{round.number}: {title.splitlines()[0]}",
            {
                "Hypothesis": notes.hypothesis or "not stated",
                "Result": result or round.last.outcome().reason,
                "Details": notes.details or log.as_posix(),
            },
        )

    def withdrawal(self, attempt: Attempt, best: Attempt, files: Files) -> str:
        """Commit the files of `best`, the current best without a round that was taken back."""
        subject = f"round-{attempt.round}: withdrawn, back to round-{best.round}"
        return self._commit(files, subject, {"Result": attempt.outcome().reason})

    def _commit(self, files: Files, subject: str, details: Mapping[str, str]) -> str:
        lines = "".join(f"{name}: {text}\n" for name, text in details.items())
        contents = {self.repository.relative(self.root, path): file for path, file in files.items()}
        target = f"{self.manifest.target_op} {self.manifest.target_backend}"
        return self.repository.commit(contents, f"[optimize] {target} {subject}\n\n{lines}")
