"""Every order of the protocol in every state of a worker: the reply, or the end of the case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
import torch

from pytest_kopt.cases import replies
from pytest_kopt.cases.fixture import Kopt
from pytest_kopt.cases.order import CANDIDATE, ArmsOrder, Bench, WorkerOrders
from pytest_kopt.cases.protocol import (
    Begin,
    CaseServed,
    CheckCase,
    HandOver,
    JudgeLooks,
    Leave,
    LoadAlone,
    LoadReference,
    LoadVersions,
    Looks,
    Order,
    Prepare,
    Profile,
    Recompute,
    SayReach,
    StopWorker,
    Time,
    TryNearby,
    Write,
)
from pytest_kopt.cases.replies import CaseFinished, Reply
from pytest_kopt.cases.running import run_case, timed_versions
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.measure.wall import WallEngine
from pytest_kopt.options.declare import STDERR
from pytest_kopt.processes.channel import text_of
from pytest_kopt.processes.served import Serve
from pytest_kopt.session.worker import Worker

CASE = "t.py::test"
ORDERS = WorkerOrders("cpu", "auto", 1, 60.0, "standard")
LOOKS = Looks(CASE, 5, [], 1, [], [1])
#: One of each order.
EVERY: tuple[Order, ...] = (
    Begin(ORDERS, [], [], []),
    *(kind(CASE) for kind in (CheckCase, Profile, LoadVersions, TryNearby, LoadReference)),
    *(Leave(), Prepare([2]), Write(CANDIDATE, 5), Time(), HandOver(1)),
    *(JudgeLooks(LOOKS), Recompute(LOOKS), SayReach(), LoadAlone(5), StopWorker()),
)
BLOCKS: list[Order] = [LoadVersions(CASE), Prepare([2])]
#: By its name, what a client has sent when a worker is in a state.
STATES: dict[str, list[Order]] = {
    "between cases": [],
    "versions loaded": BLOCKS[:1],
    "between blocks": BLOCKS,
    "block written": [*BLOCKS, Write(CANDIDATE, 5)],
    "block timed": [*BLOCKS, Write(CANDIDATE, 5), Time()],
    "case over": [*BLOCKS, HandOver(1)],
    "reference loaded": [LoadReference(CASE)],
    "reference judged": [LoadReference(CASE), JudgeLooks(LOOKS)],
    "current best loaded": [LoadReference(CASE), LoadAlone(5)],
    "current best timed": [LoadReference(CASE), LoadAlone(5), *BLOCKS[1:], HandOver(1)],
    "ended": [StopWorker()],
}
_NEXT_CASE: dict[type[Any], str] = {
    CheckCase: "FallbackRow",
    Profile: "Profiled",
    LoadVersions: "Loaded",
    TryNearby: "TriedShape",
    LoadReference: "Loaded",
}
_NEXT_BLOCK: dict[type[Any], str] = {
    Prepare: "Ready",
    Write: "Written",
    HandOver: "HandedOver",
}
_NEXT_LOOKS: dict[type[Any], str] = {
    JudgeLooks: "Findings",
    Recompute: "HandedOver",
    SayReach: "Loaded",
    LoadAlone: "Loaded",
}
#: By state, the reply to each order that has its turn there.
TURNS: dict[str, dict[type[Any], str]] = {
    "between cases": _NEXT_CASE,
    "versions loaded": {Prepare: "Ready"},
    "between blocks": _NEXT_BLOCK,
    "block written": {Time: "Timed"},
    "block timed": _NEXT_BLOCK,
    "case over": _NEXT_CASE,
    "reference loaded": _NEXT_LOOKS,
    "reference judged": _NEXT_LOOKS,
    "current best loaded": {Prepare: "Ready"},
    "current best timed": _NEXT_LOOKS,
    "ended": {},
}
#: States in which no case is under way: what has no turn there is passed over.
IDLE = {"between cases", "case over", "ended"}


def test_the_table_says_of_each_field_of_a_reply_who_else_knows_it() -> None:
    lines = re.findall(r"^([A-Z]\w+)\.(\w+) +\S", replies.__doc__ or "", re.MULTILINE)
    kinds = get_args(Reply)
    assert lines == [(kind.__name__, each.name) for kind in kinds for each in fields(kind)]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Line:
    """A channel whose client sends these orders, and then is gone."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = [*orders]
        self.replies: list[Reply] = []

    def receive(self) -> Order:
        if not self._orders:
            raise EOFError
        return self._orders.pop(0)

    def send(self, reply: Reply) -> None:
        self.replies.append(reply)


