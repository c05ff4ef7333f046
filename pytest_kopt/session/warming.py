"""Starts what a judging session waits for longest, before anything else."""

from __future__ import annotations

import pytest

from pytest_kopt.devices.masks import choose, interpreter_environment
from pytest_kopt.devices.placement import EarlyLook
from pytest_kopt.options.declare import device_of
from pytest_kopt.processes.launcher import launcher_of

EARLY_LOOK: pytest.StashKey[EarlyLook] = pytest.StashKey()


def begin_to_warm(config: pytest.Config) -> None:
    """Start it for a command, of which nothing is parsed yet."""
    _warm(config, device_of([*map(str, config.invocation_params.args)]))


def warm_up(config: pytest.Config) -> None:
    """Start it in the environment that the session most likely has; another replaces it if not."""
    known = config.known_args_namespace
    if known.collectonly or (config.getini("kopt_processes") or "forked") != "forked":
        launcher_of(config).end()
        return
    _warm(config, known.kopt_device or config.getini("kopt_device") or "auto")


def _warm(config: pytest.Config, device: str) -> None:
    kind = choose(device)
    launcher_of(config).warm(interpreter_environment(kind), str(config.invocation_params.dir))
    if kind == "cuda" and EARLY_LOOK not in config.stash:
        config.stash[EARLY_LOOK] = EarlyLook()
