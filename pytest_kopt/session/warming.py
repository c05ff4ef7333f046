"""Starts what a judging session waits for longest, before anything else."""

from __future__ import annotations

import pytest

from pytest_kopt.devices.placement import EarlyLook
from pytest_kopt.devices.visible import choose, interpreter_environment
from pytest_kopt.options.declare import device_of
from pytest_kopt.processes.launcher import launcher_of

EARLY_LOOK: pytest.StashKey[EarlyLook] = pytest.StashKey()


def begin_to_warm(config: pytest.Config) -> None:
    """Start it for a command of which nothing is parsed yet; another replaces what does not fit."""
    kind = choose(device_of([*map(str, config.invocation_params.args)]))
    # No conftest file has changed the environment yet.
    launcher_of(config).warm(interpreter_environment(kind), str(config.invocation_params.dir))
    if kind == "cuda":
        config.stash[EARLY_LOOK] = EarlyLook()
