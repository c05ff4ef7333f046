"""A process that runs given cases by itself, so that a vendor's profiler can watch it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.options.declare import LOADED_BEFORE
from pytest_kopt.processes.channel import Channel, Message
from pytest_kopt.processes.guests import SetAside
from pytest_kopt.processes.served import Serve
from pytest_kopt.processes.worker_orders import WorkerOrders


class Script(Channel):
    """A channel whose other end is a list: the cases to run, and nobody to report to."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._waiting = list(ids)

    def send(self, kind: str, **fields: Any) -> None:
        """Nobody listens."""

    def receive(self) -> Message:
        if not self._waiting:
            return {"kind": "stop"}
        nodeid = self._waiting.pop(0)
        return {
            "kind": "run",
            "nodeid": nodeid,
            "next": next(iter(self._waiting), None),
            "seed": None,
        }


def main() -> None:
    """Run the cases that the orders' file (the only argument) names."""
    script = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:] = script["sys_path"]
    sys.argv[:] = script["argv"]
    ids = script["ids"]
    serve = Serve(Script(ids), WorkerOrders.from_json(script["orders"]), ids)
    raise SystemExit(
        int(pytest.main([*script["pytest_args"], *LOADED_BEFORE], plugins=[SetAside(), serve]))
    )
