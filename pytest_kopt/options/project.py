"""The project a command works in: pytest's root directory and the workspace below it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_kopt.campaign import manifest
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import choose_campaign, keeper, root_of
from pytest_kopt.campaign.layout import hide_from_git
from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import LOADED_BEFORE
from pytest_kopt.options.settings import DEFAULT_WORKSPACE, workspace_of


@dataclass(frozen=True, slots=True)
class Project:
    """A project as a pytest run in the current directory sees it."""

    root: Path
    #: Where its campaigns are.
    workspace: Path
    #: Its settings file, relative to the root.
    settings: Path | None = None
    #: What its settings say where tests are, relative to the root.
    test_paths: tuple[str, ...] = ()
    #: Whether its settings have a command that builds kernels.
    builds: bool = False

    @classmethod
    def here(cls, *paths: str) -> Project:
        """Find the project through pytest's own rules; `paths` are those of a run's tests.

        BadInput for settings that pytest cannot read.
        """
        try:
            config = pytest.Config.fromdictargs({}, ["--noconftest", *LOADED_BEFORE, *paths])
        except pytest.UsageError as error:
            raise BadInput(str(error)) from None
        try:
            workspace = workspace_of(config)
            builds = bool(config.getini("kopt_rebuild_command"))
        except (ValueError, KeyError):  # the plugin is switched off here: no ini of ours
            workspace, builds = keeper(config.rootpath) / DEFAULT_WORKSPACE, False
        file = config.inipath and config.inipath.relative_to(config.rootpath)
        return cls(config.rootpath, workspace, file, tuple(config.getini("testpaths")), builds)

    def keep_workspace_out_of_git(self) -> None:
        """Have git ignore the workspace, and keep a tree without a main one that holds it."""
        workspace = self.workspace.resolve()
        # In a workspace that holds the project everything would be hidden.
        if not self.root.resolve().is_relative_to(workspace):
            hide_from_git(workspace)
        repository = Repository.around(keeper(self.root))
        if repository is None or repository.main_tree is not None:
            return
        if workspace.is_relative_to(repository.root.resolve()):
            repository.lock_tree(f"{self.workspace} holds campaigns of pytest-kopt")

    def campaign(self, name: str | None) -> Campaign:
        """Open a campaign: the named one, else the branch's, else the only one.

        It is opened where it runs, which may be another tree than this one.
        """
        layout = choose_campaign(name, self.root, self.workspace)
        return Campaign(layout, root_of(layout, manifest.load(layout.manifest), self.root))
