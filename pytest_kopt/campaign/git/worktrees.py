"""The work tree of a repository that keeps the campaigns, and the one that a campaign runs in.

A linked tree (`git worktree add`) may go at any time, and git deletes what it ignores with it. So
ledger and evidence of a campaign that runs there lie in the main tree's workspace, where every tree
finds them. Submodules and links have commits and contents of their own.
"""

from __future__ import annotations

import functools
import os
import posixpath
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from pytest_kopt.campaign.git.repository import ABSENT, LINK, SUBMODULE, Repository
from pytest_kopt.campaign.kernel import KernelVersion, sha256
from pytest_kopt.campaign.layout import Layout, campaigns, find
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.errors import BadInput

#: As many links on the way to a file the system follows.
_MOST = 40


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
    """Return where a campaign's rounds run: the tree on its branch, or `here`."""
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
        raise refused("there is no git repository here", fix="git init first")
    if repository.is_submodule:
        what = "a submodule cannot have a second tree that is safe to remove"
        raise refused(what, fix="a clone of its own, or no --worktree")
    if repository.main_tree is None:
        raise refused(
            "the repository has no main tree (it is bare, or its .git lies elsewhere), and the "
            "campaign would be lost with the new one",
            fix="kopt init inside a tree that you made, or a clone",
        )
    if repository.head is None:
        raise refused("the repository has no commit yet", fix="git commit first")
    if branch is None:
        raise refused("a tree of its own needs a branch of its own", fix="--branch auto or NAME")
    if path.exists() or path.is_symlink():
        raise refused(f"{path} exists already", fix="name a directory that does not exist")
    for tree in repository.trees:
        if path.is_relative_to(tree.resolve()):
            raise refused(f"{path} lies inside the tree {tree}", fix="name one outside of it")
    if holder := _tree_on(branch, repository):
        what = f"branch {branch!r} is checked out in {holder}"
        raise refused(what, fix="--branch with another name, or kopt init in that tree")


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
    what = f"the workspace has {len(names)} campaigns, and the command names none"
    fix = f"add NAME or --kopt-campaign NAME, one of {', '.join(names)}"
    if not names:
        what = f"none exists yet in {root}"
        fix = "kopt init"
    raise BadInput(what, where="campaign", fix=fix)


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


def contents_behind(repository: Repository, commit: str, link: str) -> dict[str, bytes | None]:
    """Return what a link of a commit led to as if it lay at the link's own path.

    A link to a folder stands for the files in it. Other files that the work tree has there are
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
                    f"at {commit[:12]} {link} links to itself, or out of the repository",
                    where=link,
                    fix="replace the link by the file",
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
    for path, (mode, module) in repository.changed_since(commit).items():
        if mode == LINK:
            behind_links |= contents_behind(repository, commit, path)
        elif mode == SUBMODULE:
            inside = contents_at(_submodule(repository, path, module), module)
            contents |= {f"{path}/{place}": old for place, old in inside.items()}
        else:
            contents[path] = None if mode == ABSENT else repository.content(commit, path)
    return contents | behind_links


def _submodule(repository: Repository, path: str, commit: str) -> Repository:
    """Return a changed submodule's repository, if it holds the older commit."""
    where = repository.root / path
    inner = Repository.around(where) if where.is_dir() else None
    if inner is None or inner.root.resolve() == repository.root.resolve():
        fix = f"git submodule update --init {path}"
        raise BadInput("the submodule is not checked out", where=path, fix=fix)
    if inner.commit_of(commit) is None:
        what = f"the submodule was at {commit[:12]}, which is not in its repository here"
        raise BadInput(what, where=path, fix=f"git -C {path} fetch --all")
    return inner


def check_branch(name: str, root: Path, repository: Repository, state: CampaignState) -> None:
    """Raise BadInput when HEAD has neither the last accepted commit nor that commit's kernel.

    History may have been rewritten or cut off, as long as it ends in what was accepted.
    """
    attempt = state.incumbent
    commit = attempt.applied.git_commit if attempt and attempt.applied else None
    if attempt is None or attempt.decided is None or commit is None:
        return
    if repository.is_ancestor(commit, "HEAD"):
        return
    # Git keeps no ignored files.
    hashes = {repository.relative(root, path): h for path, h in attempt.decided.kernel.items()}
    committed = repository.committed(hashes)
    if all(sha256(committed[path]) == hashes[path] for path in committed):
        return
    raise BadInput(
        f"the tree's branch lacks commit {commit[:12]} of round "
        f"{state.incumbent_round}, the last accepted",
        where="git",
        fix="fetch the campaign's branch and merge it (git merge --ff-only), or begin a new "
        f"campaign (kopt init NEW --from {name})",
    )


def check_repository(sources: Iterable[str], root: Path, repository: Repository) -> None:
    """Raise BadInput for a kernel whose commits would be another repository's."""
    for source in sources:
        nested = nested_around(repository, root / source)
        if nested is not None:
            raise BadInput(
                "the kernel is in another repository (a submodule?): "
                f"{os.path.relpath(nested, root)!r}",
                where=f"kernel {source!r}",
                fix=f"cd {shlex.quote(str(nested))} && kopt init …, or --branch none",
            )


def edited(root: Path, manifest: Manifest, state: CampaignState) -> list[str]:
    attempt = state.incumbent
    if attempt is None or attempt.decided is None:
        return []
    accepted = attempt.decided.kernel
    sources = [path for path in manifest.kernel_source if (root / path).exists()]
    hashes = KernelVersion.take(root, sources).hashes
    return [path for path in sorted({*accepted, *hashes}) if accepted.get(path) != hashes.get(path)]


def uncommitted(root: Path, repository: Repository, round: Round) -> list[str]:
    """Return the kernel files that were restored and that HEAD has otherwise.

    A commit made by hand holds the version that was rolled back.
    """
    applied = round.last.applied
    restored = applied.restored if applied else []
    paths = {repository.relative(root, path): path for path in restored}
    return sorted(paths[path] for path in repository.dirty(paths)) if paths else []
