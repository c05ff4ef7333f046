"""Trees in which sessions run: a project with other files in it, or another commit of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.running import is_left_behind
from pytest_kopt.processes.launched import SCRATCH
from pytest_kopt.versions import overlay

_PREFIX = "kopt-tree-"


@dataclass(frozen=True, slots=True)
class MadeTree:
    """A tree of a project that holds one version, and where the PR check finds the other."""

    #: The user's project.
    root: Path
    #: What stands for it.
    tree: Path
    #: A ref or a folder, the value of `--kopt-base`; "" where there is no other version.
    base: str | Path = ""

    @property
    def directory(self) -> Path:
        """Where a session starts: what stands for the current folder, or the tree itself."""
        here = Path.cwd().resolve()
        return (
            self.tree / here.relative_to(self.root) if here.is_relative_to(self.root) else self.tree
        )


@contextmanager
def tree_with(
    root: Path,
    files: Mapping[str, bytes],
    other: tuple[str, Mapping[str, bytes]] | None = None,
    *,
    builds: bool = False,
) -> Iterator[MadeTree]:
    """Yield a tree of a project with these files in it, by path below its root; gone afterwards.

    `other` is a name and the files of another version, which lie in a folder of that name. Where a
    command of the project `builds` kernels, the tree is a copy that leads nowhere else.
    """
    # What a kill leaves is removed with what other sessions left.
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-") as directory:
        home = Path(directory).resolve()
        tree = home / "tree" / (root.name or "project")
        if builds:
            overlay.copy(root, tree, files)
        else:
            overlay.build(root, tree, files, start=overlay.current_folder(root))
        if other is None:
            yield MadeTree(root, tree)
            return
        name, contents = other
        folder = home / name
        for path, content in contents.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        yield MadeTree(root, tree, folder)


@contextmanager
def tree_of_refs(repository: Repository, old: str, new: str) -> Iterator[MadeTree]:
    """Yield a work tree that holds what commit `new` does, whose one ancestor is commit `old`."""
    with other_tree(repository, repository.successor(old, new)) as tree:
        yield MadeTree(repository.root.resolve(), tree.root, old)


@contextmanager
def other_tree(repository: Repository, commit: str) -> Iterator[Repository]:
    """Yield a work tree of the repository, gone afterwards; those that kills left go first."""
    for tree in repository.trees:
        if is_left_behind(tree.parent.name, _PREFIX):
            repository.remove_tree(tree)
            tree.parent.rmdir()
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as directory:
        path = Path(directory).resolve() / repository.root.name
        repository.add_tree_at(path, commit)
        try:
            other = Repository.around(path)
            assert other is not None
            yield other
        finally:
            repository.remove_tree(path)
