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
        self._early_deaths = 0

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
            self._early_deaths += 1
            how = f"worker {node.gateway.id}: {error}"
            self._controller.collector.died(None, how, self._early_deaths, MAX_DEATHS)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Note a case that killed its worker; it is run once more when all others have run."""
        if self._controller.trial is not None:
            self._controller.collector.crashed[crashitem] = str(report.longrepr)


def is_distributed(config: pytest.Config) -> bool:
    """Say whether this process hands its tests to xdist workers."""
    option = config.option
    return getattr(option, "dist", "no") != "no" and not option.collectonly
