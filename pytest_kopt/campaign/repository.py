"""The git repository of a campaign, through GitPython: branch, commit of kernel files, exclude."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kopt.errors import BadInput, CannotFinish

if TYPE_CHECKING:
    from git import Repo

_IN_PROGRESS = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "BISECT_LOG": "a bisection",
}


#: What git says while another git holds the index or a ref.
_LOCKED = re.compile(r"\.lock': File exists|cannot lock ref")
_TRIES, _PAUSE_SECONDS = 50, 0.1

_ABSENT, _SUBMODULE = "000000", "160000"


@dataclass(frozen=True, slots=True)
class Change:
    """A path (relative to the work tree) that differs from a commit, and whether it was there."""

    path: str
    existed: bool
    is_submodule: bool


class Repository:
    """The work tree around a directory."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self.root = Path(str(repo.working_tree_dir))

    @classmethod
    def around(cls, directory: Path) -> Repository | None:
        """Return the repository that holds `directory`, None where there is none."""
        try:
            import git
        except ImportError:  # GitPython refuses to be imported where there is no git
            return None
        try:
            repo = git.Repo(directory, search_parent_directories=True)
        except (git.InvalidGitRepositoryError, git.NoSuchPathError):
            return None
        return None if repo.bare else cls(repo)

    @property
    def branch(self) -> str | None:
        """The current branch, None on a detached HEAD."""
        return None if self._repo.head.is_detached else self._repo.head.reference.name

    @property
    def head(self) -> str | None:
        """The commit of HEAD, None in a repository without commits."""
        return self._repo.head.commit.hexsha if self._repo.head.is_valid() else None

    @property
    def is_shallow(self) -> bool:
        """Whether history was cut off when this clone was made."""
        return bool(self._repo.git.rev_parse("--is-shallow-repository") == "true")

    def commit_of(self, ref: str) -> str | None:
        """Return the commit that a ref names, None when it names none here."""
        import git

        try:
            found = self._repo.git.rev_parse(
                "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
            )
        except git.GitCommandError:
            return None
        return str(found)

    def merge_base(self, commit: str) -> str | None:
        """Return the last common ancestor of a commit and HEAD, None when none is known here."""
        import git

        try:
            return str(self._repo.git.merge_base(commit, "HEAD"))
        except git.GitCommandError:
            return None

    def changed_since(self, commit: str) -> list[Change]:
        """Return how the work tree differs from a commit, untracked files included."""
        raw = self._repo.git.diff(
            *("--raw", "-z", "--no-renames", "--ignore-submodules=none", commit, "--")
        ).split("\0")
        changes = []
        for head, path in zip(raw[::2], raw[1::2], strict=False):
            old, new = head.removeprefix(":").split()[:2]
            changes.append(Change(path, old != _ABSENT, _SUBMODULE in (old, new)))
        untracked = self._repo.git.ls_files("--others", "--exclude-standard", "-z").split("\0")
        return [*changes, *(Change(path, False, False) for path in untracked if path)]

    def content(self, commit: str, path: str) -> bytes:
        """Return a file as a check-out of a commit would have it."""
        found: bytes = self._repo.git.cat_file(
            "--filters", f"{commit}:{path}", stdout_as_string=False, strip_newline_in_stdout=False
        )
        return found

    def operation_in_progress(self) -> str | None:
        """Return "a merge", "a rebase", … where git waits for the user to finish one."""
        directory = Path(self._repo.git_dir)
        found = (what for name, what in _IN_PROGRESS.items() if (directory / name).exists())
        return next(found, None)

    def dirty(self, paths: Iterable[str]) -> list[str]:
        """Return those of `paths` (relative to the root) that differ from HEAD or are untracked."""
        listing = self._repo.git.status("--porcelain", "-z", "--no-renames", "-uall", "--", *paths)
        return [entry[3:] for entry in listing.split("\0") if entry]

    def switch(self, branch: str) -> None:
        """Check out a branch, made from HEAD when it does not exist; edits stay in the tree."""
        import git

        known = branch in {head.name for head in self._repo.heads}
        try:
            self._repo.git.switch(*([branch] if known else ["-c", branch]))
        except git.GitCommandError as error:
            raise BadInput(
                f"git cannot switch to {branch!r}: {str(error.stderr).strip()}", where="git_branch"
            ) from None

    def exclude(self, path: Path) -> None:
        """Keep a path out of git through `.git/info/exclude`, which is this clone's own."""
        line = "/" + path.resolve().relative_to(self.root.resolve()).as_posix() + "/"
        file = Path(self._repo.common_dir) / "info" / "exclude"
        file.parent.mkdir(exist_ok=True)
        text = file.read_text() if file.exists() else ""
        if line not in text.splitlines():
            gap = "" if not text or text.endswith("\n") else "\n"
            file.write_text(f"{text}{gap}{line}\n")

    def commit(self, paths: Sequence[str], message: str) -> str:
        """Commit only `paths` (relative to the root) and return the commit.

        Other edits and everything staged stay as they are. Hooks do not run: what was measured is
        what is committed. Where the paths equal HEAD already there is nothing to commit, and HEAD
        is returned.
        """
        from git import GitCommandError

        ignored = set(self._repo.ignored(*paths))
        paths = [path for path in paths if path not in ignored]
        if not paths or not self.dirty(paths):
            return self.head or ""
        for left in reversed(range(_TRIES)):
            try:
                return self._commit_only(paths, message)
            except GitCommandError as error:
                said = str(error.stderr).strip()
                # Another git is at work here, that of a second campaign perhaps; it takes moments.
                if not (left and _LOCKED.search(said)):
                    raise CannotFinish(f"git cannot commit: {said}") from None
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _commit_only(self, paths: Sequence[str], message: str) -> str:
        git = self._repo.git
        present = [path for path in paths if (self.root / path).exists()]
        if present:
            git.add("--intent-to-add", "--", *present)
        with git.custom_environment(**self._identity()):
            git(c="core.hooksPath=/dev/null").commit(
                *("--quiet", "--only", "--no-verify", "--no-gpg-sign", "-m", message, "--"),
                *paths,
            )
        # HEAD may be another's commit by now; the last one of these files is not.
        return str(git.rev_list("-1", "HEAD", "--", *paths))

    def relative(self, root: Path, path: str) -> str:
        """Return a path given relative to `root` as one relative to the work tree."""
        return (root / path).resolve().relative_to(self.root.resolve()).as_posix()

    def _identity(self) -> dict[str, str]:
        """Return the identity that git lacks here: author and committer each, if unset."""
        if self._repo.git.config("user.email", with_exceptions=False):
            return {}
        fallback = {"NAME": "pytest-kopt", "EMAIL": "pytest-kopt@localhost"}
        return {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in fallback.items()
            if f"GIT_{who}_{what}" not in os.environ
        }
