"""Messages between the deciding process and one it started: JSON over a pair of pipes.

JSON and not pickle: kernel code runs at the other end, and what it sends is only ever data.

The deciding process begins with `hello`: orders, arguments, paths. It asks for each case by `run`
(which names the arms of a race that are out), for a session that loads all anew by `again`, for the
end by `stop`. The other sends `collected` and `collect_error`; for each case `declared` (the row
that it gets if it never comes back), `started`, `report` and `finished`. `confined` says what was
refused to others than the kernel, and ends the session.

Of a case that is compared a process says that it is `refused`, or the `same` in both versions, or
what `changed` in the machine code and that it is `loaded`: whether that `reached` it, else they all
`skip` it, and the memory that a call takes. On `go` it says what times its arms, and on how many
input sets (`prepared`). `engine` is what all processes use, and then the arms are `ready`: how many
calls their blocks have, and where in memory it is said where the results of these lie. On each
`block` it writes the content that follows from its seed (`written`), and on each `go` after that it
runs the calls of a direction, many `times` over where that is asked, and says their `time`. On a
block without an arm it sends what was looked at (`kept`). `settled` says whether that was found
right; if not, it is judged there by the baseline's accuracy. What gave the candidate away is
`caught`.

A referee is asked to `judge` what others kept: it says what it `judged`, or what it has `kept`
itself. What is tried near the declared shapes is `tried`, under the seed of a `block`; `reached` is
how exact a version is at the declared one.
"""

from __future__ import annotations

import json
import os
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

Message = dict[str, Any]

#: Seconds that the rest of a message may take, and its most bytes: else it was none of ours.
_REST_SECONDS, _MOST_BYTES = 30.0, 1 << 28


class Channel:
    """One end; `receive` raises EOFError when the other process is gone, or sends no messages.

    Kernel code holds the other end as well, and may write what it likes.
    """

    def __init__(self, reader: Connection, writer: Connection) -> None:
        self.reader = reader
        self._writer = writer
        self._sent = 0.0

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message; values JSON cannot hold are sent as their repr."""
        self._sent = time.perf_counter()
        self._writer.send_bytes(json.dumps({"kind": kind, **fields}, default=repr).encode())

    def receive(self) -> Message:
        """Wait for the next message and return it.

        Its field `waited` says how many ms passed on this side since the last one was sent.
        """
        self.reader.poll(None)
        try:
            message = json.loads(self._frame())
        except ValueError:
            message = None
        if not isinstance(message, dict) or "kind" not in message:
            raise EOFError("the other process sent something else than a message")
        return {**message, "waited": (time.perf_counter() - self._sent) * 1e3}

    def _frame(self) -> bytes:
        """Return what `send_bytes` sent; `recv_bytes` would wait for ever for the rest of it."""
        until = time.monotonic() + _REST_SECONDS
        (size,) = struct.unpack("!i", self._read(4, until))
        if not 0 <= size <= _MOST_BYTES:
            raise EOFError("the other process sent something else than a message")
        return self._read(size, until)

    def _read(self, size: int, until: float) -> bytes:
        found = bytearray()
        while len(found) < size:
            is_there = self.reader.poll(max(0.0, until - time.monotonic()))
            part = os.read(self.reader.fileno(), size - len(found)) if is_there else b""
            if not part:
                raise EOFError("a message broke off")
            found += part
        return bytes(found)

    def close(self) -> None:
        self.reader.close()
        self._writer.close()
