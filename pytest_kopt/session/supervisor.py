"""A serial session with rows to write runs its tests in a child, so a crash is only a row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_kopt.processes.child import Child
from pytest_kopt.session.controller import Controller
from pytest_kopt.session.replay import Replay


class Supervisor:
    """Takes collection and test loop away from this process and replays the child's reports."""

    def __init__(self, config: pytest.Config, controller: Controller) -> None:
        self._config = config
        self._controller = controller

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Collect nothing here: importing kernel code is the child's risk."""
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        controller, option = self._controller, self._config.option

        def collected(ids: list[str]) -> Sequence[str]:
            session.testscollected = len(ids)
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None and reporter.verbosity >= 0:
                what = "case" if controller.trial else "item"
                reporter.write_line(f"collected {len(ids)} {what}{'s' if len(ids) != 1 else ''}")
            broken = controller.collector.collect_errors
            if broken and not (controller.trial or option.continue_on_collection_errors):
                session.shouldstop = (
                    f"{len(broken)} error{'s' if len(broken) != 1 else ''} during collection"
                )
            return controller.collected(ids)

        Replay(self._config, controller.collector).run(
            lambda: Child(
                self._config, controller.orders, controller.measurements.environment, None
            ),
            collected,
            proceed=lambda: not (session.shouldfail or session.shouldstop),
            most=controller.measurements.checkers,
            foreseen=controller.measurements.foreseen,
        )
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True
