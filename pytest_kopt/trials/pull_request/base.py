"""The project as it was where a pull request branched off, and which cases it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import contents_at
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.devices.visible import interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import NAMED
from pytest_kopt.paired.remeasure import Rerun
from pytest_kopt.processes.child import Child, mover
from pytest_kopt.trials.trees import overlays
from pytest_kopt.trials.trial import InCopies, Measurements
from pytest_kopt.versions.executed_files import contents_of


@dataclass(frozen=True, slots=True)
class Base:
    """The merge base of a ref and HEAD, or files elsewhere, and what the tree has otherwise."""

    #: As the command has it: a git ref or a path.
    name: str
    #: The merge base's hash; "" for files.
    commit: str
    #: The work tree; for files, pytest's root directory.
    root: Path
    #: The base's content of each changed path below the root, None where it did not exist.
    old: Mapping[str, bytes | None]

    def __str__(self) -> str:
        return f"--kopt-base {self.name} ({self.commit[:12]})" if self.commit else self.name

    @classmethod
    def of(cls, name: str, root: Path, here: Path) -> Base:
        """Find what a ref, or a path relative to `here`, stands for; BadInput for anything else.

        `root` is pytest's root directory. A word that git knows is a ref.
        """
        repository = Repository.around(root)
        is_ref = repository is not None and repository.commit_of(name) is not None
        if name and not is_ref and (here / name).exists():
            return cls(name, "", root.resolve(), contents_of(here / name, root.resolve()))
        return cls._of_ref(name, repository)

    @classmethod
    def _of_ref(cls, ref: str, repository: Repository | None) -> Base:
        """Find the merge base and the changes; BadInput where there is none."""
        refused = partial(BadInput, where=f"--kopt-base {ref}")
        if repository is None or repository.head is None:
            what = "it is no path, and this is no git repository with a commit"
            raise refused(what, legal="a folder or file with the other version, or a git ref")
        named = repository.commit_of(ref)
        cut = (
            "this clone is shallow: git fetch --unshallow (in CI: fetch-depth: 0)"
            if repository.is_shallow
            else ""
        )
        if named is None:
            legal = cut or "a branch, tag or commit (git fetch), or a path"
            raise refused("is unknown here", legal=legal)
        commit = repository.merge_base(named)
        if commit is None:
            what = "has no common history with HEAD here"
            raise refused(what, legal=cut or "a related branch")
        return cls(ref, commit, repository.root.resolve(), contents_at(repository, commit))


@contextmanager
def tree_of(base: Base) -> Iterator[tuple[Path, Path]]:
    """Yield the project's root and a tree of the whole base, its tests included."""
    with overlays(base.root, base.old) as versions:
        yield versions.root, versions.trees[0]


def take_inventory(config: pytest.Config, orders: WorkerOrders, base: Base) -> Collector:
    """Collect the base's cases of this session's files; BadInput where they cannot be collected."""
    found = Collector()
    with tree_of(base) as copy:
        args = _arguments(config, mover(config, *copy))
        if args is None or args:
            env = interpreter_environment(orders.device)
            start = partial(Child, config, orders, env, args, copy)
            # What is collected is told, and none of it asked for.
            found = Rerun(config, start, ids=(), lives=1).run()
            errors = found.collect_errors.items()
            found.collect_errors = {i: text.replace(f"{copy[1]}/", "") for i, text in errors}
    if death := found.startup_death:
        raise BadInput(
            f"its tests cannot be collected: {death}",
            where=str(base),
            legal="a base whose tests can be collected",
        )
    return found


def removed(
    config: pytest.Config, then: Collector, base: Base, now: Collector, measurements: Measurements
) -> list[str]:
    """Return the base's cases that are gone or newly skipped; nothing of single tests' files."""
    if any("::" in word for word in config.stash[NAMED]):
        return []
    skipped = [nodeid for nodeid in then.order if nodeid in now.skipped]
    ran = set[str]()
    if skipped:
        with tree_of(base) as copy:
            (there,) = measurements.run_in(InCopies([copy], skipped))
        # What a test only has parameters for is no sign that it came to its case.
        came = {nodeid for nodeid, row in there.undecided.items() if not row.evidence.guessed}
        ran = came.difference(there.xfailed())
    return [nodeid for nodeid in then.order if nodeid not in now.order or nodeid in ran]


def _arguments(config: pytest.Config, moved: Callable[[str], str]) -> list[str] | None:
    """Return the command's files and folders that the base has, without "::": cases may be new.

    None where it names none, or modules: then the same words name the base's.
    """
    named = config.stash[NAMED]
    if not named or (config.option.pyargs and not any("::" in word for word in named)):
        return None
    here = Path(moved(str(config.invocation_params.dir)))
    paths = dict.fromkeys(here / moved(word.partition("::")[0]) for word in named)
    return [str(path) for path in paths if path.exists()]
