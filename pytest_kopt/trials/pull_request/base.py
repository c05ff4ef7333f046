"""The project as it was where a pull request branched off: the other side of the gate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.errors import BadInput
from pytest_kopt.versions.affected_modules import DATA_SUFFIXES, NATIVE_SUFFIXES


@dataclass(frozen=True, slots=True)
class Base:
    """The merge base of a ref and HEAD, and what the work tree changed since.

    `old` maps each changed path, relative to `root` (the work tree's), to its content there; None
    where it did not exist.
    """

    ref: str
    commit: str
    root: Path
    old: Mapping[str, bytes | None]

    def __str__(self) -> str:
        return f"--kopt-base {self.ref} ({self.commit[:12]})"

    @classmethod
    def of(cls, ref: str, directory: Path) -> Base:
        """Find the merge base and the changes.

        Raises BadInput outside a repository, for an unknown ref, where history does not reach back
        to the merge base, and for submodules that changed.
        """
        where = f"--kopt-base {ref}"
        repository = Repository.around(directory)
        if repository is None or repository.head is None:
            raise BadInput("this is no git repository with a commit", where=where)
        named = repository.commit_of(ref)
        cut = (
            "this clone is shallow: git fetch --unshallow (in CI: fetch-depth: 0)"
            if repository.is_shallow
            else ""
        )
        if named is None:
            raise BadInput(
                "is unknown here", where=where, legal=cut or "a branch, tag or commit; git fetch"
            )
        commit = repository.merge_base(named)
        if commit is None:
            raise BadInput(
                "has no common history with HEAD here", where=where, legal=cut or "a related branch"
            )
        changes = repository.changed_since(commit)
        modules = [change.path for change in changes if change.is_submodule]
        if modules:
            raise BadInput(
                f"submodule {modules[0]!r} is not what it was at {commit[:12]}, and its old content"
                " is not in this repository",
                where=where,
                legal="a submodule that is clean and unchanged",
            )
        old = {
            change.path: repository.content(commit, change.path) if change.existed else None
            for change in changes
        }
        return cls(ref, commit, repository.root.resolve(), old)

    def kernel_changes(self, harness: Iterable[str], patterns: Iterable[str]) -> list[str]:
        """Return the changed paths that can be kernel code: sources and data, not the harness.

        The harness are the collected test files (`harness`), whatever else matches pytest's
        `patterns` of test files, and every conftest.py: both versions run it as it is now.
        """
        known, wild = set(harness), [*patterns, "conftest.py"]
        return [path for path in self.old if path not in known and can_be_kernel_code(path, wild)]


def can_be_kernel_code(path: str, harness: Iterable[str]) -> bool:
    """Say whether a file is a source or data, and its name none of these patterns."""
    name, suffix = PurePosixPath(path).name, PurePosixPath(path).suffix
    return (
        suffix in {".py", *DATA_SUFFIXES, *NATIVE_SUFFIXES}
        and not name.startswith(".")
        and not any(fnmatch(name, pattern) for pattern in harness)
    )
