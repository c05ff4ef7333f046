"""Loads the rest of the plugin at the first sign of kopt, so that other runs do not pay for it."""

from __future__ import annotations

import functools
from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_kopt.options.declare import SUITE_MARKERS
from pytest_kopt.processes.bytecode import kept_bytecode
from pytest_kopt.session.usage import uses_kopt, will_use_kopt


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
            for marker in SUITE_MARKERS:
                self._config.addinivalue_line("markers", marker)
            with kept_bytecode():
                from pytest_kopt.session.assemble import assemble

                assemble(self._config)

    def pytest_pycollect_makemodule(self, module_path: Path) -> None:
        """Set up Triton's interpreter before a test file that uses kopt imports Triton."""
        if self._will_use_kopt(module_path):
            from pytest_kopt.session.worker import worker_of

            self.open()
            worker_of(self._config).prepare_imports(self._config)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self._is_open or any(map(uses_kopt, items)):
            from pytest_kopt.session.worker import worker_of

            self.open()
            worker_of(config).select(config, items)

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
