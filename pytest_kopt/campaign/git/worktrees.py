"""Which work tree of a repository keeps the campaigns, and in which one a campaign runs.

A linked tree (`git worktree add`) may go at any time, and git deletes what it ignores with it,
unasked. So ledger and evidence of a campaign that runs there lie in the main tree's workspace,
where every tree finds them.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.layout import Layout, campaigns, find
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.errors import BadInput


def keeper(root: Path) -> Path:
    """Return the project root whose workspace keeps the campaigns: the main tree's if it has one.

    Git is only asked where `.git` is a file: a linked tree's, or a submodule's.
    """
    markers = (place / ".git" for place in (root, *root.parents) if (place / ".git").exists())
    marker = next(markers, None)
    if marker is None or marker.is_dir():
        return root
    repository = Repository.around(root)
    main = repository.main_tree if repository else None
    return root if repository is None or main is None else counterpart(root, main, repository)


def root_of(layout: Layout, manifest: Manifest, here: Path) -> Path:
    """Return where a campaign's rounds run: its workspace, the tree on its branch, or `here`."""
    if manifest.upstream is not None:
        return layout.directory
    repository, branch = Repository.around(here), branch_of(layout.name, manifest)
    if repository is None or branch is None or repository.branch == branch:
        return here
    tree = _tree_on(branch, repository)
    return here if tree is None else counterpart(here, tree, repository)


def branch_of(name: str, manifest: Manifest) -> str | None:
    """Return the branch that a campaign commits to, None for whichever one is on."""
    if manifest.git_branch == "none":
        return None
    return f"optimize/{name}" if manifest.git_branch == "auto" else manifest.git_branch


def way_to(branch: str, repository: Repository) -> str:
    """Return what brings one to a branch: a switch, or the tree that has it checked out."""
    tree = _tree_on(branch, repository)
    return f"git switch {branch}" if tree is None else f"cd {shlex.quote(str(tree))}"


def check_new_tree(path: Path, branch: str | None, repository: Repository | None) -> None:
    """Raise BadInput where a campaign's own tree cannot be made at `path`, on `branch`."""
    refused = functools.partial(BadInput, where="--worktree")
    if repository is None:
        raise refused("there is no git repository here", legal="git init first")
    if repository.is_submodule:
        what = "a submodule cannot have a second tree that is safe to remove"
        raise refused(what, legal="a clone of its own, or no --worktree")
    if repository.main_tree is None:
        raise refused(
            "the repository has no main tree (it is bare, or its .git lies elsewhere), and the "
            "campaign would be lost with the new one",
            legal="kopt init inside a tree that you made, or a clone",
        )
    if repository.head is None:
        raise refused("the repository has no commit yet", legal="git commit first")
    if branch is None:
        raise refused("a tree of its own needs a branch of its own", legal="--branch auto or NAME")
    if path.exists() or path.is_symlink():
        raise refused(f"{path} exists already", legal="a directory to be made")
    for tree in repository.trees:
        if path.is_relative_to(tree.resolve()):
            raise refused(f"{path} lies inside the tree {tree}", legal="a directory beside it")
    if holder := _tree_on(branch, repository):
        what = f"branch {branch!r} is checked out in {holder}"
        raise refused(what, legal="--branch with another name, or kopt init in that tree")


def choose_campaign(named: str | None, root: Path, workspace: Path) -> Layout:
    """Find the named campaign, else the branch's, else the only one; BadInput where none is."""
    if named:
        return find(workspace, named)
    repository = Repository.around(root)
    branch = (repository.branch if repository else None) or ""
    names = campaigns(workspace)
    on_branch = branch.startswith("optimize/") and branch.removeprefix("optimize/") in names
    if on_branch or len(names) == 1:
        return find(workspace, branch.removeprefix("optimize/") if on_branch else names[0])
    what = f"{len(names)} exist, and none is named"
    legal = f"NAME or --kopt-campaign NAME: {', '.join(names)}"
    if not names:
        what = f"none exists yet in {root}"
        legal = "`kopt init` begins one"
    raise BadInput(what, where="campaign", legal=legal)


@contextmanager
def made(path: Path, branch: str, repository: Repository) -> Iterator[None]:
    """Make a tree on a branch and keep it, unless what is done inside fails."""
    is_new = not repository.has_branch(branch)
    repository.add_tree(path, branch)
    try:
        yield
    except BaseException:
        repository.remove_tree(path)
        if is_new:
            repository.delete_branch(branch)
        raise


def counterpart(root: Path, tree: Path, repository: Repository) -> Path:
    """Return the project root in another tree."""
    return tree / root.resolve().relative_to(repository.root.resolve())


def _tree_on(branch: str, repository: Repository) -> Path | None:
    return next((tree for tree, on in repository.trees.items() if on == branch), None)
