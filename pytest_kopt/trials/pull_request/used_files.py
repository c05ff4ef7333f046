"""Files that the cases of a pull request may use: changed ones, and ones that git does not know.

Of ignored files, and of pointers, git does not tell what they were at the base.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.cases.result import CaseResult, loaded_by, opened_by
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.file_watch import FileWatch
from pytest_kopt.trials.pull_request.base import Base
from pytest_kopt.versions.affected_modules import is_built

#: How a file begins that git-lfs put in place of a large one.
_POINTER = b"version https://git-lfs.github.com/spec/"
#: Folders of builds and environments, which hold copies.
_COPIES = frozenset({"build", "dist", "site-packages"})


class Reach:
    """Tells who uses changed files; a path is one in the work tree, a case's are below the root."""

    def __init__(self, tree: Path, root: Path, changed: Iterable[str], *, rebuilds: bool) -> None:
        """Watch the changed files of a work tree from now on; `root` is pytest's.

        Where a command `rebuilds` kernels it may read any of them.
        """
        self._tree, self._root, self._rebuilds = tree, root.resolve(), rebuilds
        data = (path for path in changed if not path.endswith(".py"))
        self._places = {path: str((tree / path).resolve()) for path in data}
        self._watch = FileWatch(self._places.values())

    def in_tree(self, path: str) -> str:
        """Return a path below the root as one in the work tree."""
        inside = self._root.relative_to(self._tree)
        return str(PurePosixPath(inside.as_posix()) / path)

    def used(self, results: Sequence[CaseResult]) -> set[str]:
        """Return what the processes of these cases imported and opened."""
        return {*map(self.in_tree, loaded_by(results)), *self.opened(results)}

    def opened(self, results: Sequence[CaseResult]) -> dict[str, set[str]]:
        """Return what was opened, each with the sources below the root that had it opened.

        Python's audit events tell of most files that these cases' processes opened; of a changed
        one that anybody else opened it is not known who did ("").
        """
        watched = self._watch.opened()
        opened = {path: {""} for path, place in self._places.items() if place in watched}
        return opened | {self.in_tree(path): by for path, by in opened_by(results).items()}

    def any_used(self, changed: Iterable[str], results: Sequence[CaseResult]) -> bool:
        """Say whether these cases may use one of the changed files."""
        loaded, opened = loaded_by(results), self.opened(results)
        return any(self._may_be_used(path, loaded, opened) for path in changed)

    def any_called(self, changed: Iterable[str], case: CaseResult) -> bool:
        """Say whether the function of a case, whose files are in evidence, may use one of them."""
        used = {*(case.evidence.used or ())}
        strangers = loaded_by([case]) - used
        opened = {path for path, by in self.opened([case]).items() if not strangers.issuperset(by)}
        return any(self._may_be_used(path, used, opened) for path in changed)

    def _may_be_used(self, path: str, loaded: Collection[str], opened: Collection[str]) -> bool:
        """Say whether it is not shown that who `loaded` and `opened` files leaves one alone.

        What is gone, or lies outside of the root, was not looked for.
        """
        place = self._tree / path
        is_heard_of = place.is_file() and place.is_relative_to(self._root)
        if self._rebuilds or not is_heard_of or path in opened:
            return True
        name = place.name.encode()
        return (
            is_built(place)
            or place.relative_to(self._root).as_posix() in loaded
            or any(name in (self._root / file).read_bytes() for file in loaded)
        )


def ignored_code(root: Path) -> frozenset[str]:
    """Return the sources of a work tree that define functions and that git ignores."""
    repository = Repository.around(root)
    assert repository is not None
    return frozenset(
        path
        for path in repository.ignored_sources()
        if not _is_copy(Path(path), root) and b"def " in (root / path).read_bytes()
    )


def ignored_among(root: Path, paths: Collection[str]) -> frozenset[str]:
    """Return those of some paths of a work tree that git ignores."""
    repository = Repository.around(root)
    assert repository is not None
    return frozenset(repository.ignored(paths))


def check_known(base: Base, ignored: Collection[str], used: Iterable[str]) -> None:
    """Raise BadInput where paths that cases `used` cannot be what they were at the base."""
    for path in sorted(used):
        if path in ignored:
            raise BadInput(
                f"{path} is used, and git ignores it: what it was at the base is not known",
                where=str(base),
                legal="a file that git knows (git add --force), kopt_rebuild_command, which makes "
                "it for each version, or a test that reads it and hands it to the kernel",
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
