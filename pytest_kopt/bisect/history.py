"""The commits between GOOD and BAD, and which of them hold the same code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.errors import BadInput
from pytest_kopt.sameness.program import differing

refused = partial(BadInput, where="kopt bisect")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the history.

    `same_code_as` is the hash of the first commit of a run with the same code: itself, or one
    that only comments, docstrings and layout tell apart from those after it.
    """

    hash: str
    subject: str
    author: str
    is_merge: bool
    same_code_as: str

    @property
    def short(self) -> str:
        return f"{self.hash[:12]} {self.subject}"


def history(root: Path, good: str, bad: str) -> list[Commit]:
    """Return GOOD and the commits up to BAD by first parents; BadInput for ends that do not fit."""
    repository = Repository.around(root)
    if repository is None or repository.head is None:
        raise refused("this is no git repository with a commit")
    ends = []
    for ref in (good, bad):
        commit = repository.commit_of(ref)
        if commit is None:
            raise refused(f"{ref!r} is unknown here", legal="a branch, tag or commit; git fetch")
        ends.append(commit)
    first, last = ends
    if first == last:
        raise refused(f"{good!r} and {bad!r} are the same commit", legal="GOOD before BAD")
    path = repository.first_parents(first, last)
    if path is None:
        legal = f"an ancestor, like git merge-base {good} {bad}"
        if repository.is_shallow:
            legal = "this clone is shallow: git fetch --unshallow"
        raise refused(f"{good!r} is no ancestor of {bad!r}", legal=legal)
    edited = [change.path for change in repository.changed_since(last) if change.existed]
    if last == repository.head and edited:
        what = f"the tree is dirty: edits of {', '.join(edited[:3])} belong to no commit"
        raise refused(what, legal="git commit or git stash first; or a BAD before HEAD")
    commits: list[Commit] = []
    blobs: dict[str, str] = {}
    for commit in (first, *path):
        before, blobs = blobs, repository.blobs(commit)
        same_code_as = commit
        if commits and not _differs(repository, commits[-1].hash, before, commit, blobs):
            same_code_as = commits[-1].same_code_as
        subject, author, parents = repository.described(commit)
        commits.append(Commit(commit, subject, author, len(parents) > 1, same_code_as))
    return commits


def _differs(
    repository: Repository, old: str, before: dict[str, str], new: str, after: dict[str, str]
) -> bool:
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    sources = (
        {path: repository.content(commit, path) if path in blobs else None for path in changed}
        for commit, blobs in ((old, before), (new, after))
    )
    return bool(differing(*sources))
