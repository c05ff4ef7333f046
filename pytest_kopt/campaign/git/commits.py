"""What a campaign commits: the kernel that a round kept, or the one before a withdrawal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import branch_of
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.state import Round
from pytest_kopt.errors import CannotFinish

#: Files to commit by their path in the project; None where one goes.
Files = Mapping[str, Path | None]


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits of a campaign that makes some; `root` is the project's in this tree."""

    repository: Repository
    manifest: Manifest
    layout: Layout
    root: Path

    def check_still_there(self) -> None:
        """Raise CannotFinish when somebody has switched branches since the session began."""
        branch, own = self.repository.branch, branch_of(self.layout.name, self.manifest)
        if own not in (None, branch):
            raise CannotFinish(
                f"git: the tree went from branch {own!r} to {branch or 'no branch'!r} meanwhile, "
                f"git switch {own} puts it back"
            )

    def of_round(self, item: Round, files: Files, result: str) -> str:
        """Commit files as a round's, with what its notes say; return the commit."""
        notes = item.notes
        summary = notes.summary or notes.change or notes.hypothesis or "kernel change"
        log, near = self.layout.optimize_log, self.root
        # Of a tree beside the main one the way to the main one's workspace is nobody's business.
        log = log.relative_to(near if log.is_relative_to(near) else self.layout.workspace)
        return self._commit(
            files,
            f"round-{item.number}: {summary.splitlines()[0]}",
            {
                "Hypothesis": notes.hypothesis or "not stated",
                "Result": result,
                "Details": notes.details or log.as_posix(),
            },
        )

    def withdrawal(self, item: Round, files: Files, best: int, result: str) -> str:
        """Commit the files of round `best`, the one before a round that was taken back."""
        subject = f"round-{item.number}: withdrawn, back to round-{best}"
        return self._commit(files, subject, {"Result": result})

    def _commit(self, files: Files, subject: str, details: Mapping[str, str]) -> str:
        lines = "".join(f"{name}: {text}\n" for name, text in details.items())
        found = {self.repository.relative(self.root, path): file for path, file in files.items()}
        target = f"{self.manifest.target_op} {self.manifest.target_backend}"
        return self.repository.commit(found, f"[optimize] {target} {subject}\n\n{lines}")
