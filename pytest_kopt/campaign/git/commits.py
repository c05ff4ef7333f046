"""What a campaign commits: the kernel that a round kept, or the one before a withdrawal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.git.worktrees import branch_of
from pytest_kopt.campaign.state import Attempt, Round
from pytest_kopt.errors import CannotFinish

if TYPE_CHECKING:
    from pytest_kopt.campaign.campaign import Campaign

#: Files to commit by their path in the project; None where one goes.
Files = Mapping[str, Path | None]


class Commits:
    """The commits of one campaign, which has a repository and makes commits."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign

    @staticmethod
    def made_by(campaign: Campaign) -> Commits | None:
        """Return the commits of a campaign, None where it makes none."""
        makes = campaign.manifest.git_commit and campaign.repository is not None
        return Commits(campaign) if makes else None

    def check_still_there(self) -> None:
        """Raise CannotFinish when somebody has switched branches since the session began."""
        campaign = self._campaign
        assert campaign.repository is not None
        branch, own = campaign.repository.branch, branch_of(campaign.name, campaign.manifest)
        if own not in (None, branch):
            raise CannotFinish(
                f"git: the tree went from branch {own!r} to {branch or 'no branch'!r} meanwhile, "
                f"git switch {own} puts it back"
            )

    def keep(self, item: Round, attempt: Attempt, beside: Sequence[Path]) -> str:
        """Commit the kernel of an attempt that was kept, and what belongs beside it."""
        campaign, decided = self._campaign, attempt.decided
        assert decided is not None
        # A file that the candidate removed belongs to the commit as well.
        before = campaign.state.incumbent_as_of(item.number - 1)
        known = campaign.state.rounds[before].verdict if before else None
        files: dict[str, Path | None] = dict.fromkeys(known.kernel if known else ())
        files |= campaign.archive.kernel_paths(item.number, attempt)
        files |= {str(path): path for path in beside}
        return self.of_round(item, files, decided.reason)

    def of_round(self, item: Round, files: Files, result: str) -> str:
        """Commit files as a round's, with what its notes say; return the commit."""
        notes, campaign = item.notes, self._campaign
        summary = notes.summary or notes.change or notes.hypothesis or "kernel change"
        log, near = campaign.layout.optimize_log, campaign.root
        # Of a tree beside the main one the way to the main one's workspace is nobody's business.
        log = log.relative_to(near if log.is_relative_to(near) else campaign.layout.workspace)
        return self._commit(
            files,
            f"round-{item.number}: {summary.splitlines()[0]}",
            {
                "Hypothesis": notes.hypothesis or "not stated",
                "Result": result,
                "Details": notes.details or log.as_posix(),
            },
        )

    def undoes(self, item: Round) -> bool:
        """Say whether a commit has the version of a round that was taken back since."""
        decided = (attempt.decided for attempt in item.attempts.values())
        was_kept = any(found and found.decision.keeps for found in decided)
        return was_kept and self._campaign.state.incumbent is not None

    def withdraw(self, item: Round, decided: ledger.Decided) -> str:
        """Commit the version before a round that was taken back."""
        campaign = self._campaign
        number, best = campaign.state.incumbent_round, campaign.state.incumbent
        assert number is not None and best is not None
        files: dict[str, Path | None] = dict.fromkeys(decided.kernel)
        return self._commit(
            files | campaign.archive.kernel_paths(number, best),
            f"round-{item.number}: withdrawn, back to round-{number}",
            {"Result": decided.reason},
        )

    def _commit(self, files: Files, subject: str, details: Mapping[str, str]) -> str:
        campaign = self._campaign
        repository, manifest = campaign.repository, campaign.manifest
        assert repository is not None
        lines = "".join(f"{name}: {text}\n" for name, text in details.items())
        found = {repository.relative(campaign.root, path): file for path, file in files.items()}
        target = f"{manifest.target_op} {manifest.target_backend}"
        return repository.commit(found, f"[optimize] {target} {subject}\n\n{lines}")
