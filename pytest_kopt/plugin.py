"""The pytest plugin: options, markers, the fixture, and what activates the rest.

The rest is loaded at the first sign of kopt, so that other runs do not pay for it.
"""

from __future__ import annotations

import copy
import functools
import os

# Before `pythonpath`, where a kernel's file may have its name: what leaves the project imports it.
import sysconfig  # noqa: F401
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_kopt.options.declare import (
    ACTIVE,
    JUDGING,
    MARKER,
    NAMED,
    SERVE,
    STDERR,
    SUITE_MARKERS,
    add_options,
    is_asked_for,
    is_free,
    judges,
    measures,
    only_shows,
    spell_out,
)
from pytest_kopt.processes.bytecode import compile_from_source, kept_bytecode
from pytest_kopt.session import hookspecs
from pytest_kopt.session.usage import uses_kopt, will_use_kopt

if TYPE_CHECKING:
    from pytest_kopt.cases.fixture import Kopt


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    add_options(parser)
    pluginmanager.register(WithoutWorkers(), "kopt-without-workers")
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
    if is_asked_for(early_config):
        compile_from_source()
    serve = early_config.pluginmanager.get_plugin(SERVE)
    if serve is not None:
        if serve.orders.decides:
            with kept_bytecode():
                from pytest_kopt.session.worker import audit_hook_of

            audit_hook_of(early_config)
        return
    options = early_config.known_args_namespace
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
    # Tests that failed say nothing of the version that was to be judged.
    if NAMED in config.stash and code in (0, 1) and not only_shows(config):
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
    from pytest_kopt.processes.sites import usable_gpus

    return usable_gpus(config)


@pytest.fixture
def kopt(request: pytest.FixtureRequest) -> Kopt:
    """Check a kernel against its reference, time it, and emit its row; see `Kopt.__call__`."""
    from pytest_kopt.session.worker import worker_of

    return worker_of(request.config).fixture(request)


class WithoutWorkers:
    """Has a session that writes rows or decides start no worker of xdist.

    xdist has read its options by then, and has not been configured.
    """

    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        options = vars(config.option)
        if options.get("dist", "no") != "no" and any(options[name] for name in ACTIVE):
            from pytest_kopt.processes.sites import take_lanes

            take_lanes(config)


class Activation:
    """Puts the session's plugins together when an option, a test or a result asks for kopt."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ids: list[str] = []
        self._is_open = False
        # pytest makes the modules of a folder again for every file of it that is named.
        self._will_use_kopt = functools.cache(will_use_kopt)

    def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            compile_from_source()
            for marker in SUITE_MARKERS:
                self._config.addinivalue_line("markers", marker)
            # A conftest file or plugin may have taken the option away.
            options = vars(self._config.option)
            asks = any(options[name] for name in JUDGING.values()) and not options["collectonly"]
            if asks and judges(self._config):
                from pytest_kopt.libraries import leave_project, project_around

                leave_project(project_around(self._config.rootpath))
            with kept_bytecode():
                from pytest_kopt.session.assemble import assemble

                assemble(self._config)

    def pytest_unconfigure(self) -> None:
        if self._is_open:
            from pytest_kopt.libraries import return_to_project

            return_to_project()

    def pytest_pycollect_makemodule(self, module_path: Path) -> None:
        """Set up Triton's interpreter before a test file that uses kopt imports Triton."""
        if self._will_use_kopt(module_path):
            from pytest_kopt.session.worker import worker_of

            self.open()
            worker_of(self._config).prepare_imports()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self._is_open or any(map(uses_kopt, items)):
            from pytest_kopt.session.worker import worker_of

            self.open()
            worker_of(config).select(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._ids = list(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Open for the first result that a worker of a plain distributed run sends."""
        if (
            not self._is_open
            and {"kopt", "kopt-never-called"} & dict(report.user_properties).keys()
        ):
            from pytest_kopt.session.assemble import controller_of

            self.open()
            controller = controller_of(self._config)
            assert controller is not None
            controller.collected(self._ids)
            controller.pytest_runtest_logreport(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Have the session closed here, where the exit status still reaches the summary."""
        try:
            result = yield
        except (KeyboardInterrupt, session.Failed) as stop:
            self._close(interrupted=str(stop) or type(stop).__name__)
            raise
        self._close()
        return result

    def _close(self, interrupted: str = "") -> None:
        if self._is_open and not self._config.option.collectonly:
            from pytest_kopt.session.assemble import controller_of

            controller = controller_of(self._config)
            if controller is not None:
                with kept_bytecode():
                    controller.close(interrupted)
