"""Messages between the deciding process and one it started: JSON over a pair of pipes.

JSON and not pickle: kernel code runs at the other end, and what it sends is only ever data.
"""

from __future__ import annotations

import json
import time
from multiprocessing.connection import Connection
from typing import Any

Message = dict[str, Any]


class Channel:
    """One end; `receive` raises EOFError when the other process is gone."""

    def __init__(self, reader: Connection, writer: Connection) -> None:
        self.reader = reader
        self._writer = writer
        self._sent = 0.0

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message; values JSON cannot hold are sent as their repr."""
        self._sent = time.perf_counter()
        self._writer.send_bytes(json.dumps({"kind": kind, **fields}, default=repr).encode())

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, None when none came within `timeout` seconds.

        Its field `waited` says how many ms passed on this side since the last one was sent.
        """
        if not self.reader.poll(timeout):
            return None
        message = json.loads(self.reader.recv_bytes())
        if not isinstance(message, dict) or "kind" not in message:
            raise EOFError("the other process sent something else than a message")
        return {**message, "waited": (time.perf_counter() - self._sent) * 1e3}

    def close(self) -> None:
        self.reader.close()
        self._writer.close()
