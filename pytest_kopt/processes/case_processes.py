"""Cases run in child processes, one after the other in each, and reported case by case.

Their reports are collected here; `session/supervisor.py` replays them through pytest's hooks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import pytest

from pytest_kopt.cases.protocol import CheckCase, Profile
from pytest_kopt.cases.replies import (
    CannotLoad,
    CaseFinished,
    CaseStarted,
    Collected,
    CollectError,
    Confined,
    FallbackRow,
    OfComparison,
    Profiled,
    Report,
)
from pytest_kopt.cases.result import Collector
from pytest_kopt.processes.child import MAX_DEATHS, NO_MEMORY, Child, ChildDied, Children
from pytest_kopt.profiling.kernel_table import CaseProfile


@dataclass(slots=True, eq=False)
class _Worker:
    """A child at a place, its case, the one that comes next, and what is to be reported.

    `is_free` says that it has collected and runs none, `is_crowded` whether others may have held
    memory while it ran.
    """

    child: Child
    place: int
    is_free: bool = False
    current: str | None = None
    following: str | None = None
    is_crowded: bool = False
    pending: list[Callable[[], None]] = field(default_factory=list)
    lacked_memory: bool = False

    def report(self) -> None:
        while self.pending:
            self.pending.pop(0)()


class CaseProcesses:
    """Runs cases in up to `most` children at once, replacing those that die.

    A case that kills its process is run once more in a fresh one; killed `lives` times, it is given
    up. One that found no memory next to others is run once more when nobody else runs. Reports go
    to a collector and to nobody else; `Supervisor` shows them.
    """

    def __init__(
        self,
        config: pytest.Config,
        start: Callable[[int], Child],
        ids: Sequence[str] = (),
        lives: int = MAX_DEATHS,
        order: Callable[[str, str | None], CheckCase | Profile] = CheckCase,
    ) -> None:
        """Start children by `start`, when it runs, to run those `ids` that they collect.

        Each has a place, below `most`, which its replacement takes. `order` makes the order for a
        case and the one that follows it.
        """
        self.config = config
        self.collector = Collector()
        self.profiles: dict[str, CaseProfile] = {}
        self.lives = lives
        self._ids = ids
        self._start = start
        self._order = order
        self._most = 1
        self._workers: list[_Worker] = []
        #: Told to end; others go on meanwhile, as a process takes a while to let go of its GPU.
        self._leaving: list[Child] = []
        self._waiting: deque[str] | None = None
        self._alone: deque[str] = deque()
        self._deaths: dict[str | None, int] = {}
        self._abandoned = False

    def collected(self, ids: list[str]) -> Sequence[str]:
        """Take over a collection and return what has to run."""
        self.collector.collected(ids)
        collected = {*ids}
        return [nodeid for nodeid in self._ids if nodeid in collected]

    def collected_too(self, ids: list[str]) -> None:
        """Hear what another process collected."""

    def collect_error(self, data: dict[str, Any]) -> None:
        self.collector.add_collect_error(self.read(data))

    def started(self, nodeid: str, location: tuple[str, int | None, str]) -> None: ...

    def report(self, data: dict[str, Any]) -> None:
        self.collector.add_report(self.read(data))

    def finished(self, nodeid: str) -> None: ...

    def given(self, nodeid: str, place: int) -> None:
        """Hear that the process at a place is told to run a case."""

    def died(self, nodeid: str | None, how: str, times: int) -> None:
        self.collector.died(nodeid, how, times, self.lives)

    def proceed(self) -> bool:
        """Say whether another case is to run."""
        return True

    def read(self, data: dict[str, Any]) -> Any:
        """Return a report as pytest knows it."""
        report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
        if isinstance(report.longrepr, list):
            # Where and why it was skipped: JSON has no tuples.
            report.longrepr = tuple(report.longrepr)
        return report

    def abandon(self) -> None:
        """End the processes, from another thread: `run` raises ChildDied there."""
        self._abandoned = True
        self._children.kill()

    @property
    def _children(self) -> Children:
        return Children([*(worker.child for worker in list(self._workers)), *self._leaving])

    def run(self, most: int = 1, foreseen: int = 0) -> Collector:
        """Collect and run what is to run; return what arrived of it.

        One child is started for each of the `foreseen` cases, which are the ids if not given.
        """
        self._most = most
        try:
            self._open_for(max(1, foreseen or len(self._ids)))
            while self._workers:
                for worker in [worker for worker in self._workers if worker.is_free]:
                    self._go_on(worker)
                ready = list(self._workers)
                if len(ready) > 1:
                    readers = wait([worker.child.reader for worker in ready])
                    ready = [worker for worker in ready if worker.child.reader in readers]
                for worker in ready:
                    self._advance(worker)
        except BaseException:
            self._children.kill()
            raise
        finally:
            self._children.stop()
        return self.collector

    def _open_for(self, cases: int) -> None:
        while len(self._workers) < min(self._most, cases):
            self._open()

    def _open(self) -> None:
        self._await_leaving()
        if not self._abandoned:
            taken = {worker.place for worker in self._workers}
            place = next(place for place in range(self._most) if place not in taken)
            worker = _Worker(self._start(place), place)
            self._workers.append(worker)
            # Others do not take its first case while it starts.
            worker.following = self._take()
        # It may have been meanwhile.
        if self._abandoned:
            raise ChildDied("was ended with its run")

    def _close(self, worker: _Worker) -> None:
        worker.child.dismiss()
        self._leaving.append(worker.child)
        self._workers.remove(worker)

    def _await_leaving(self) -> None:
        for child in self._leaving:
            child.stop()
        self._leaving.clear()

    def _advance(self, worker: _Worker) -> None:
        try:
            reply = worker.child.receive()
        except ChildDied as death:
            if self._abandoned:
                raise
            self._died(worker, str(death))
            return
        match reply:
            case Collected(ids):
                if self._waiting is None:
                    self._waiting = deque(self.collected(ids))
                    self._open_for(len(self._waiting))
                else:
                    self.collected_too(ids)
                worker.is_free = True
            case CollectError(data):
                self.collect_error(data)
            case FallbackRow(result):
                self.collector.declared(result)
            case CaseStarted(nodeid, location):
                worker.pending.append(partial(self.started, nodeid, location))
            case Report(data):
                worker.lacked_memory |= NO_MEMORY in str(data.get("longrepr"))
                worker.pending.append(partial(self.report, data))
            case Profiled(profile):
                self.profiles[profile.nodeid] = profile
            case CaseFinished(nodeid, leaving):
                self._finished(worker, nodeid, leaving=leaving)
            case Confined() | CannotLoad() | OfComparison():
                worker.child.kill()
                self._died(worker, f"the process sent {type(reply).__name__}")
        if self._most == 1:  # Else when its case is over.
            worker.report()

    def _finished(self, worker: _Worker, nodeid: str, *, leaving: bool) -> None:
        if worker.lacked_memory and worker.is_crowded:
            self._alone.append(nodeid)
            worker.pending.clear()
        else:
            worker.pending.append(partial(self.finished, nodeid))
        worker.report()
        if leaving:
            self._give_back(worker.following)
            self._close(worker)
            self._replace()
        else:
            worker.is_free = True

    def _go_on(self, worker: _Worker) -> None:
        """Have a worker run its next case; it ends where there is none."""
        worker.is_free = False
        worker.current, worker.following = worker.following or self._take(), None
        worker.lacked_memory, worker.is_crowded = False, len(self._children.children) > 1
        if worker.current is None or not self.proceed():
            self._close(worker)
            return
        # pytest has to know it: it takes down what the next one does not need.
        worker.following = self._take()
        self.given(worker.current, worker.place)
        worker.child.send(self._order(worker.current, worker.following))

    def _take(self) -> str | None:
        if self._waiting:
            return self._waiting.popleft()
        if self._alone and len(self._workers) == 1:
            self._await_leaving()
            return self._alone.popleft()
        return None

    def _give_back(self, nodeid: str | None) -> None:
        if nodeid is not None and self._waiting is not None:
            self._waiting.appendleft(nodeid)

    def _replace(self) -> None:
        if self._waiting or (self._alone and not self._workers):
            self._open()

    def _died(self, worker: _Worker, how: str) -> None:
        worker.report()
        self._close(worker)
        self._give_back(worker.following)
        current = worker.current
        if current is None and self._workers:
            return
        times = self._deaths[current] = self._deaths.get(current, 0) + 1
        self.died(current, how, times)
        if times < self.lives:
            self._give_back(current)
            if self._waiting is None:
                self._open()
        if current is not None or times < self.lives:
            self._replace()


def run_side_by_side(
    runs: Sequence[CaseProcesses], places: int, progress: Callable[[], None]
) -> list[Collector]:
    """Return what arrived of each run; up to `places` go on at once, in one child each.

    `progress` hears of every end. A failure ends all.
    """
    # A process that one of its threads started ends with that thread: they stay to the end.
    pool = ThreadPoolExecutor(places)
    futures = [pool.submit(run.run) for run in runs]
    try:
        for future in futures:
            future.add_done_callback(lambda _: progress())
        ended, _ = wait_for(futures, return_when=FIRST_EXCEPTION)
        # What went wrong in one run comes before what that does to the others.
        for future in ended:
            future.result()
    finally:
        for run in runs:
            run.abandon()
        pool.shutdown(cancel_futures=True)
    return [future.result() for future in futures]
