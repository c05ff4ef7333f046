"""Repositories within a repository: whose commits a path has, and what submodules held."""

from __future__ import annotations

from pathlib import Path

from pytest_kopt.campaign.git.links import contents_behind
from pytest_kopt.campaign.git.repository import Repository, TreeChange
from pytest_kopt.errors import BadInput


def nested_around(repository: Repository, path: Path) -> Path | None:
    """Return the repository within another that holds a path, a submodule or a clone."""
    root, resolved = repository.root.resolve(), path.resolve()
    folders = [folder for folder in (resolved, *resolved.parents) if root in folder.parents]
    return next((folder for folder in folders if (folder / ".git").exists()), None)


def contents_at(repository: Repository, commit: str) -> dict[str, bytes | None]:
    """Return what a commit held of the paths that the work tree has otherwise, None for none.

    Files of submodules are read in theirs; BadInput where its older commit is not here. A link
    stands for what it led to.
    """
    contents: dict[str, bytes | None] = {}
    behind_links: dict[str, bytes | None] = {}
    for change in repository.changed_since(commit):
        if change.was_link:
            behind_links |= contents_behind(repository, commit, change.path)
            continue
        if change.submodule is None:
            old = repository.content(commit, change.path) if change.existed else None
            contents[change.path] = old
            continue
        inner = _submodule(repository, change, change.submodule)
        for path, old in contents_at(inner, change.submodule).items():
            contents[f"{change.path}/{path}"] = old
    return contents | behind_links


def _submodule(repository: Repository, change: TreeChange, commit: str) -> Repository:
    """Return a changed submodule's repository, if it holds the older commit."""
    where = repository.root / change.path
    inner = Repository.around(where) if where.is_dir() else None
    if inner is None or inner.root.resolve() == repository.root.resolve():
        legal = f"git submodule update --init {change.path}"
        raise BadInput("the submodule is not checked out", where=change.path, legal=legal)
    if inner.commit_of(commit) is None:
        what = f"the submodule was at {commit[:12]}, which is not in its repository here"
        raise BadInput(what, where=change.path, legal=f"git -C {change.path} fetch --all")
    return inner
