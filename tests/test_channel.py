"""Messages between processes, and what kernel code may write among them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest

from pytest_kopt.processes import channel
from pytest_kopt.processes.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    here, there = Pipe(), Pipe()
    pair = Channel(here[0], there[1]), Channel(there[0], here[1])
    yield pair
    for end in pair:
        end.close()


@pytest.mark.parametrize("size", [1, 1 << 22])
def test_a_message_arrives_as_it_was_sent(ends: tuple[Channel, Channel], size: int) -> None:
    here, there = ends
    sending = threading.Thread(target=there.send, args=("time",), kwargs={"text": "x" * size})
    sending.start()
    message = here.receive()
    sending.join()
    assert (message["kind"], len(message["text"])) == ("time", size)
    assert not here.reader.poll(0.0)


@pytest.mark.parametrize(
    "written",
    [
        b'{"samples": [1e-06]}\n',
        b"\0\0\0\2[]",
        b"\0\0\0\4\xff\xff\xff\xff",
        b"\0\0\1\0{",
        b"\0\0",
    ],
)
def test_what_is_no_message_ends_the_talk(
    written: bytes, ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text that a kernel wrote into every pipe was a length of 2 GB, which never came."""
    monkeypatch.setattr(channel, "_REST_SECONDS", 0.1)
    here, there = ends
    os.write(there._writer.fileno(), written)
    with pytest.raises(EOFError):
        here.receive()
