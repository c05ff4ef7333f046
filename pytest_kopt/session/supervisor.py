"""A serial round: the cases run in a child process, so that a crash there is only a row here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_kopt.session.child import MAX_DEATHS, CaseProcess, Child, Listener
from pytest_kopt.session.controller import Controller


class Supervisor:
    """Takes collection and test loop away from this process and replays the child's reports."""

    def __init__(self, config: pytest.Config, controller: Controller) -> None:
        self._config = config
        self._controller = controller
        self._locations: dict[str, tuple[str, int | None, str]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Collect nothing here: importing kernel code is the child's risk."""
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        hook, collector = self._config.hook, self._controller.collector

        def collected(ids: list[str]) -> Sequence[str]:
            session.testscollected = len(ids)
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None and reporter.verbosity >= 0:
                reporter.write_line(f"collected {len(ids)} case{'s' if len(ids) != 1 else ''}")
            return self._controller.collected(ids)

        def collect_error(data: dict[str, Any]) -> None:
            report = hook.pytest_report_from_serializable(config=self._config, data=data)
            if report.nodeid not in collector.collect_errors:
                hook.pytest_collectreport(report=report)

        def started(nodeid: str, location: tuple[str, int | None, str]) -> None:
            self._locations[nodeid] = location
            hook.pytest_runtest_logstart(nodeid=nodeid, location=location)

        def report(data: dict[str, Any]) -> None:
            found = hook.pytest_report_from_serializable(config=self._config, data=data)
            hook.pytest_runtest_logreport(report=found)

        def finished(nodeid: str) -> None:
            hook.pytest_runtest_logfinish(nodeid=nodeid, location=self._locations[nodeid])

        def died(nodeid: str | None, how: str, times: int) -> None:
            collector.died(nodeid, how, times, MAX_DEATHS)
            if nodeid is not None and times >= MAX_DEATHS:
                hook.pytest_runtest_logreport(report=self._crash_report(nodeid, how))

        listener = Listener(
            collected,
            collect_error,
            started,
            report,
            finished,
            died,
            proceed=lambda: not (session.shouldfail or session.shouldstop),
        )
        controller = self._controller
        CaseProcess(
            lambda: Child(self._config, controller.brief, controller.environment, None), listener
        ).run()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _crash_report(self, nodeid: str, how: str) -> pytest.TestReport:
        location = self._locations.get(nodeid, (nodeid.partition("::")[0], None, nodeid))
        return pytest.TestReport(
            nodeid=nodeid,
            location=location,
            keywords={},
            outcome="failed",
            longrepr=f"{nodeid} killed its process twice: {how}",
            when="call",
        )
