"""A round under pytest-xdist: orders and environment for its workers, and their deaths."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_kopt.options.declare import WORKERINPUT
from pytest_kopt.session.child import MAX_DEATHS
from pytest_kopt.session.controller import Controller


class XdistBridge:
    """Registered in the controller of a distributed run."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._deaths: dict[str | None, int] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: list[Any]) -> None:
        """Put the environment into the specs: seen by conftest imports and by replacements."""
        for spec in specs:
            spec.env.update(self._controller.environment)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[WORKERINPUT] = self._controller.brief.to_json()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._controller.collected(list(ids))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Count workers that died before they had collected."""
        if error and not self._controller.collector.order:
            self._died(None, f"worker {node.gateway.id}: {error}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """Run a case that killed its worker once more; the second time it stays failed."""
        if self._controller.round is None:
            return
        times = self._died(crashitem, str(report.longrepr))
        if times >= MAX_DEATHS:
            return
        try:
            sched.mark_test_pending(crashitem)
        except NotImplementedError:
            return
        report.outcome = "rerun"

    def _died(self, nodeid: str | None, how: str) -> int:
        times = self._deaths[nodeid] = self._deaths.get(nodeid, 0) + 1
        self._controller.collector.died(nodeid, how, times, MAX_DEATHS)
        return times


def is_distributed(config: pytest.Config) -> bool:
    """Say whether this process hands its tests to xdist workers."""
    option = config.option
    return getattr(option, "dist", "no") != "no" and not option.collectonly
