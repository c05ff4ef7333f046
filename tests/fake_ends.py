"""The ends of the protocol as fakes: a client for a worker's code, a worker for a client's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_kopt.cases.protocol import HandOver, Order, Prepare, Time, Write
from pytest_kopt.cases.replies import (
    HandedOver,
    Ready,
    Reply,
    Timed,
    Written,
)


class TwoBlocks:
    """A client that has two blocks of each arm run, by the worker's engine or by `common`."""

    def __init__(self, common: str | None = None) -> None:
        self.common = common
        self.engine = ""
        self.not_captured: Mapping[str, str] = {}
        self.arms: list[str] = []
        self.times: list[float] = []
        self.findings: list[object] = []
        self._orders: list[Order] = [Prepare([4, 4])]

    def send(self, reply: Reply) -> None:
        match reply:
            case Ready(engine, not_captured) if self.common not in (None, engine):
                self.engine, self.not_captured = engine, not_captured
                self._orders = [Prepare([4, 4], self.common)]
            case Ready(engine, not_captured, calls):
                if self.common is None:
                    self.engine, self.not_captured = engine, not_captured
                self.arms = [*calls]
                # Each is started on its own, once for its forward.
                blocks = [order for arm in calls for order in (Write(arm, 5), Time())]
                self._orders = [*blocks * 2, HandOver(1)]
            case Timed(ms):
                assert ms > 0
                self.times.append(ms)
            case HandedOver(looks, findings):
                assert looks == []
                self.findings = [*findings]
            case _:
                pass

    def receive(self) -> Order:
        return self._orders.pop(0)


class BlockWorker:
    """A worker that sends, for each block, the ms that `run` returns for its order.

    Nothing is seen of it but what it sends.
    """

    inspected = None
    waited_ms = 0.0

    def __init__(self, run: Callable[[Write], float]) -> None:
        self._run = run
        self.orders: list[Write] = []
        self._replies: list[Reply] = []

    def send(self, order: Write | Time) -> None:
        match order:
            case Write():
                self.orders.append(order)
                self._replies = [Written()]
            case Time():
                self._replies = [Timed(self._run(self.orders[-1]))]

    def expect(self, kind: type) -> Reply:
        reply = self._replies.pop(0)
        assert isinstance(reply, kind)
        self.waited_ms = self.waited(reply)
        return reply

    def waited(self, reply: Reply) -> float:
        """Return the ms that pass until a reply is there."""
        return reply.ms if isinstance(reply, Timed) else 0.0
