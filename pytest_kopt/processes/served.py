"""The other side of a child process: the same pytest run, told over a channel what to run."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_kopt.cases.result import LOST
from pytest_kopt.devices import context
from pytest_kopt.honesty.audit_hook import MAY_WRITE, Bounds
from pytest_kopt.measure.wall import keep_freed_memory
from pytest_kopt.options.declare import LOADED_BEFORE, SERVE
from pytest_kopt.process_tree import adopt_orphans, end_with_parent, leave
from pytest_kopt.processes.channel import Channel, Message
from pytest_kopt.processes.guests import NOT_GIVEN, Confined, SetAside
from pytest_kopt.processes.isolation import isolate, separate_caches
from pytest_kopt.processes.worker_orders import WorkerOrders


class Serve:
    """Collects, then runs the node ids it is sent and streams their reports."""

    def __init__(
        self,
        channel: Channel,
        orders: WorkerOrders,
        args: list[str] | None,
        bounds: Bounds | None = None,
        scratch: Path = Path(),
        from_manifest: Sequence[str] = (),
    ) -> None:
        # The name under which pluggy registers a plugin given to pytest.main.
        self.__name__ = SERVE
        self.orders = orders
        self.scratch = scratch
        self.bounds = bounds
        self.seed: int | None = None
        self.out: Sequence[str] = ()
        self._channel = channel
        self._args, self._from_manifest = args, from_manifest
        self._config: pytest.Config | None = None
        self._leaving = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, args: list[str]) -> None:
        """Take what the session's manifest asks for, as the session itself did."""
        args[:0] = self._from_manifest

    # The innermost: pytest opens a file for `--debug` as soon as it has the config.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_cmdline_parse(self) -> Generator[None, pytest.Config, pytest.Config]:
        """Be a plain serial run whatever is said of workers, reports and debuggers."""
        self._config = config = yield
        if self._args is not None:
            config.args = self._args
        for name, value in NOT_GIVEN.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        return config

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            if self.bounds and "PermissionError: " in report.longreprtext:
                report.longrepr = f"{MAY_WRITE}\n{report.longreprtext}"
            self._send_report("collect_error", report)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tell("collected", ids=[item.nodeid for item in session.items])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run what the other side asks for until it says stop, or goes away."""
        items = {item.nodeid: item for item in session.items}
        while True:
            message = self.hear()
            if message["kind"] == "stop":
                return True
            if message["kind"] != "run":
                # For the case before, which ended without: its versions are the same, or it skips.
                continue
            item, following = items[message["nodeid"]], items.get(message["next"] or "")
            self.seed, self.out = message["seed"], message.get("out", ())
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self.tell("finished", nodeid=item.nodeid, leaving=self._leaving)
            if self._leaving:
                return True

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.tell("started", nodeid=nodeid, location=location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._leaving |= any(name == LOST for name, _ in report.user_properties)
        self._send_report("report", report)

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message."""
        self._channel.send(kind, **fields)

    def hear(self) -> Message:
        """Wait for the next order, `stop` where the other side is gone."""
        try:
            return self._channel.receive()
        except EOFError:
            return {"kind": "stop"}

    def _send_report(self, kind: str, report: pytest.CollectReport | pytest.TestReport) -> None:
        assert self._config is not None
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.tell(kind, data=data)


def _keep_from_children(*descriptors: int) -> None:
    """Have a process that this one forks or starts not hold the channel open when this one dies."""
    nothing = os.open(os.devnull, os.O_RDWR)

    def let_go() -> None:
        for descriptor in descriptors:
            os.dup2(nothing, descriptor)

    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    os.register_at_fork(after_in_child=let_go)


class Leave:
    """Ends the process with the session: what pytest would still do is to sum up for nobody."""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """End here, the last of all: shutdown with a GPU context and leftover threads can hang."""
        sys.stdout.flush()
        sys.stderr.flush()
        leave(int(exitstatus))


def main() -> None:
    """Enter a fresh interpreter: its arguments are two descriptors and its scratch folder."""
    end_with_parent()
    serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))


def serve(reader: int, writer: int, scratch: Path) -> NoReturn:
    """Wait for orders on a pair of pipes and run cases."""
    adopt_orphans()
    _keep_from_children(reader, writer)
    channel = Channel(Connection(reader, writable=False), Connection(writer, readable=False))
    try:
        hello = channel.receive()
    except EOFError:
        # Nobody is left to give orders.
        os._exit(0)
    orders, bounds = WorkerOrders.from_json(hello["orders"]), None
    if hello.get("hidden") is not None:
        # Before anything else begins a thread, which would not be bound.
        bounds = isolate(scratch, [*map(Path, hello.pop("hidden"))])
        separate_caches(scratch)
    # A reference's temporaries, and those of each comparison with it, else cost a fault a page.
    keep_freed_memory()
    serving = Serve(channel, orders, hello["args"], bounds, scratch, hello["from_manifest"])
    sys.path[:] = hello["sys_path"]
    sys.argv[:] = hello["argv"]
    if orders.device == "cuda":
        context.begin_to_rouse(orders.device)
    words = [*hello["pytest_args"], *LOADED_BEFORE]
    plugins = [SetAside(), serving, Leave()]
    if bounds:
        plugins.append(Confined(lambda why: serving.tell("confined", why=why), scratch))
    # A session that began ends in its own last hook; this is for one that could not.
    leave(int(pytest.main(words, plugins=plugins)))
