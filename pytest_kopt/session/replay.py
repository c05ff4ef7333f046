"""Cases that run in children, reported in this process as if they had run here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.processes.case_processes import CaseProcesses, Listener
from pytest_kopt.processes.child import MAX_DEATHS, Child


class Replay:
    """Replays the children's reports through pytest's hooks."""

    def __init__(self, config: pytest.Config, collector: Collector) -> None:
        self._config = config
        self._collector = collector
        self._locations: dict[str, tuple[str, int | None, str]] = {}

    def run(
        self,
        start: Callable[[], Child],
        collected: Callable[[list[str]], Sequence[str]],
        proceed: Callable[[], bool] = lambda: True,
        most: int = 1,
        foreseen: int = 0,
    ) -> None:
        """Run what `collected` selects of a child's node ids, as long as `proceed` says.

        In up to `most` children at once; so many cases are `foreseen`.
        """
        CaseProcesses(
            start,
            Listener(
                collected,
                self._collect_error,
                self._started,
                self._collector.declared,
                self._report,
                self._finished,
                self._died,
                proceed,
            ),
            most=most,
            foreseen=foreseen,
        ).run()

    def _collect_error(self, data: dict[str, Any]) -> None:
        hook = self._config.hook
        report = hook.pytest_report_from_serializable(config=self._config, data=data)
        if report.nodeid not in self._collector.collect_errors:
            hook.pytest_collectreport(report=report)

    def _started(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._locations[nodeid] = location
        self._config.hook.pytest_runtest_logstart(nodeid=nodeid, location=location)

    def _report(self, data: dict[str, Any]) -> None:
        hook = self._config.hook
        found = hook.pytest_report_from_serializable(config=self._config, data=data)
        hook.pytest_runtest_logreport(report=found)

    def _finished(self, nodeid: str) -> None:
        location = self._locations[nodeid]
        self._config.hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)

    def _died(self, nodeid: str | None, how: str, times: int) -> None:
        self._collector.died(nodeid, how, times, MAX_DEATHS)
        if nodeid is None and times >= MAX_DEATHS:
            error = pytest.CollectReport("", "failed", f"no case could be collected: {how}", [])
            self._config.hook.pytest_collectreport(report=error)
        if nodeid is not None and times >= MAX_DEATHS:
            report = self._crash_report(nodeid, how)
            self._config.hook.pytest_runtest_logreport(report=report)

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
