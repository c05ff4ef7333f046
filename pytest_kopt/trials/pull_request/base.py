"""The project as it was where a pull request branched off, and the files that its cases use."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import pytest

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import contents_at
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.result import CaseResult, Collector, loaded_by, observed_by, opened_by
from pytest_kopt.devices.vendor import interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.fingerprint import Harness
from pytest_kopt.options.declare import NAMED
from pytest_kopt.processes.case_processes import CaseProcesses
from pytest_kopt.processes.child import Child, mover
from pytest_kopt.trials.harness import PytestSetup
from pytest_kopt.trials.measurements import Measurements
from pytest_kopt.versions.affected_modules import is_built, is_read_unheard
from pytest_kopt.versions.tree import contents_of

#: How a file begins that git-lfs put in place of a large one.
_POINTER = b"version https://git-lfs.github.com/spec/"
#: Folders of builds and environments, which hold copies.
_COPIES = frozenset({"build", "dist", "site-packages"})


@dataclass(frozen=True, slots=True)
class Base:
    """The merge base of a ref and HEAD, or files elsewhere, and what the tree has otherwise."""

    #: As the user's command has it: a git ref or a path.
    name: str
    #: The merge base's hash; "" for files.
    commit: str
    #: The work tree; for files, pytest's root directory.
    root: Path
    #: The base's content of each changed path below the root, None where it did not exist.
    old: Mapping[str, bytes | None]
    #: pytest's root directory: paths of cases are below it, all others below the root.
    tests_root: Path

    def __str__(self) -> str:
        return f"--kopt-base {self.name} ({self.commit[:12]})" if self.commit else self.name

    @classmethod
    def of(cls, name: str, root: Path, here: Path, shown: str = "") -> Base:
        """Find what a ref, or a path relative to `here`, stands for; BadInput for anything else.

        `root` is pytest's root directory. A word that git knows is a ref. It is `shown` to the user
        as another one if the session runs in a tree that the user does not know.
        """
        repository = Repository.around(root)
        is_ref = repository is not None and repository.commit_of(name) is not None
        if name and not is_ref and (here / name).exists():
            old = contents_of(here / name, root.resolve())
            return cls(shown or name, "", root.resolve(), old, root.resolve())
        return cls._of_ref(name, repository, shown or name, root.resolve())

    @classmethod
    def _of_ref(cls, ref: str, repository: Repository | None, shown: str, root: Path) -> Base:
        """Find the merge base and the changes; BadInput where there is none."""
        refused = partial(BadInput, where=f"--kopt-base {ref}")
        if repository is None or repository.head is None:
            what = "it is no path, and this is no git repository with a commit"
            fix = "name a folder or file that holds the other version"
            raise refused(what, fix=fix)
        named = repository.commit_of(ref)
        cut = (
            "get the history that this shallow clone lacks: git fetch --unshallow (in CI: "
            "fetch-depth: 0)"
            if repository.is_shallow
            else ""
        )
        if named is None:
            fix = cut or "name a branch, tag or commit that is here, or a path; git fetch gets refs"
            raise refused("is unknown here", fix=fix)
        commit = repository.merge_base(named)
        if commit is None:
            what = "has no common history with HEAD here"
            raise refused(what, fix=cut or "name a branch that shares commits with HEAD")
        tree = repository.root.resolve()
        return cls(shown, commit, tree, contents_at(repository, commit), root)

    def in_tree(self, path: str) -> str:
        """Return a path below pytest's root as one in the work tree."""
        inside = self.tests_root.relative_to(self.root)
        return str(PurePosixPath(inside.as_posix()) / path)

    def opened(self, results: Sequence[CaseResult]) -> dict[str, set[str]]:
        """Return what was opened, each with the sources below the root that had it opened."""
        return {self.in_tree(path): by for path, by in opened_by(results).items()}

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

        Files that are gone, or lie outside of the root, were not looked for.
        """
        place = self.root / path
        is_heard_of = place.is_file() and place.is_relative_to(self.tests_root)
        if not is_heard_of or path in opened:
            return True
        is_unheard = is_built(place) or is_read_unheard(place)
        return is_unheard or place.relative_to(self.tests_root).as_posix() in loaded


def take_inventory(
    config: pytest.Config, orders: WorkerOrders, base: Base, copy: tuple[Path, Path]
) -> Collector:
    """Collect the base's cases of this session's files; BadInput where they cannot be collected.

    `copy` is the project's root and a tree of the base.
    """
    found = Collector()
    args = _arguments(config, mover(config, *copy))
    if args is None or args:
        env = interpreter_environment(orders.device)
        # What is collected is told, and none of it asked for.
        found = CaseProcesses(
            config, lambda _: Child(config, orders, env, args, copy), ids=(), lives=1
        ).run()
        errors = found.collect_errors.items()
        found.collect_errors = {i: text.replace(f"{copy[1]}/", "") for i, text in errors}
    if death := found.startup_death:
        raise BadInput(
            f"pytest cannot collect its tests: {death}",
            where=str(base),
            fix="name a base whose tests load",
        )
    return found


def removed(
    config: pytest.Config,
    then: Collector,
    copy: tuple[Path, Path],
    now: Collector,
    measurements: Measurements,
) -> list[str]:
    """Return the base's cases that are gone or newly skipped; nothing of single tests' files."""
    if any("::" in word for word in config.stash[NAMED]):
        return []
    skipped = [nodeid for nodeid in then.order if nodeid in now.skipped]
    ran = set[str]()
    if skipped:
        (there,) = measurements.run_in([copy], skipped)
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


def harness_of(
    config: pytest.Config, base: Base, results: Sequence[CaseResult]
) -> tuple[set[str], set[str], set[str]]:
    """Return the files, in the work tree, that decide what is right in these cases.

    Second those that importing the kernels runs, and last what had other code than the first open
    it: a file may be several. A function that stands in a test, or in a plugin or conftest file,
    calls kernels anywhere in what was imported.
    """
    root, setup, observed = base.tests_root, PytestSetup.of(config), observed_by(results)
    files = (getattr(plugin, "__file__", None) for plugin in config.pluginmanager.get_plugins())
    places = (Path(file).resolve() for file in files if file)
    plugins = {place.relative_to(root).as_posix() for place in places if place.is_relative_to(root)}
    tests = dict.fromkeys(result.nodeid.partition("::")[0] for result in results)
    around = {*tests, *plugins, *filter(is_conftest, observed.loaded)}
    homes = {result.evidence.home or "" for result in results}
    kernel = {home for home in homes if home and not os.path.isabs(home)} - around
    if kernel != homes:
        kernel |= {*observed.loaded} - around - {*observed.judged_by}
    found = Harness(root, tuple(tests), tuple(sorted(kernel)), setup.folders, setup.plugins)
    harness = {*map(base.in_tree, found.take({}, {}, observed).files)}
    read = {
        path
        for path, readers in base.opened(results).items()
        if not harness.issuperset(map(base.in_tree, filter(None, readers)))
    }
    return harness, {*map(base.in_tree, found.needed())}, read


def is_conftest(path: str) -> bool:
    return PurePosixPath(path).name == "conftest.py"


def ignored_code(git: Repository, workspace: Path) -> set[str]:
    """Return the sources of a work tree that define functions and that git ignores.

    The versions of kernels that campaigns keep in the `workspace` are no sources.
    """
    root = git.root.resolve()
    return {
        path
        for path in git.ignored_sources()
        if not _is_copy(Path(path), root, workspace) and b"def " in (root / path).read_bytes()
    }


def check_known(base: Base, ignored: Collection[str], used: Iterable[str]) -> None:
    """Raise BadInput where paths that cases `used` cannot be what they were at the base."""
    for path in sorted(used):
        if path in ignored:
            raise BadInput(
                f"a case uses {path}, which git ignores: its content at the base is unknown",
                where=str(base),
                fix="git add --force; or kopt_rebuild_command, which makes the file for each "
                "version; or let the test read it and pass it to the kernel",
            )
        place = base.root / path
        here = place.read_bytes() if place.is_file() else b""
        there = base.old.get(path) or b""
        for content, where in ((here, "here"), (there, "at the base")):
            if content.startswith(_POINTER):
                raise BadInput(
                    f"a case uses {path}, and {where} it is only a pointer of git-lfs",
                    where=str(base),
                    fix="git lfs install; git lfs pull (in CI: lfs: true)",
                )


def _is_copy(path: Path, root: Path, workspace: Path) -> bool:
    """Say whether a source lies in a build, an environment, a tool's folder or the `workspace`."""
    folders = path.parts[:-1]
    return (
        not _COPIES.isdisjoint(folders)
        or any(name.startswith(".") for name in folders)
        or (root / path).is_relative_to(workspace)
        or any((root / folder / "pyvenv.cfg").exists() for folder in path.parents)
    )
