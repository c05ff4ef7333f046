"""What is taken from pytest-xdist beside its interface, and what lanes give in its place."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from .waiting import HANG

pytest.importorskip("xdist")

from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.session.xdist import XdistBridge
from pytest_kopt.trials import measurements


def test_an_interrupt_ends_a_worker_whatever_it_does() -> None:
    import execnet

    group = execnet.Group()
    gateway: Any = group.makegateway("popen")
    try:
        controller: Any = None
        found = XdistBridge(controller)
        found._gateways.append(gateway)
        gateway.remote_exec("import time; time.sleep(3600)")
        found.pytest_keyboard_interrupt()
        assert gateway._io.popen.wait(HANG) != 0
    finally:
        group.terminate(0)


def test_each_lane_has_a_name_of_its_own_as_workers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """By it projects name a database or a port for each."""
    child = mock.Mock()
    monkeypatch.setattr(measurements, "Child", child)
    site = mock.Mock(kind="cpu", environment_on=lambda device: {"PIN": device})
    session: Any = SimpleNamespace(
        orders=WorkerOrders("cpu", "auto", 1, 60.0, "standard"),
        sites=SimpleNamespace(asked=["", ""], lane=lambda place: (site, f"device {place}")),
        _run="run",
        _root=Path(),
        _config=mock.Mock(),
    )
    session._as_worker_of_xdist = partial(measurements.Measurements._as_worker_of_xdist, session)
    for place in (0, 1):
        measurements.Measurements.checker(session, place)
        _, orders, env, *_ = child.call_args.args
        assert orders.workerinput["workerid"] == env["PYTEST_XDIST_WORKER"] == f"gw{place}"
        assert orders.workerinput["workercount"] == int(env["PYTEST_XDIST_WORKER_COUNT"]) == 2
        assert env["PIN"] == f"device {place}"
