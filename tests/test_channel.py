"""Messages between processes, and what kernel code may write among them."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from pytest_kopt import models
from pytest_kopt.cases import replies
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.protocol import Keep, Order, StopWorker, Write
from pytest_kopt.cases.replies import Collected, Loaded, MachineCode, Reply, Timed
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.honesty import nearby_shapes
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.processes import channel
from pytest_kopt.processes.channel import (
    Channel,
    read_order,
    read_replies,
    read_reply,
    text_of,
    write_orders,
)

Ends = tuple[Channel[Order, Reply], Channel[Reply, Order]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    here, there = Pipe(), Pipe()
    ours: Channel[Order, Reply] = Channel(here[0], there[1], read_reply)
    theirs: Channel[Reply, Order] = Channel(there[0], here[1], read_order)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("size", [1, 1 << 22])
def test_a_message_arrives_as_it_was_sent(ends: Ends, size: int) -> None:
    here, there = ends
    sent = Collected(["x" * size])
    sending = threading.Thread(target=there.send, args=(sent,))
    sending.start()
    assert here.receive() == sent
    sending.join()
    assert not here.reader.poll(0.0)


def test_messages_hold_other_values_than_those_of_json() -> None:
    finding = Finding("stale-result", "it is old")
    code = MachineCode({"launches": []}, {}, "sm_90")
    shape = nearby_shapes.Tried("a", "size", {"n": 3}, {"candidate": "right"})
    for sent in (
        replies.Findings([finding]),
        Loaded(memory={"candidate": 5}, code=code),
        replies.TriedShape(shape),
        replies.Reached("candidate", {"out": Accuracy("float32", float("inf"), 150.0)}),
        replies.CaseStarted("a", ("a.py", None, "a")),
    ):
        assert read_reply(text_of(sent)) == sent
    profile = read_reply(text_of(replies.Report({"value": object})))
    assert isinstance(profile, replies.Report) and "object" in profile.data["value"]


def test_no_message_is_both_an_order_and_a_reply_and_each_can_be_read() -> None:
    orders, replies = get_args(Order), get_args(Reply)
    assert not {*orders} & {*replies}
    for kind in (*orders, *replies):
        assert get_type_hints(kind) is not None
    with pytest.raises(ValueError, match="than a message"):
        read_order(text_of(Timed(1.0)))


def test_orders_and_replies_can_be_files(tmp_path: Path) -> None:
    """What a vendor's tool starts gets no descriptor of ours."""
    orders: list[Order] = [Write("candidate", 5, keep=Keep(1, [2])), StopWorker()]
    write_orders(tmp_path / "orders", *orders)
    reader, writer = os.open(tmp_path / "orders", os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)
    worker: Channel[Reply, Order] = Channel(
        Connection(reader, writable=False), Connection(writer, readable=False), read_order
    )
    assert [worker.receive(), worker.receive()] == orders
    with pytest.raises(EOFError):
        worker.receive()
    worker.close()
    text = text_of(Timed(2.0))
    (tmp_path / "replies").write_bytes(struct.pack("!i", len(text)) + text + b"\0\0")
    assert [*read_replies(tmp_path / "replies")] == [Timed(2.0)]


@pytest.mark.parametrize(
    "written",
    [
        b'{"samples": [1e-06]}\n',
        b"\0\0\0\2[]",
        b"\0\0\0\4\xff\xff\xff\xff",
        b"\0\0\1\0{",
        b"\0\0",
        b'\0\0\0\x15{"message": "Timed"}\n',
        b'\0\0\0\x19{"message": ["Timed"]}   ',
    ],
)
def test_what_is_no_message_ends_the_talk(
    written: bytes, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text that a kernel wrote into every pipe was a length of 2 GB, which never came."""
    monkeypatch.setattr(channel, "_REST_SECONDS", 0.1)
    here, there = ends
    os.write(there._writer.fileno(), written)
    with pytest.raises(EOFError):
        here.receive()


def test_a_process_that_was_prepared_makes_nothing_to_read_messages_and_write_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel.prepare()
    monkeypatch.setattr(models, "TypeAdapter", lambda kind: pytest.fail(f"made one for {kind}"))
    assert read_reply(text_of(Timed(1.0))) == Timed(1.0)
    assert read_order(text_of(StopWorker())) == StopWorker()
    row = CaseResult("t.py::test_x", header=("label", "Check"), evidence=CaseEvidence())
    assert CaseResult.from_json(row.to_json()) == row
