"""The pytest plugin: options, markers, the fixture, and what activates the rest."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pytest_kopt.options.declare import (
    ACTIVE,
    MARKER,
    NAMED,
    SERVE,
    STDERR,
    add_options,
    is_asked_for,
    is_free,
    judges,
    measures,
    only_shows,
    spell_out,
)
from pytest_kopt.processes.bytecode import kept_bytecode
from pytest_kopt.session import hookspecs
from pytest_kopt.session.activation import Activation
from pytest_kopt.session.listening import audit_hook_of

if TYPE_CHECKING:
    from pytest_kopt.cases.fixture import Kopt


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    add_options(parser)
    config = pluginmanager.get_plugin("pytestconfig")
    if config and measures(config):
        # pytest-cov traces every line, also the timed ones, and would fail a session of forks.
        config.option.no_cov = True
    if config and judges(config):
        with kept_bytecode():
            from pytest_kopt.session.arguments import begin_to_warm

            begin_to_warm(config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Take `--summary-csv` for ours, until a conftest file turns out to have its own."""
    before = spell_out(args)
    if before and is_free(parser, early_config):
        with suppress(pytest.UsageError):  # A flag of the project's has no path behind it.
            options = parser.parse_known_args(args, copy.copy(early_config.option))
            early_config.known_args_namespace = options
    _before_conftests(early_config, args)
    yield
    if early_config.known_args_namespace.kopt_base is not None:
        parsed = parser.parse_known_args(args, copy.copy(early_config.option))
        early_config.stash[NAMED] = tuple(map(str, parsed.file_or_dir))
    if before and is_free(parser, early_config):
        early_config.option.no_cov = early_config.known_args_namespace.no_cov = True
    elif before:
        args[:] = [before.get(id(word), word) for word in args]


def _before_conftests(early_config: pytest.Config, args: list[str]) -> None:
    serve = early_config.pluginmanager.get_plugin(SERVE)
    if serve is not None:
        if serve.orders.purpose.decides:
            audit_hook_of(early_config)
        return
    options = early_config.known_args_namespace
    if "PYTEST_XDIST_WORKER" in os.environ and any(vars(options)[name] for name in ACTIVE):
        from pytest_kopt.processes.guests import SetAside

        # Others would run, or limit, tests that run elsewhere.
        early_config.pluginmanager.register(SetAside(), "kopt-set-aside")
    if options.kopt_round:
        with kept_bytecode():
            from pytest_kopt.session.arguments import take_from_manifest

            take_from_manifest(early_config, args)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    config.stash[STDERR] = os.dup(2)
    activation = Activation(config)
    config.pluginmanager.register(activation, "kopt-activation")
    if is_asked_for(config):
        activation.open()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """See that a command which asks for a verdict on a pull request does not pass without one."""
    code = yield
    if NAMED in config.stash and not code and not only_shows(config):
        from pytest_kopt.session.assemble import controller_of

        controller = controller_of(config)
        if controller is None or not controller.has_verdict:
            raise pytest.UsageError(
                "--kopt-base: there is no verdict, since a conftest file, a plugin or pytest's "
                "settings ended the session or took the option away"
            )
    return code


def pytest_unconfigure(config: pytest.Config) -> None:
    if STDERR in config.stash:
        os.close(config.stash[STDERR])
        del config.stash[STDERR]


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Make `-n auto` one worker a usable GPU, in a session that kopt measures on GPUs."""
    if not is_asked_for(config):
        return None
    from pytest_kopt.session.sites import usable_gpus

    return usable_gpus(config)


@pytest.fixture
def kopt(request: pytest.FixtureRequest) -> Kopt:
    """Check a kernel against its reference, time it, and emit its row; see `Kopt.__call__`."""
    from pytest_kopt.session.worker import worker_of

    return worker_of(request.config).fixture(request)
