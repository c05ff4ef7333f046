"""A plain run under pytest-xdist: orders, device and environment for its workers on this host.

One on another host takes the device that torch chooses there. Sessions that write rows or decide
start no worker of xdist.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from pytest_kopt.options.declare import WORKERINPUT
from pytest_kopt.processes.sites import host_of, proxies_of
from pytest_kopt.session.controller import Controller


class XdistBridge:
    """Registered in the controller of a distributed run.

    A worker is pinned through its spec's environment, which a replacement inherits.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._gateways: list[Any] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: list[Any]) -> None:
        """Put the environment into the specs: seen by conftest imports and by replacements."""
        proxies, sites = proxies_of(config), self._controller.measurements.sites
        for place, spec in enumerate(specs):
            if not host_of(spec, proxies):
                site, device = sites.lane(place)
                spec.env.update(site.environment_on(device))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self._gateways.append(node.gateway)
        if not host_of(node.gateway.spec, proxies_of(node.config)):
            node.workerinput[WORKERINPUT] = self._controller.orders.to_json()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._controller.collected(ids)

    def pytest_keyboard_interrupt(self) -> None:
        """End the workers at once: one whose case hangs would be waited for."""
        for gateway in self._gateways:
            with suppress(OSError):
                gateway._io.kill()
