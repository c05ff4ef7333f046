"""A pull request does not choose what judges it: options, the policy's file, files of its cases.

Conftest files and plugins may edit `config.option` and pytest's ini values as they like: only the
command and the settings files count. git does not know what ignored files were at the base.
"""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import pytest
from _pytest.config.findpaths import get_common_ancestor, locate_config

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.cases.result import CaseResult, loaded_by, opened_by
from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import CHOICES, NAMED, options, settings_keys
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired import noise
from pytest_kopt.processes.child import mover
from pytest_kopt.trials.harness import pytest_section
from pytest_kopt.trials.pull_request.base import Base, is_conftest
from pytest_kopt.versions.affected_modules import is_built, is_read_unheard, project_modules

#: Where pytest looks for its settings.
_SETTINGS_FILES = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"),
    *("pyproject.toml", "tox.ini", "setup.cfg"),
)
#: Options that decide nothing.
_IDLE = frozenset({"kopt_summary_csv", "kopt_gpu_wait", "kopt_campaign"})
_DEFAULTS = {name: legal[0] for name, legal in CHOICES.items()} | {"kopt_policy": "primus"}
#: How a file begins that git-lfs put in place of a large one.
_POINTER = b"version https://git-lfs.github.com/spec/"
#: Folders of builds and environments, which hold copies.
_COPIES = frozenset({"build", "dist", "site-packages"})


def check_rules(
    config: pytest.Config,
    settings: Settings,
    base: Base,
    section: Mapping[str, Any],
    differing: Collection[str],
) -> None:
    """Raise BadInput where a change, in paths that are `differing`, sets what judges it.

    That is what the command line, the environment and the `section` of the base's settings say, the
    policy's file, and what is recorded of the noise.
    """
    root = base.root.resolve()
    places = {root / path: path for path in differing}
    records = noise.path_of(settings.workspace, "").parent.resolve()
    edited = [path for place, path in places.items() if place.is_relative_to(records)]
    edited += [places.get(Path(settings.policy).resolve(), "")] if settings.policy else []
    what = next((f"the change edits {path}, which judges it" for path in edited if path), "")
    commanded_values = commanded(config, section)
    here = _plain(vars(config.option), {key: config.getini(key) for key in settings_keys()})
    where = edited_around(config, root, section, differing)
    if not where:
        # What the base's conftest files and plugins set is the base's.
        commanded_values = here
    if name := next(
        (name for name in commanded_values if commanded_values[name] != here[name]), ""
    ):
        by_settings = commanded(config, pytest_section(config.inipath))
        if by_settings[name] == here[name] and config.inipath:
            where = [os.path.relpath(config.inipath.resolve(), root)]
        what = (
            f"{' or '.join(where)} sets {spelled(name)} to "
            f"{here[name] or 'nothing'} instead of {commanded_values[name] or 'nothing'}: a change "
            "may not choose its own rules"
        )
    if what:
        raise BadInput(
            what,
            where=str(base),
            fix="give the option on the command line, or merge it in an earlier pull request",
        )


def edited_around(
    config: pytest.Config, root: Path, section: Mapping[str, Any], differing: Collection[str]
) -> list[str]:
    """Return what differs of the conftest files, of what this process imported, and of settings.

    This process imports conftest files, plugins and what they import, and no kernels.
    """
    imported = {path.relative_to(root).as_posix() for path in project_modules(root).values()}
    edited = {path for path in differing if is_conftest(path) or path in imported}
    return sorted(edited | edited_settings(config, section, differing))


def plugin_files(config: pytest.Config, root: Path) -> set[str]:
    """Return the files below a root that pytest loaded as plugins, conftest files among them."""
    files = (getattr(plugin, "__file__", None) for plugin in config.pluginmanager.get_plugins())
    places = (Path(file).resolve() for file in files if file)
    return {place.relative_to(root).as_posix() for place in places if place.is_relative_to(root)}


