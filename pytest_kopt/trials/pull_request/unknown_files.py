"""Files of which git does not tell what they were at the base: ignored ones, and pointers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.errors import BadInput
from pytest_kopt.trials.pull_request.base import Base

#: How a file begins that git-lfs put in place of a large one.
_POINTER = b"version https://git-lfs.github.com/spec/"
#: Folders of builds and environments, which hold copies.
_COPIES = frozenset({"build", "dist", "site-packages"})


def ignored_code(root: Path) -> frozenset[str]:
    """Return the sources of a work tree that define functions and that git ignores."""
    repository = Repository.around(root)
    assert repository is not None
    return frozenset(
        path
        for path in repository.ignored_sources()
        if not _is_copy(Path(path), root) and b"def " in (root / path).read_bytes()
    )


def check_known(base: Base, ignored: Collection[str], used: Iterable[str]) -> None:
    """Raise BadInput where paths that cases `used` cannot be what they were at the base."""
    for path in sorted(used):
        if path in ignored:
            raise BadInput(
                f"{path} is used, and git ignores it: what it was at the base is not known",
                where=str(base),
                legal="a file that git knows, or kopt_rebuild_command, which makes it for each "
                "version",
            )
        place = base.root / path
        here = place.read_bytes() if place.is_file() else b""
        there = base.old.get(path) or b""
        for content, where in ((here, "here"), (there, "at the base")):
            if content.startswith(_POINTER):
                raise BadInput(
                    f"{path} is used, and {where} it is no more than a pointer of git-lfs",
                    where=str(base),
                    legal="git lfs install; git lfs pull (in CI: lfs: true)",
                )


def _is_copy(path: Path, root: Path) -> bool:
    """Say whether a source lies in a build, an environment or a tool's own folder."""
    folders = path.parts[:-1]
    return (
        not _COPIES.isdisjoint(folders)
        or any(name.startswith(".") for name in folders)
        or any((root / folder / "pyvenv.cfg").exists() for folder in path.parents)
    )
