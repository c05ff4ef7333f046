"""What symbolic links of a commit led to."""

from __future__ import annotations

import posixpath
from pathlib import PurePosixPath

from pytest_kopt.campaign.git.repository import LINK, SUBMODULE, Repository
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