def edited_settings(
    config: pytest.Config, section: Mapping[str, Any], differing: Collection[str]
) -> set[str]:
    """Return the settings files that differ, where pytest's section is another than the base's."""
    if section == pytest_section(config.inipath):
        return set()
    return {path for path in differing if Path(path).name in _SETTINGS_FILES}


def settings_of(config: pytest.Config, copy: tuple[Path, Path]) -> Mapping[str, Any]:
    """Return the section of settings that pytest finds for the same command in a copy of a root."""
    moved = mover(config, *copy)
    here = Path(moved(str(config.invocation_params.dir)))
    if file := config.option.inifilename:
        return pytest_section(here / moved(file))
    places = [here / moved(word.partition("::")[0]) for word in config.stash.get(NAMED, ())]
    above = get_common_ancestor(here, [place for place in places if place.exists()])
    return pytest_section(locate_config(here, [above])[1])


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(message, where="a command's words")


def commanded(config: pytest.Config, section: Mapping[str, Any]) -> dict[str, str]:
    """Return what the command line, the environment and a section of settings say, by option.

    The section is pytest's of a settings file. A key without an option stands under its own name.
    """
    words = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    words += map(str, config.invocation_params.args)
    section = {**section, **_overrides(_parsed(words)["override_ini"])}
    addopts = section.get("addopts", "")
    before = shlex.split(addopts) if isinstance(addopts, str) else [*map(str, addopts)]
    parsed = _parsed([*before, *words])
    return _plain(parsed, {**section, **_overrides(parsed["override_ini"])})


def spelled(name: str) -> str:
    """Return an option as a command has it, or the name of a key."""
    names = {properties["dest"]: names[-1] for names, properties in options()}
    return names.get(name, name)


def _parsed(words: Sequence[str]) -> dict[str, Any]:
    parser = _Parser(add_help=False, allow_abbrev=False, fromfile_prefix_chars="@")
    parser.add_argument("-o", "--override-ini", action="append", default=[])
    for names, properties in options():
        parser.add_argument(*names, **properties)
    return vars(parser.parse_known_args(words)[0])


def _overrides(settings: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (setting.partition("=") for setting in settings)}


def _plain(given: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, str]:
    """Return what is asked for as text, "" for what is not."""
    names = {properties["dest"] for _, properties in options()} | settings_keys()
    return {
        name: str(given.get(name) or section.get(name) or _DEFAULTS.get(name) or "")
        for name in sorted(names - _IDLE)
    }


class Reach:
    """Tells who uses changed files; a path is one in the work tree, a case's are below the root."""

    def __init__(self, tree: Path, root: Path, *, rebuilds: bool) -> None:
        """Take a work tree, and pytest's `root` in it.

        A command that `rebuilds` kernels may read any of its files.
        """
        self._tree, self._root, self._rebuilds = tree, root.resolve(), rebuilds

    def in_tree(self, path: str) -> str:
        """Return a path below the root as one in the work tree."""
        inside = self._root.relative_to(self._tree)
        return str(PurePosixPath(inside.as_posix()) / path)

    def used(self, results: Sequence[CaseResult]) -> set[str]:
        """Return what the processes of these cases imported and opened."""
        return {*map(self.in_tree, loaded_by(results)), *self.opened(results)}

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
        place = self._tree / path
        is_heard_of = place.is_file() and place.is_relative_to(self._root)
        if self._rebuilds or not is_heard_of or path in opened:
            return True
        is_unheard = is_built(place) or is_read_unheard(place)
        return is_unheard or place.relative_to(self._root).as_posix() in loaded


def ignored_code(root: Path, workspace: Path) -> frozenset[str]:
    """Return the sources of a work tree that define functions and that git ignores.

    The versions of kernels that campaigns keep in the `workspace` are no sources.
    """
    repository = Repository.around(root)
    assert repository is not None
    return frozenset(
        path
        for path in repository.ignored_sources()
        if not _is_copy(Path(path), root, workspace) and b"def " in (root / path).read_bytes()
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
