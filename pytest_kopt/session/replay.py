"""Cases that run in children, reported in this process as if they had run here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.result import DEAD, DIED, PROPERTY
from pytest_kopt.processes.case_processes import Listener


class Replay(Listener):
    """Replays the children's reports through pytest's hooks.

    A process that a case has ended is told of in the next report of that case, or in its last one.
    """

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config, Collector())
        self._locations: dict[str, tuple[str, int | None, str]] = {}
        #: How the process of a case ended that runs once more.
        self._ends: dict[str, str] = {}

    def collected(self, ids: list[str]) -> Sequence[str]:
        return ids

    def collect_error(self, data: dict[str, Any]) -> None:
        report = self.read(data)
        if report.nodeid not in self.collector.collect_errors:
            self.collector.add_collect_error(report)
            self.config.hook.pytest_collectreport(report=report)

    def started(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._locations[nodeid] = location
        self.config.hook.pytest_runtest_logstart(nodeid=nodeid, location=location)

    def report(self, data: dict[str, Any]) -> None:
        report = self.read(data)
        if how := self._ends.pop(report.nodeid, ""):
            report.user_properties = [(DIED, how), *report.user_properties]
        self.config.hook.pytest_runtest_logreport(report=report)

    def finished(self, nodeid: str) -> None:
        location = self._locations[nodeid]
        self.config.hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)

    def died(self, nodeid: str | None, how: str, times: int) -> None:
        super().died(nodeid, how, times)
        if times < self.lives:
            if nodeid is not None:
                self._ends[nodeid] = how
            return
        if nodeid is None:
            text = f"no case could be collected: {how}"
            error = pytest.CollectReport("", "failed", text, [])
            setattr(error, DIED, how)
            self.config.hook.pytest_collectreport(report=error)
            return
        location = self._locations.get(nodeid, (nodeid.partition("::")[0], None, nodeid))
        text = f"{nodeid} killed its process twice: {how}"
        report = pytest.TestReport(nodeid, location, {}, "failed", text, "call")
        report.user_properties = [(DEAD, how)]
        if row := self.collector.results.get(nodeid):
            report.user_properties.append((PROPERTY, row.to_json()))
        self.config.hook.pytest_runtest_logreport(report=report)
