"""A round under pytest-xdist: orders, device and environment for its workers.

A worker on this host is pinned through its spec's environment, which a replacement inherits. One
on another host (`--tx ssh=…`, `popen//python=srun …`, or `via=` a proxy) finds that host's GPUs
itself, through its gateway, before pytest is started there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.options.declare import BELOW, CLIENT, WORKERINPUT
from pytest_kopt.processes.remote_host import RemoteHost
from pytest_kopt.processes.sites import connection_of, host_of, proxies_of
from pytest_kopt.session.controller import Controller, told

_PIN = """\
import os, platform
from pytest_kopt.devices.pinning import pin_remote
channel.send(os.environ.get("SLURMD_NODENAME") or platform.node())
found = pin_remote(*channel.receive(), say=lambda line: channel.send({"say": line}))
channel.send(found)
"""


@dataclass(slots=True)
class _Far:
    """A worker on another host: its place among those there and what it is pinned to, once known.

    `connection` is the spec of another connection to the `host`, "" where none is needed.
    """

    host: str
    connection: str = ""
    place: int | None = None
    pinned: Mapping[str, str] = field(default_factory=dict)


class XdistBridge:
    """Registered in the controller of a distributed run."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        # By identity: specs of one host compare equal.
        self._far: dict[int, _Far] = {}
        self._taken: Counter[str] = Counter()
        self._gateways: list[Any] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: list[Any]) -> None:
        """Put the environment into the specs: seen by conftest imports and by replacements."""
        controller, proxies = self._controller, proxies_of(config)
        place = 0
        for spec in specs:
            host = host_of(spec, proxies)
            if not host:
                spec.env.update(controller.measurements.environment_of_worker(place))
                place += 1
                continue
            far = self._far[id(spec)] = _Far(host)
            spec.env.update(controller.measurements.common_environment)
            if controller.judges:
                with told("nothing was measured", controller):
                    far.connection = connection_of(spec, proxies)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """Have a worker on another host pin itself, before pytest is imported there."""
        spec = gateway.spec
        if (far := self._far.get(id(spec))) is None:
            return
        controller = self._controller
        channel = gateway.remote_exec(_PIN)
        name = channel.receive()
        if spec.popen and not spec.via:
            # The same command may lead to another host each time.
            far.host = name
        if far.place is None:
            far.place = self._taken[far.host]
            self._taken[far.host] += 1
        wish = (controller.settings.device, far.place, controller.wait_minutes)
        channel.send((*wish, far.pinned.get("uuid"), controller.orders.target))
        while "say" in (answer := channel.receive()):
            controller.say(f"{gateway.id}: {answer['say']}")
        channel.waitclose()
        if "busy" in answer:
            in_the_way = [f"{gateway.id}: {process}" for process in answer["busy"]]
            with told("nothing was measured", controller):
                raise AllGpusBusy(controller.wait_minutes or 0.0, in_the_way)
        if "refused" in answer:
            raise pytest.UsageError(f"{gateway.id}: {answer['refused']}")
        far.pinned = answer

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        spec = node.gateway.spec
        self._gateways.append(node.gateway)
        orders, far = self._controller.orders, self._far.get(id(spec))
        if far is not None and far.pinned:
            orders = replace(orders, device=far.pinned["kind"])
            self._reach(node, far)
        node.workerinput[WORKERINPUT] = orders.to_json()
        node.workerinput[BELOW] = far is None and not spec.via
        node.workerinput[CLIENT] = self._controller.settings.active

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if self._controller.collector.startup_death:
            return
        # Workers run the longest cases first; rows stand in the order of declaration.
        expected = self._controller.orders.expected or ()
        place = {case.nodeid: i for i, case in enumerate(expected)}
        self._controller.collected(sorted(ids, key=lambda nodeid: place.get(nodeid, len(place))))

    def _reach(self, node: Any, far: _Far) -> None:
        """Have the starter of processes on a worker's host begin at the same time as the worker."""
        controller, spec = self._controller, node.gateway.spec
        name, connection = far.host, far.connection
        if not connection:
            return
        roots = node.nodemanager.roots if spec.chdir or not spec.popen else ()
        connect = partial(RemoteHost, name, connection, roots, controller.say)
        controller.measurements.reach(name, connect, far.pinned["uuid"], controller.wait_minutes)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note on which other host a case ran."""
        node = getattr(report, "node", None)
        far = self._far.get(id(node.gateway.spec)) if node is not None else None
        if far is not None and far.connection:
            self._controller.measurements.sites.homes[report.nodeid] = far.host

    def pytest_keyboard_interrupt(self) -> None:
        """End the workers at once: one whose case hangs would be waited for."""
        for gateway in self._gateways:
            with suppress(OSError):
                gateway._io.kill()
