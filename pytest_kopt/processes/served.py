"""A worker: the session's pytest run again, which carries out the orders of its client."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_kopt.cases.protocol import (
    Begin,
    CaseOrder,
    CheckCase,
    OfCase,
    Order,
    StopWorker,
    WithinCase,
)
from pytest_kopt.cases.replies import (
    CaseFinished,
    CaseStarted,
    Collected,
    CollectError,
    Confined,
    Reply,
    Report,
)
from pytest_kopt.cases.result import LOST
from pytest_kopt.devices import context
from pytest_kopt.honesty.audit_hook import MAY_WRITE
from pytest_kopt.libraries import import_from_copy
from pytest_kopt.measure.wall import keep_freed_memory
from pytest_kopt.options.declare import LOADED_BEFORE, SERVE
from pytest_kopt.process_tree import adopt_orphans, end_with_parent, leave
from pytest_kopt.processes import guests
from pytest_kopt.processes.bytecode import compile_from_source
from pytest_kopt.processes.channel import Channel, read_order
from pytest_kopt.processes.isolation import isolate, separate_caches

#: The last characters of what a case prints that its report keeps.
_MOST_PRINTED = 1 << 20


class Serve:
    """Collects, then carries out the order of each case and streams its replies."""

    def __init__(
        self,
        channel: Channel[Reply, Order],
        begin: Begin,
        scratch: Path,
        *,
        is_confined: bool = False,
    ) -> None:
        # The name under which pluggy registers a plugin given to pytest.main.
        self.__name__ = SERVE
        self.orders = begin.orders
        self.scratch = scratch
        self.is_confined = is_confined
        #: The order of the case that runs.
        self.order: CaseOrder = CheckCase("")
        self._channel = channel
        self._begin = begin
        self._config: pytest.Config | None = None
        self._leaving = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, args: list[str]) -> None:
        """Take what the session's manifest asks for, as the session itself did."""
        args[:0] = self._begin.from_manifest

    # The innermost: pytest opens a file for `--debug` as soon as it has the config.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_cmdline_parse(self) -> Generator[None, pytest.Config, pytest.Config]:
        """Be a plain serial run whatever is said of workers, reports and debuggers."""
        self._config = config = yield
        if self._begin.args is not None:
            config.args = self._begin.args
        if self.orders.workerinput:
            vars(config).update(workerinput=dict(self.orders.workerinput), workeroutput={})
        for name, value in guests.NOT_GIVEN.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        return config

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            if self.is_confined and "PermissionError: " in report.longreprtext:
                report.longrepr = f"{MAY_WRITE}\n{report.longreprtext}"
            self.send(CollectError(self._serialized(report)))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.send(Collected([test.nodeid for test in session.items]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run what the other side asks for until it says stop, or goes away."""
        items = {test.nodeid: test for test in session.items}
        while True:
            match order := self.receive():
                case StopWorker():
                    return True
                case OfCase(nodeid, following):
                    self.order, test, nextitem = order, items[nodeid], items.get(following or "")
                    test.config.hook.pytest_runtest_protocol(item=test, nextitem=nextitem)
                    self.send(CaseFinished(nodeid, self._leaving))
                    if self._leaving:
                        return True
                case Begin() | WithinCase():
                    # For the case before, which ended without it: it failed, or was skipped.
                    pass

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.send(CaseStarted(nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._leaving |= any(name == LOST for name, _ in report.user_properties)
        self.send(Report(self._serialized(report)))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """End the process here, the last of all: pytest would still sum up for nobody.

        Shutdown with a GPU context and leftover threads can hang. One that a vendor's tool watches
        goes on to its exit, where the tool writes its report.
        """
        if not self._begin.is_watched:
            sys.stdout.flush()
            sys.stderr.flush()
            leave(int(exitstatus))

    def send(self, reply: Reply) -> None:
        self._channel.send(reply)

    def receive(self) -> Order:
        """Wait for the next order, `StopWorker` where the client is gone."""
        try:
            order = self._channel.receive()
        except EOFError:
            order = StopWorker()
        # The case that takes it ends, and no other is begun.
        self._leaving |= isinstance(order, StopWorker)
        return order

    def _serialized(self, report: pytest.CollectReport | pytest.TestReport) -> dict[str, object]:
        assert self._config is not None
        # A kernel may print more than a message holds.
        report.sections = [(title, text[-_MOST_PRINTED:]) for title, text in report.sections]
        data: dict[str, object] = self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        return data


def _keep_from_children(*descriptors: int) -> None:
    """Have a process that this one forks or starts not hold the channel open when this one dies."""
    nothing = os.open(os.devnull, os.O_RDWR)

    def let_go() -> None:
        for descriptor in descriptors:
            os.dup2(nothing, descriptor)

    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    os.register_at_fork(after_in_child=let_go)


def main() -> None:
    """Enter a fresh interpreter.

    Its arguments are where orders come from and replies go, descriptors or files, and its scratch
    folder: what starts it for a vendor's tool may hand no descriptor on.
    """
    end_with_parent()
    orders, replies, scratch = sys.argv[1:]
    reader = int(orders) if orders.isdecimal() else os.open(orders, os.O_RDONLY)
    writer = int(replies) if replies.isdecimal() else os.open(replies, os.O_WRONLY | os.O_CREAT)
    serve(reader, writer, Path(scratch))


def serve(reader: int, writer: int, scratch: Path) -> NoReturn:
    """Wait for orders on a pair of pipes and run cases."""
    adopt_orphans()
    _keep_from_children(reader, writer)
    channel: Channel[Reply, Order] = Channel(
        Connection(reader, writable=False), Connection(writer, readable=False), read_order
    )
    try:
        begin = channel.receive()
    except EOFError:
        # Nobody is left to give orders.
        os._exit(0)
    assert isinstance(begin, Begin)
    is_confined = False
    if begin.hidden is not None:
        # Before anything else begins a thread, which would not be bound.
        is_confined = isolate(scratch, [*map(Path, begin.hidden)])
        begin = replace(begin, hidden=[])
        separate_caches(scratch)
    # A reference's temporaries, and those of each comparison with it, else cost a fault a page.
    keep_freed_memory()
    serving = Serve(channel, begin, scratch, is_confined=is_confined)
    compile_from_source()
    sys.path[:] = begin.sys_path
    if begin.copy:
        import_from_copy(*map(Path, begin.copy))
    sys.argv[:] = begin.argv
    if begin.orders.device == "cuda":
        context.begin_to_rouse(begin.orders.device)
    # To make a header, pytest reads what each plugin's package says of itself.
    words = [*begin.pytest_args, *LOADED_BEFORE, "--no-header"]
    plugins: list[object] = [guests, serving]
    if is_confined:
        plugins.append(guests.RefusedToGuests(lambda why: serving.send(Confined(why)), scratch))
    code = int(pytest.main(words, plugins=plugins))
    if begin.is_watched:
        sys.exit(code)
    # A session that began ends in its own last hook; this is for one that could not.
    leave(code)
