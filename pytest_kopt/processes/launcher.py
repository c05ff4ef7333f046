"""How processes that run kernel code are started in a session: forked, or as interpreters."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

import pytest

from pytest_kopt.processes.launched import Launched, interpreter
from pytest_kopt.processes.warm_parent import NoFork, WarmParent

_Wanted = tuple[dict[str, str], str, str]


class Starter(Protocol):
    """What starts processes on a host: this one's launcher, or another host's."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of processes there, before a session adds to it."""

    @property
    def sys_path(self) -> Sequence[str]:
        """Where processes there import from."""

    @property
    def why_fresh(self) -> str:
        """Why processes were not forked, "" as long as they were."""

    def start(self, env: Mapping[str, str], directory: str, rouse: str = "") -> Launched:
        """Return a process with this environment, all of it, that waits for orders.

        It wakes the device `rouse` ("cuda"; "": none) first. One that was started before is taken.
        """

    def prestart(self, count: int, env: Mapping[str, str], directory: str, rouse: str) -> None:
        """Start that many now, for `start` to hand out later."""


class Launcher:
    """Starts processes, some of them before they are needed.

    Until `warm` was called, and where a fork is not possible, each is a fresh interpreter: slower,
    and otherwise the same. `why_fresh` says what kept the parent from being used, "" as long as
    nothing did.
    """

    def __init__(self) -> None:
        self.why_fresh = ""
        self._parent: WarmParent | None = None
        self._waiting: list[tuple[_Wanted, Launched]] = []
        self._changing = threading.Lock()

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of this process."""
        return os.environ

    @property
    def sys_path(self) -> Sequence[str]:
        """Where this process imports from."""
        return sys.path

    def warm(self, env: Mapping[str, str], directory: str) -> None:
        """Start the parent that others are forked from; `env` comes on top of our own."""
        if hasattr(os, "fork"):
            self._parent = WarmParent({**os.environ, **env}, directory)

    def start(self, env: Mapping[str, str], directory: str, rouse: str = "") -> Launched:
        """Return a process; one that was started before is taken."""
        wanted = (dict(env), directory, rouse)
        with self._changing:
            for place, (own, launched) in enumerate(self._waiting):
                if own == wanted:
                    del self._waiting[place]
                    return launched
        return self._start(*wanted)

    def prestart(self, count: int, env: Mapping[str, str], directory: str, rouse: str) -> None:
        """Start that many now, for `start` to hand out later."""
        wanted = (dict(env), directory, rouse)
        for _ in range(count):
            launched = self._start(*wanted)
            with self._changing:
                self._waiting.append((wanted, launched))

    def end(self) -> None:
        """End what nobody took, and the parent."""
        while self._waiting:
            _, launched = self._waiting.pop()
            launched.kill()
            launched.close()
        if self._parent is not None:
            self._parent.end()

    def _start(self, env: dict[str, str], directory: str, rouse: str) -> Launched:
        parent = self._parent
        if parent is not None and not self.why_fresh:
            try:
                forked = parent.fork(env, directory, rouse)
            except NoFork as error:
                # What it has forked goes on, and so the parent stays until the end.
                self.why_fresh = str(error)
            else:
                if forked is not None:
                    return forked
        return interpreter(env, directory, rouse)


_LAUNCHER: pytest.StashKey[Launcher] = pytest.StashKey()


def launcher_of(config: pytest.Config) -> Launcher:
    """Return the session's launcher."""
    return config.stash.setdefault(_LAUNCHER, Launcher())
