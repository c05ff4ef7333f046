"""What the bridge to pytest-xdist takes from it that is not its interface: it has to be there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.processes.child import MAX_DEATHS

from .waiting import HANG

pytest.importorskip("xdist")

from pytest_kopt.session.xdist import XdistBridge


class Node:
    """A worker as xdist's session knows it."""

    def __init__(self, name: str, config: pytest.Config) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.config = config


def bridge() -> XdistBridge:
    """Return one whose controller has collected nothing yet."""
    collector = SimpleNamespace(order=[], died=lambda *about: None)
    controller: Any = SimpleNamespace(collector=collector)
    return XdistBridge(controller)


def test_workers_that_die_before_they_collect_are_not_replaced_for_ever(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdist.dsession import DSession

    config = pytester.parseconfig("-p", "no:terminal")
    session: Any = DSession(config)
    replaced: list[object] = []

    def refuse(node: object) -> None:
        raise KeyError(node)

    monkeypatch.setattr(session, "sched", SimpleNamespace(remove_node=refuse), raising=True)
    monkeypatch.setattr(session, "_clone_node", replaced.append)
    monkeypatch.setattr(session, "triggershutdown", lambda: None)
    config.pluginmanager.register(session, "dsession")
    config.pluginmanager.register(bridge(), "kopt-xdist")
    for number in range(MAX_DEATHS):
        node = Node(f"gw{number}", config)
        session._active_nodes.add(node)
        session.worker_errordown(node, "it hung")
    assert len(replaced) == MAX_DEATHS - 1


def test_an_interrupt_ends_a_worker_whatever_it_does() -> None:
    import execnet

    group = execnet.Group()
    gateway: Any = group.makegateway("popen")
    try:
        found = bridge()
        found._gateways.append(gateway)
        gateway.remote_exec("import time; time.sleep(3600)")
        found.pytest_keyboard_interrupt()
        assert gateway._io.popen.wait(HANG) != 0
    finally:
        group.terminate(0)
