"""A round under pytest-xdist: orders, device and environment for its workers, and their deaths.

A worker on this host is pinned through its spec's environment, which a replacement inherits. One
on another host (`--tx ssh=…`, `socket=…`, or `via=` a proxy) finds that host's GPUs itself, through
its gateway, before pytest is started there.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from pytest_kopt.devices.idle import NoIdleGpu
from pytest_kopt.options.declare import BELOW, WORKERINPUT
from pytest_kopt.processes.child import MAX_DEATHS
from pytest_kopt.session.controller import Controller, told
from pytest_kopt.session.distribution import host_of, spec_of

_PIN = """\
from pytest_kopt.devices.pinning import pin_remote
found = pin_remote(*channel.receive(), say=lambda line: channel.send({"say": line}))
channel.send(found)
"""


class XdistBridge:
    """Registered in the controller of a distributed run."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._early_deaths = 0
        # By identity: specs of one host compare equal.
        self._remote: dict[int, int] = {}
        self._pinned: dict[int, dict[str, str]] = {}
        self._gateways: list[Any] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: list[Any]) -> None:
        """Put the environment into the specs: seen by conftest imports and by replacements."""
        proxies = {spec.id: spec for spec in map(spec_of, config.getoption("px", None) or [])}
        taken: Counter[str] = Counter()
        for spec in specs:
            host = host_of(spec, proxies)
            if host:
                self._remote[id(spec)] = taken[host]
                spec.env.update(self._controller.measurements.common_environment)
            else:
                spec.env.update(self._controller.measurements.environment_of_worker(taken[host]))
            taken[host] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """Have a worker on another host pin itself, before pytest is imported there."""
        spec = gateway.spec
        if id(spec) not in self._remote:
            return
        controller = self._controller
        before = self._pinned.get(id(spec), {}).get("uuid")
        channel = gateway.remote_exec(_PIN)
        wanted = (controller.settings.device, self._remote[id(spec)], controller.wait_minutes)
        channel.send((*wanted, before, controller.orders.target))
        while "say" in (answer := channel.receive()):
            controller.say(f"{gateway.id}: {answer['say']}")
        channel.waitclose()
        if "busy" in answer:
            in_the_way = [f"{gateway.id}: {found}" for found in answer["busy"]]
            with told("nothing was measured", controller.trial):
                raise NoIdleGpu(controller.wait_minutes or 0.0, in_the_way)
        if "refused" in answer:
            raise pytest.UsageError(f"{gateway.id}: {answer['refused']}")
        self._pinned[id(spec)] = answer

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        spec = node.gateway.spec
        self._gateways.append(node.gateway)
        orders = self._controller.orders
        pinned = self._pinned.get(id(spec))
        if pinned:
            orders = replace(orders, device=pinned["kind"])
        node.workerinput[WORKERINPUT] = orders.to_json()
        node.workerinput[BELOW] = id(spec) not in self._remote and not spec.via

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        # Workers run the longest cases first; rows stand in the order of declaration.
        expected = self._controller.orders.expected or ()
        place = {case.nodeid: i for i, case in enumerate(expected)}
        self._controller.collected(sorted(ids, key=lambda nodeid: place.get(nodeid, len(place))))

    def pytest_keyboard_interrupt(self) -> None:
        """End the workers at once: one whose case hangs would be waited for."""
        for gateway in self._gateways:
            with suppress(OSError):
                gateway._io.kill()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Count workers that died before they had collected."""
        if error and not self._controller.collector.order:
            self._early_deaths += 1
            how = f"worker {node.gateway.id}: {error}"
            self._controller.collector.died(None, how, self._early_deaths, MAX_DEATHS)
            distribution = node.config.pluginmanager.get_plugin("dsession")
            if self._early_deaths >= MAX_DEATHS and distribution is not None:
                # Whoever comes next would die of the same, an import that hangs after minutes.
                distribution._max_worker_restart = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Note a case that killed its worker; it is run once more when all others have run.

        Not one that took the device's context along: that worker has reported it and left.
        """
        collector = self._controller.collector
        if self._controller.settings.active and crashitem not in collector.context_lost:
            collector.crashed[crashitem] = str(report.longrepr)
