"""A campaign's harness: recorded at the baseline and compared with that record ever after."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt import models
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.cases.result import CaseResult, observed_by, opened_by
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.fingerprint import (
    Fingerprint,
    Harness,
    ObservedFiles,
    edits,
    moved,
    touched,
)
from pytest_kopt.imports import module_parts
from pytest_kopt.libraries import session_path
from pytest_kopt.options.declare import LOADED_BEFORE

#: Settings that say which code runs as a test and what runs around it.
_EFFECTIVE = (
    *("addopts", "pythonpath", "usefixtures", "python_files", "python_classes"),
    *("python_functions", "testpaths", "norecursedirs"),
)
#: Settings of the file's section that only concern what is shown and where it is kept.
_IDLE = ("log_", "junit_", "verbosity_", "console_", "cache_dir", "tmp_path_", "kopt_campaign")


@dataclass(frozen=True, slots=True)
class PytestSetup:
    """How pytest is set up here: its settings, named plugins, and where it looks for modules."""

    settings: dict[str, Any]
    plugins: tuple[str, ...]
    folders: tuple[Path, ...]

    @classmethod
    def of(cls, config: pytest.Config) -> PytestSetup:
        section = pytest_section(config.inipath)
        settings = {k: v for k, v in section.items() if not k.startswith(_IDLE)}
        settings |= {name: _plain(config.getini(name), config.rootpath) for name in _EFFECTIVE}
        settings["--noconftest"] = bool(config.option.noconftest)
        settings["--import-mode"] = str(config.option.importmode)
        named = [*config.option.plugins, *os.environ.get("PYTEST_PLUGINS", "").split(",")]
        plugins = tuple(name for name in named if name and not name.startswith("no:"))
        return cls(
            settings, plugins, tuple(Path(entry or ".").resolve() for entry in session_path())
        )

    @classmethod
    def at(cls, root: Path) -> PytestSetup:
        """Read what a session in `root` finds in its files; the command line is not known."""
        config = pytest.Config.fromdictargs({}, ["--noconftest", *LOADED_BEFORE, str(root)])
        found = cls.of(config)
        settings = {key: text for key, text in found.settings.items() if not key.startswith("--")}
        return cls(settings, (), (*map(Path, config.getini("pythonpath")), *found.folders))


class HarnessWatch:
    """Compares the harness of a campaign with what its baseline recorded."""

    def __init__(self, campaign: Campaign, setup: PytestSetup) -> None:
        self._campaign = campaign
        self._setup = setup

    @cached_property
    def _baseline(self) -> Fingerprint | None:
        """The record of the baseline; None before there is one."""
        campaign = self._campaign
        document = campaign.first.session().get("harness") if campaign.state.baseline else None
        return None if document is None else models.read(Fingerprint, document)

    def take(self, ids: Iterable[str], results: Sequence[CaseResult] = ()) -> Fingerprint:
        """Return the fingerprint of the tests that hold these cases."""
        manifest = self._campaign.manifest.model_dump(mode="json", by_alias=True)
        manifest.pop("schema")
        harness = self._harness(ids)
        if (first := self._baseline) is None:
            return harness.take(self._setup.settings, manifest, observed_by(results))
        options = {key: text for key, text in first.settings.items() if key.startswith("--")}
        settings, seen = options | self._setup.settings, ObservedFiles(opened=opened_by(results))
        return harness.take(settings, manifest, seen, list(first.files))

    def _harness(self, ids: Iterable[str] = ()) -> Harness:
        campaign = self._campaign
        tests = dict.fromkeys(nodeid.partition("::")[0] for nodeid in ids)
        return Harness(
            root=campaign.root,
            tests=tuple(tests),
            kernel=tuple(campaign.manifest.kernel_source),
            folders=self._setup.folders,
            plugins=self._setup.plugins,
            ignored=(campaign.layout.workspace,),
        )

    def helpers(self) -> list[str]:
        """Return the project files outside of kernel_source that the kernel imports."""
        return self._harness().helpers()

    def modules(self, paths: Iterable[str]) -> dict[str, Path]:
        """Return the names by which Python files can be imported, each with the folder for it."""
        root = self._campaign.root.resolve()
        folders = [*(folder.resolve() for folder in self._setup.folders), root]
        modules = {}
        for path in (root / name for name in paths if name.endswith(".py")):
            folder = next(folder for folder in folders if path.is_relative_to(folder))
            modules[".".join(module_parts(path.relative_to(folder)))] = folder
        return modules

    def touched(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the files that are not the baseline's, each with the hash that it had there."""
        if (before := self._baseline) is None:
            return {}
        return {name: before.files.get(name, "") for name in touched(before, self.take(ids))}

    def check(self, ids: Iterable[str]) -> Fingerprint:
        """Return the fingerprint now; BadInput when the harness is not the baseline's.

        It is rule 9 of docs/honesty.md.
        """
        now, before = self.take(ids), self._baseline
        findings = [*edits(before, now)] if before is not None else []
        if before is None or not findings:
            return now
        name, paths = self._campaign.name, touched(before, now)
        fix = f"restore the tests and settings of round 1, or kopt init NEW --from {name}"
        if paths and self._shared().issuperset(paths):
            fix = "restore it, or declare what the kernel and the tests both import as kernel: "
            fix += declaring(self._campaign, paths)
        what = "; ".join(finding.message for finding in findings)
        raise BadInput(
            f"the harness is not the baseline's: {what}",
            where=f"campaign {name}",
            fix=fix,
        )

    def _shared(self) -> set[str]:
        """Return which of the kernel's helpers neither drew inputs nor ran in the reference."""
        return {*self.helpers()}.difference(observed_by(self._campaign.first.results()).judged_by)

    def check_dependencies(self, now: Fingerprint) -> None:
        """Raise BadInput where what a version uses is neither declared nor as the best one had it.

        Both would use it as it is now, and it is neither kept nor restored with the kernel.

        It is rule 6 of docs/honesty.md.
        """
        campaign = self._campaign
        document = campaign.best.session().get("harness")
        if document is None:
            return
        before = models.read(Fingerprint, document)
        new = self._differing(
            [name for name in now.dependencies if name not in before.dependencies]
        )
        changed = sorted({*moved(before, campaign.root), *new})
        if not changed:
            return
        name, number = changed[0], campaign.state.incumbent_round
        both = "both versions use it" if name in now.dependencies else f"round {number} uses it"
        users = f"only the candidate uses it, not round {number}" if name in new else both
        if new == changed:
            fix = "move its code into the kernel's files, or commit it with the kernel as a "
            fix += f"baseline of its own: {declaring(campaign, changed)}"
        else:
            fix = f"restore it, or declare it: {declaring(campaign, changed)}"
        raise BadInput(
            f"{', '.join(changed)} is not as round {number} had it, and not in kernel_source "
            f"({users})",
            where=f"campaign {campaign.name}",
            fix=fix,
        )

    def _differing(self, names: Sequence[str]) -> list[str]:
        """Return those that git does not know or that differ from HEAD; all without git."""
        repository = self._campaign.repository
        if repository is None:
            return list(names)
        root = self._campaign.root
        paths = {repository.relative(root, name): name for name in names}
        return [paths[path] for path in repository.dirty(paths) if path in paths] if paths else []


