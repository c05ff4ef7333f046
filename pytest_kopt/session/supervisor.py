"""Sessions whose tests run in other processes: a crash there is only a row."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pytest_kopt.cases.replies import Collected
from pytest_kopt.cases.result import DEAD, DIED, PROPERTY
from pytest_kopt.processes.case_processes import CaseProcesses
from pytest_kopt.processes.child import Child, ChildDied
from pytest_kopt.processes.launcher import Launcher
from pytest_kopt.session.controller import Controller, told
from pytest_kopt.session.usage import uses_kopt
from pytest_kopt.trials.judging import check_same_ids
from pytest_kopt.trials.measurements import Measurements


class Supervisor(CaseProcesses):
    """Takes collection and test loop away from this process and replays the children's reports.

    A case's next report, or its last one, tells of a process that it has ended. Reports go through
    the hooks; `collector` has only the errors of a collection and the cases that ended processes.
    """

    def __init__(self, config: pytest.Config, controller: Controller) -> None:
        super().__init__(config, controller.measurements.checker)
        self._controller = controller
        self._session: pytest.Session | None = None
        #: A process that collects as well, where the ids of the cases are to be frozen.
        self._twin: Child | None = None
        self._locations: dict[str, tuple[str, int | None, str]] = {}
        #: How the process of a case ended that runs once more.
        self._ends: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Collect nothing here: importing kernel code is the child's risk."""
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        controller = self._controller
        if controller.is_settled or controller.collector.startup_death:
            # All is known, or a command in front of the round failed.
            return True
        self._session, measurements, orders = session, controller.measurements, controller.orders
        if controller.settings.round is not None and orders.expected is None:
            # Another interpreter, with other addresses and hashes than what is forked has alike.
            env = measurements.environment
            self._twin = Child(self.config, orders, env, None, starter=Launcher())
        try:
            with told("nothing was measured or changed", controller):
                self.run(measurements.checkers, measurements.foreseen)
                if not self._is_on_cpu:
                    self._compare_ids()
        finally:
            if self._twin is not None:
                self._twin.kill()
                self._twin.stop()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def collected(self, ids: list[str]) -> Sequence[str]:
        session, controller = self._session, self._controller
        measurements = controller.measurements
        assert session is not None
        session.testscollected = len(ids)
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.verbosity >= 0:
            what = "case" if controller.trial else "item"
            reporter.write_line(f"collected {len(ids)} {what}{'s' * (len(ids) != 1)}")
        self._ids = ids
        if self._is_on_cpu:
            # What still starts would take time from the first case.
            self._compare_ids()
        broken = self.collector.collect_errors
        if broken and not (controller.trial or self.config.option.continue_on_collection_errors):
            session.shouldstop = f"{len(broken)} error{'s' * (len(broken) != 1)} during collection"
        return measurements.in_their_order(controller.collected(ids))

    def collected_too(self, ids: list[str]) -> None:
        check_same_ids(self._ids, ids, "-n")

    def given(self, nodeid: str, place: int) -> None:
        self._controller.measurements.sites.place(nodeid, place)

    @property
    def _is_on_cpu(self) -> bool:
        return self._controller.measurements.sites.here.kind == "cpu"

    def _compare_ids(self) -> None:
        """Raise BadInput where the other process has other ids for the same tests."""
        if (twin := self._twin) is None:
            return
        try:
            while not isinstance(reply := twin.receive(), Collected):
                pass
        except ChildDied:
            return
        twin.dismiss()
        check_same_ids(self._ids, reply.ids, "--kopt-round 1")

    def proceed(self) -> bool:
        assert self._session is not None
        return not (self._session.shouldfail or self._session.shouldstop)

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
            error = pytest.CollectReport("", "failed", f"no case could be collected: {how}", [])
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


class Sanitizing:
    """Takes the test loop of `--kopt-sanitize` over: a case with an error is a failed test.

    Each case runs in a worker of its own for each tool, all of them side by side.
    """

    def __init__(
        self, config: pytest.Config, measurements: Measurements, tools: Sequence[str]
    ) -> None:
        self._hook = config.hook
        self._measurements = measurements
        self._tools = tools

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for test in filter(uses_kopt, session.items):
            self._hook.pytest_runtest_logstart(nodeid=test.nodeid, location=test.location)
            self._hook.pytest_runtest_logreport(report=self._report(test))
            self._hook.pytest_runtest_logfinish(nodeid=test.nodeid, location=test.location)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
        return True

    def _report(self, test: pytest.Item) -> pytest.TestReport:
        with ThreadPoolExecutor(len(self._tools)) as pool:
            texts = pool.map(
                lambda tool: self._measurements.sanitized(test.nodeid, tool), self._tools
            )
            lines = [
                f"{tool}: {line}"
                for tool, text in zip(self._tools, texts, strict=True)
                for line in text.splitlines()
            ]
        outcome, text = ("failed", "\n".join(lines)) if lines else ("passed", None)
        return pytest.TestReport(
            test.nodeid,
            test.location,
            {},
            outcome,  # type: ignore[arg-type]
            text,
            "call",
        )
