"""What the bridge to pytest-xdist takes from it that is not its interface: it has to be there."""

from __future__ import annotations

from typing import Any

import pytest

from .waiting import HANG

pytest.importorskip("xdist")

from pytest_kopt.session.xdist import XdistBridge


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
