"""How processes that run kernel code are started in a session: forked, or as interpreters."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

import pytest

from pytest_kopt.processes.launched import Launched, interpreter
from pytest_kopt.processes.warm_parent import NoFork, WarmParent, why_none


class Starter(Protocol):
    """The starter of processes on a host: this one's launcher, or another host's."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of processes there, before a session adds to it."""

    @property
    def sys_path(self) -> Sequence[str]:
        """The folders that processes there import from."""

    @property
    def why_fresh(self) -> str:
        """Why processes were not forked, "" as long as they were."""

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        """Return a process with this environment, all of it, that waits for orders."""


class Launcher:
    """Starts processes.

    Until `warm` was called, and where a fork is not possible, each is a fresh interpreter: slower,
    and otherwise the same.
    """

    def __init__(self) -> None:
        self.environ: Mapping[str, str] = os.environ
        self._first_environ = dict(os.environ)
        self.sys_path: Sequence[str] = sys.path
        self._why_fresh = ""
        self._parent: WarmParent | None = None

    @property
    def why_fresh(self) -> str:
        """The reason why the parent cannot be used, "" as long as it can."""
        if self._parent is not None and not self._why_fresh:
            self._why_fresh = self._parent.why_ended()
        return self._why_fresh

    def forget_variables(self) -> None:
        """Start processes with the environment of this one as it was when this was made."""
        self.environ = self._first_environ

    def warm(self, env: Mapping[str, str], directory: str, modules: Sequence[str] = ()) -> None:
        """Start the parent that others are forked from; `env` comes on top of our own.

        It imports what every case needs, and `modules`. One that was started before is kept, unless
        the environment has changed since.
        """
        self._why_fresh = why_none()
        if self._why_fresh:
            return
        environment = {**self.environ, **env}
        if self._parent is not None and not self._parent.fits(environment, directory):
            self._parent.end()
            self._parent = None
        self._parent = self._parent or WarmParent(environment, directory)
        if modules:
            self._parent.load(modules)

    def start(self, env: Mapping[str, str], directory: str) -> Launched:
        forked = None
        if self._parent is not None and not self.why_fresh:
            try:
                forked = self._parent.fork(env, directory)
            except NoFork as error:
                # What it has forked goes on, and so the parent stays until the end.
                self._why_fresh = str(error)
        return forked or interpreter(env, directory)

    def end(self) -> None:
        """End the parent, and its forks; safe to repeat."""
        if self._parent is not None:
            self._parent.end()
            self._parent = None


_LAUNCHER: pytest.StashKey[Launcher] = pytest.StashKey()


def launcher_of(config: pytest.Config) -> Launcher:
    """Return the session's launcher, which ends with the session at the latest."""
    if _LAUNCHER not in config.stash:
        config.stash[_LAUNCHER] = launcher = Launcher()
        config.add_cleanup(launcher.end)
    return config.stash[_LAUNCHER]
