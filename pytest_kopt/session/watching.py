"""Starts a process's watch over itself before the first file that could import a kernel."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_kopt.options.declare import JUDGING, SERVE
from pytest_kopt.processes.bytecode import kept_bytecode

if TYPE_CHECKING:
    from pytest_kopt.honesty.watching.watch import Watch

_WATCH: pytest.StashKey[Watch] = pytest.StashKey()


def watch_of(config: pytest.Config) -> Watch:
    """Return the watch of this process, begun now unless it has been; imports torch."""
    if _WATCH not in config.stash:
        serve = config.pluginmanager.get_plugin(SERVE)
        with kept_bytecode():
            from pytest_kopt.honesty.watching.watch import Watch

            if serve is None:
                config.stash[_WATCH] = Watch.start(config.rootpath)
            else:
                if serve.watch is None:
                    serve.watch = Watch.start(config.rootpath, serve.bounds)
                    serve.lasting = frozenset(sys.modules)
                # What loads anew is watched from before it was loaded first.
                config.stash[_WATCH] = serve.watch
    return config.stash[_WATCH]


def runs_cases_of_a_trial(config: pytest.Config) -> bool:
    """Say, before conftest files are read, whether this process will run kernels for a verdict."""
    serve = config.pluginmanager.get_plugin(SERVE)
    if serve is not None:
        return bool(serve.orders.cases_only)
    given = vars(config.known_args_namespace)
    return "PYTEST_XDIST_WORKER" in os.environ and any(given.get(name) for name in JUDGING.values())