def leave(*case: Any) -> None:
    raise CaseServed


def played(ordered: Sequence[Order], scratch: Path) -> list[Reply]:
    """Return the replies of a worker that gets these orders."""
    line = Line(ordered)
    serve = Serve(cast("Any", line), Begin(ORDERS, [], [], []), scratch)
    arms = ArmsOrder((CANDIDATE,), root=str(scratch))
    bench = Bench("cpu", "auto", 1, arms=arms, cpu=WallEngine(block_seconds=0.0005))

    def run(item: Any, nextitem: Any) -> None:
        with suppress(CaseServed):
            Kopt(item, "single", bench, serve)(
                double,
                inputs=lambda: (torch.randn(4, 4),),
                reference=lambda x: x.double() * 2,
                dims={"n": 4},
            )

    config = SimpleNamespace(hook=SimpleNamespace(pytest_runtest_protocol=run), rootpath=scratch)
    test = SimpleNamespace(nodeid=CASE, config=config, stash={})
    serve.pytest_runtestloop(cast("Any", SimpleNamespace(items=[test])))
    return line.replies


def test_the_table_has_every_order() -> None:
    assert {type(order) for order in EVERY} == {*get_args(Order)}


@pytest.mark.parametrize("state", STATES)
def test_an_order_has_its_reply_or_ends_the_case(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_versions, "try_case", lambda *case: [Tried("t", "size", {})])
    monkeypatch.setattr(run_case, "run_case", leave)
    # A client that is gone ends what is under way, which is the last reply.
    reached = len(played(STATES[state], tmp_path)) - (state not in IDLE)
    for order in EVERY:
        replies = played([*STATES[state], order], tmp_path)[reached:]
        names = [type(reply).__name__ for reply in replies]
        if turn := TURNS[state].get(type(order)):
            assert names[0] == turn, order
        else:
            assert names == ["CaseFinished"] * (state not in IDLE), order


@pytest.mark.parametrize("state", [state for state in STATES if state not in IDLE])
def test_a_worker_that_is_stopped_begins_no_other_case(state: str, tmp_path: Path) -> None:
    orders = [*STATES[state], StopWorker(), LoadVersions(CASE)]
    assert played(orders, tmp_path)[-1] == CaseFinished(CASE, leaving=True)


def test_a_test_whose_case_was_served_ends_as_one_that_returned() -> None:
    properties: list[Any] = []
    test = SimpleNamespace(
        nodeid="t.py::test",
        get_closest_marker=lambda name: name,
        fixturenames=("kopt",),
        user_properties=properties,
    )
    config: Any = SimpleNamespace(stash={STDERR: 2})
    call = Worker(config, ORDERS).pytest_pyfunc_call(cast("Any", test))
    next(call)
    with pytest.raises(StopIteration) as end:
        call.throw(CaseServed())
    assert end.value.value is True and not properties


def test_what_a_case_prints_fits_into_a_message(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    line = Line([])
    serve = Serve(cast("Any", line), Begin(ORDERS, [], [], []), tmp_path)
    serve._config = pytestconfig
    printed = [("Captured stdout call", "y" * (3 << 20) + "the end")]
    serve.pytest_runtest_logreport(
        pytest.TestReport("t.py::t", ("t.py", 1, "t"), {}, "passed", None, "call", printed)
    )
    (reply,) = line.replies
    text = text_of(reply)
    assert len(text) < 2 << 20 and b"the end" in text
