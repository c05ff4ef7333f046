"""Links and repositories within a repository: whose commits a path has, and what they held."""

from __future__ import annotations

import posixpath
from pathlib import Path, PurePosixPath

from pytest_kopt.campaign.git.repository import LINK, SUBMODULE, Repository, TreeChange
from pytest_kopt.errors import BadInput

#: As many links on the way to a file the system follows.
_MOST = 40


def contents_behind(repository: Repository, commit: str, link: str) -> dict[str, bytes | None]:
    """Return what a link of a commit led to as if it lay at the link's own path.

    A link to a folder stands for the files in it, and what the work tree has there beside them is
    None, as is a link to nothing. BadInput where it led out of the repository.
    """
    blobs = repository.blobs(commit)

    def resolved(path: str, left: int = _MOST) -> str:
        parts = PurePosixPath(path).parts
        for depth in range(1, len(parts) + 1):
            place = "/".join(parts[:depth])
            if not blobs.get(place, "").startswith(LINK):
                continue
            target = repository.content(commit, place).decode()
            target = posixpath.join(posixpath.dirname(place), target, *parts[depth:])
            target = posixpath.normpath(target)
            if not left or posixpath.isabs(target) or target.partition("/")[0] == "..":
                raise BadInput(
                    f"{link} was a link out of the repository, or in a circle, at {commit[:12]}",
                    where=link,
                    legal="a link to a file of the repository, or the file itself",
                )
            return resolved(target, left - 1)
        return path

    target = resolved(link)
    folder = repository.root / link
    here = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    contents: dict[str, bytes | None] = {
        path.relative_to(repository.root).as_posix(): None for path in here
    }
    below = [path for path in blobs if path.startswith(f"{target}/")]
    for path in below or [target]:
        place = resolved(path)
        is_file = blobs.get(place, SUBMODULE)[: len(LINK)] not in (LINK, SUBMODULE)
        content = repository.content(commit, place) if is_file else None
        contents[f"{link}{path.removeprefix(target)}"] = content
    return contents


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
