"""The channel between a worker and its client: messages over a pair of pipes, with a time limit.

The text of a message is JSON and not pickle: kernel code holds the worker's end, and what it writes
is only ever data. The channel refuses what is no message of the right types.
"""

from __future__ import annotations

import faulthandler
import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, is_dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar, get_args

from pytest_kopt import models
from pytest_kopt.cases.protocol import Order
from pytest_kopt.cases.replies import Reply
from pytest_kopt.cases.result import CaseResult

_Sent = TypeVar("_Sent", bound=Order | Reply)
_Received = TypeVar("_Received", bound=Order | Reply)

#: Seconds that the rest of a message may take, and its most bytes: else it was none of ours.
_REST_SECONDS, _MOST_BYTES = 30.0, 1 << 28
_NO_MESSAGE = "the other process sent something else than a message"
_ORDERS = {kind.__name__: kind for kind in get_args(Order)}
_REPLIES = {kind.__name__: kind for kind in get_args(Reply)}


class Channel(Generic[_Sent, _Received]):
    """One end; `receive` raises EOFError when the other process is gone, or sends no messages.

    Kernel code holds the worker's end as well, and may write what it likes.
    """

    def __init__(
        self, reader: Connection, writer: Connection, read: Callable[[bytes], _Received]
    ) -> None:
        """Talk over two pipes; `read` makes a message of its text, or raises ValueError."""
        self.reader = reader
        self._writer = writer
        self._read_message = read
        self._sent = 0.0
        #: How many ms passed on this side from the last message sent to the last one received.
        self.waited_ms = 0.0

    def send(self, message: _Sent) -> None:
        self.send_text(text_of(message))

    def receive(self) -> _Received:
        """Wait for the next message and return it."""
        try:
            return self._read_message(self.receive_text())
        except ValueError:
            raise EOFError(_NO_MESSAGE) from None

    def send_text(self, text: bytes) -> None:
        self._sent = time.perf_counter()
        self._writer.send_bytes(text)

    def receive_text(self) -> bytes:
        """Return what `send_bytes` sent; `recv_bytes` would wait for ever for the rest of it."""
        self.reader.poll(None)
        until = time.monotonic() + _REST_SECONDS
        (size,) = struct.unpack("!i", self._read(4, until))
        if not 0 <= size <= _MOST_BYTES:
            raise EOFError(_NO_MESSAGE)
        text = self._read(size, until)
        self.waited_ms = (time.perf_counter() - self._sent) * 1e3
        return text

    def _read(self, size: int, until: float) -> bytes:
        text = bytearray()
        while len(text) < size:
            is_there = self.reader.poll(max(0.0, until - time.monotonic()))
            part = os.read(self.reader.fileno(), size - len(text)) if is_there else b""
            if not part:
                raise EOFError("a message broke off")
            text += part
        return bytes(text)

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


def text_of(message: Order | Reply) -> bytes:
    """Return a message as it is sent; values that JSON cannot hold are sent as their repr."""
    document = {part.name: getattr(message, part.name) for part in fields(message)}
    return json.dumps({"message": type(message).__name__, **document}, default=_plain).encode()


def read_order(text: bytes) -> Order:
    """Return the order that a text holds; ValueError where it is none."""
    order: Order = _read(_ORDERS, text)
    return order


def read_reply(text: bytes) -> Reply:
    """Return the reply that a text holds; ValueError where it is none."""
    reply: Reply = _read(_REPLIES, text)
    return reply


def prepare() -> None:
    """Make what reads messages and writes rows, for forks: each would need 40 ms of CPU time."""
    models.prepare(*_ORDERS.values(), *_REPLIES.values(), CaseResult)


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else repr(value)


def _read(kinds: Mapping[str, Any], text: bytes) -> Any:
    document = json.loads(text)
    name = document.pop("message", "") if isinstance(document, dict) else ""
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(_NO_MESSAGE)
    return models.read(kinds[name], document)


def write_orders(path: Path, *orders: Order) -> None:
    """Write a file that a worker can read in place of a pipe: all that is asked of it."""
    with path.open("wb") as file:
        for order in orders:
            text = text_of(order)
            file.write(struct.pack("!i", len(text)) + text)


def read_replies(path: Path) -> Iterator[Reply]:
    """Yield what a worker wrote to a file in place of a pipe, up to what is no message."""
    reader = Connection(os.open(path, os.O_RDONLY), writable=False)
    channel: Channel[Order, Reply] = Channel(reader, reader, read_reply)
    with reader, suppress(EOFError):
        while True:
            yield channel.receive()


class TimeLimit:
    """A watchdog over one process, whatever holds it up: Python, a library or a device.

    It is faulthandler's, of which a process has one: limits do not nest. Exit status 1 and a text
    that begins with "Timeout (" are how the process ends.
    """

    def __init__(self, seconds: float, stream: int) -> None:
        """Allow that many seconds at a time; the stacks are written to a file descriptor."""
        self._seconds = seconds
        self._stream = stream
        self._end: float | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._start(self._seconds)
        try:
            yield
        finally:
            self._end = None
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop the clock while this process waits its turn: others may take as long as they do."""
        if self._end is None:
            yield
            return
        left = self._end - monotonic()
        faulthandler.cancel_dump_traceback_later()
        try:
            yield
        finally:
            self._start(left)

    def _start(self, seconds: float) -> None:
        self._end = monotonic() + seconds
        # It takes no time in the past, and none below a microsecond.
        faulthandler.dump_traceback_later(max(seconds, 1e-3), exit=True, file=self._stream)