def declaring(campaign: Campaign, paths: Iterable[str]) -> str:
    """Return the command that begins a campaign whose kernel has these files as well."""
    sources = [*campaign.manifest.kernel_source, *paths]
    kernel = " ".join(f"--kernel {shlex.quote(source)}" for source in sources)
    return f"kopt init NEW --from {campaign.name} {kernel}"


def edited_harness(campaign: Campaign) -> dict[str, Any] | None:
    """Return why a session is refused for its harness, as far as files tell, and which ones.

    `command` puts them back, where the baseline's commit has them all.
    """
    if campaign.state.baseline is None:
        return None
    watch = HarnessWatch(campaign, PytestSetup.at(campaign.root))
    files: dict[str, str] = {}
    try:
        ids = campaign.expected_cases()
        files = watch.touched(ids)
        watch.check_dependencies(watch.check(ids))
    except BadInput as error:
        command = _restoring(campaign, files)
        told = {"obstacle": str(error), "files": [*files]}
        return told | ({"command": command} if command else {})
    return None


def _restoring(campaign: Campaign, files: Mapping[str, str]) -> str:
    """Return the command that takes files from the baseline's commit, "" if it lacks one.

    `files` have the hashes that the baseline recorded: it may have run on files that were never
    committed, and the command would write over what the user has of them. It commits them too if
    HEAD has other ones: a final round accepts no other harness.
    """
    repository, baseline = campaign.repository, campaign.state.baseline
    done = baseline.last.applied if baseline else None
    if repository is None or done is None or done.git_commit is None or not files:
        return ""
    paths = [repository.relative(campaign.root, name) for name in files]
    then, now = (repository.blobs(commit) for commit in (done.git_commit, "HEAD"))
    if not then.keys() >= {*paths}:
        return ""
    committed = (repository.content(done.git_commit, path) for path in paths)
    if [hashlib.sha256(content).hexdigest() for content in committed] != [*files.values()]:
        return ""
    names = shlex.join(files)
    command = f"git checkout {done.git_commit[:12]} -- {names}"
    if any(then[path] != now.get(path) for path in paths):
        command += f" && git commit -m 'Restore the harness of round 1' -- {names}"
    return command


def pytest_section(path: Path | None) -> dict[str, Any]:
    """Return pytest's section of its configuration file, without importing anything of pytest's."""
    if path is None or not path.is_file():
        return {}
    text = path.read_text("utf-8")
    if path.suffix != ".toml":
        from iniconfig import IniConfig

        name = "tool:pytest" if path.suffix == ".cfg" else "pytest"
        return dict(IniConfig(str(path), data=text).sections.get(name, {}))
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    document = tomllib.loads(text)
    tool = document.get("tool", {}).get("pytest", {})
    section = tool.get("ini_options") or tool or document.get("pytest", {})
    return {key: _plain(value, path.parent) for key, value in section.items()}


def _plain(value: Any, root: Path) -> Any:
    """Return a setting as JSON holds it, paths near the root relative to it: projects move."""
    if isinstance(value, list | tuple):
        return [_plain(element, root) for element in value]
    if isinstance(value, dict):
        return {str(key): _plain(element, root) for key, element in value.items()}
    if isinstance(value, Path):
        near = value.is_relative_to(root.parent)
        return Path(os.path.relpath(value, root)).as_posix() if near else str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
