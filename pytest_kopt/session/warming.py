"""Starts a judging session's warm parent before anything else, as it takes longest."""

from __future__ import annotations

import pytest

from pytest_kopt.devices.choice import choose, interpreter_environment
from pytest_kopt.options.declare import PROCESSES
from pytest_kopt.processes.launcher import launcher_of


def warm_up(config: pytest.Config) -> None:
    """Start it in the environment that the session will most likely have.

    Little is read and nothing checked yet: where it turns out otherwise, another parent is started
    in its place.
    """
    known = config.known_args_namespace
    if known.collectonly or (config.getini("kopt_processes") or PROCESSES[0]) != PROCESSES[0]:
        return
    device = choose(known.kopt_device or config.getini("kopt_device") or "auto")
    launcher_of(config).warm(interpreter_environment(device), str(config.invocation_params.dir))
