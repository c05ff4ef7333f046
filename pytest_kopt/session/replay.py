"""Cases that run in children, reported in this process as if they had run here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.processes.case_processes import Listener


class Replay(Listener):
    """Replays the children's reports through pytest's hooks."""

    def __init__(self, config: pytest.Config, collector: Collector) -> None:
        super().__init__(config, collector)
        self._locations: dict[str, tuple[str, int | None, str]] = {}

    def collected(self, ids: list[str]) -> Sequence[str]:
        return ids

    def collect_error(self, data: dict[str, Any]) -> None:
        report = self.read(data)
        if report.nodeid not in self.collector.collect_errors:
            self.config.hook.pytest_collectreport(report=report)

    def started(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._locations[nodeid] = location
        self.config.hook.pytest_runtest_logstart(nodeid=nodeid, location=location)

    def report(self, data: dict[str, Any]) -> None:
        self.config.hook.pytest_runtest_logreport(report=self.read(data))

    def finished(self, nodeid: str) -> None:
        location = self._locations[nodeid]
        self.config.hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)

    def died(self, nodeid: str | None, how: str, times: int) -> None:
        super().died(nodeid, how, times)
        if times < self.lives:
            return
        if nodeid is None:
            error = pytest.CollectReport("", "failed", f"no case could be collected: {how}", [])
            self.config.hook.pytest_collectreport(report=error)
            return
        location = self._locations.get(nodeid, (nodeid.partition("::")[0], None, nodeid))
        text = f"{nodeid} killed its process twice: {how}"
        report = pytest.TestReport(nodeid, location, {}, "failed", text, "call")
        self.config.hook.pytest_runtest_logreport(report=report)
