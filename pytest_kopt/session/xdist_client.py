"""A worker of xdist, which has a process of its own run the cases that xdist hands it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.processes.case_processes import CaseProcesses, Replay
from pytest_kopt.processes.child import Child, without_records
from pytest_kopt.session.refusal import refusing


class _Test(pytest.Item):
    """Stands for a test of the other process, by its node id."""

    def runtest(self) -> None:
        raise NotImplementedError


class XdistClient(Replay):
    """Takes collection and tests away from this process, which runs no kernel code.

    The other process has this one's environment, and with it its device.
    """

    def __init__(self, config: pytest.Config, orders: WorkerOrders) -> None:
        super().__init__(config)
        self._orders = orders
        self._processes = CaseProcesses(self._start, self)
        self._steps = self._processes.steps()
        #: What was collected, None before.
        self._ids: list[str] | None = None
        #: The test that runs, and the one that the process was told to run next.
        self._running: str | None = None
        self._following: str | None = None
        self._has_ended = False

    def _start(self) -> Child:
        return Child(self.config, self._orders, without_records(os.environ), None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        self._step_until(lambda: self._ids is not None)
        ids = self._ids or []
        if self._orders.expected:
            # The longest first, so that no device is left with it at the end.
            seconds = {case.nodeid: case.seconds for case in self._orders.expected}
            ids = sorted(ids, key=lambda nodeid: -seconds.get(nodeid, 0.0))
        session.items = [_Test.from_parent(session, name=id, nodeid=id) for id in ids]
        session.testscollected = len(ids)
        self.config.hook.pytest_collection_finish(session=session)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        if item.nodeid != self._following:
            self._processes.add(item.nodeid)
        self._running = item.nodeid
        self._following = None if nextitem is None else nextitem.nodeid
        if self._following is not None:
            self._processes.add(self._following)
        self._step_until(lambda: self._running is None)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """End the process before xdist hears that this worker has ended: others measure then."""
        self._has_ended = True
        if self._ids is not None:
            self._step_until(lambda: False)

    def collected(self, ids: list[str]) -> Sequence[str]:
        self._ids = ids
        return ()

    def finished(self, nodeid: str) -> None:
        super().finished(nodeid)
        self._running = None

    def died(self, nodeid: str | None, how: str, times: int) -> None:
        super().died(nodeid, how, times)
        if times >= self.lives:
            self._running = None

    def proceed(self) -> bool:
        return not self._has_ended

    def _step_until(self, done: Callable[[], bool]) -> None:
        """Go on until then, or until no process is left."""
        with refusing(self.config):
            for _ in self._steps:
                if done():
                    return
