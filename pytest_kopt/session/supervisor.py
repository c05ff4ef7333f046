"""A serial round: the cases run in a child process, so that a crash there is only a row here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_kopt.session.child import Child
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
        controller = self._controller

        def collected(ids: list[str]) -> Sequence[str]:
            session.testscollected = len(ids)
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None and reporter.verbosity >= 0:
                reporter.write_line(f"collected {len(ids)} case{'s' if len(ids) != 1 else ''}")
            return controller.collected(ids)

        Replay(self._config, controller.collector).run(
            lambda: Child(self._config, controller.brief, controller.lab.environment, None),
            collected,
            proceed=lambda: not (session.shouldfail or session.shouldstop),
        )
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True
