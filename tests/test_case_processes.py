"""Cases in child processes: who runs what, what is reported when, and what a death costs."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.cases.protocol import CheckCase
from pytest_kopt.cases.replies import CaseFinished, CaseStarted, Collected, Reply, Report, Timed
from pytest_kopt.processes.case_processes import (
    CaseProcesses,
    run_side_by_side,
)
from pytest_kopt.processes.child import NO_MEMORY, ChildDied

from .waiting import HANG

CASES = [f"case{number}" for number in range(6)]


class Child:
    """Answers as a child does; `deadly` cases end it, `hungry` ones need the GPU's memory alone."""

    def __init__(self, world: "World") -> None:
        self.reader, self._theirs = Pipe(duplex=False)
        self._world = world
        self.ended = False
        world.children.append(self)
        self._send(Collected(CASES))

    def send(self, order: CheckCase) -> None:
        world, nodeid = self._world, order.nodeid
        world.asked.append((world.children.index(self), nodeid, order.following))
        self._send(CaseStarted(nodeid, ("f", 1, nodeid)))
        if nodeid in world.deadly:
            self._theirs.close()
            return
        if nodeid in world.endless:
            world.hangs.set()
            return
        crowded = sum(not child.ended for child in world.children) > 1
        lacking = nodeid in world.hungry and crowded
        if nodeid in world.lying:
            self._send(Timed(1.0))
        self._send(Report({"nodeid": nodeid, "longrepr": NO_MEMORY if lacking else None}))
        self._send(CaseFinished(nodeid, nodeid in world.leaving))

    def receive(self) -> Reply:
        try:
            reply: Reply = self.reader.recv()
        except EOFError:
            raise ChildDied("gone") from None
        return reply

    def dismiss(self) -> None:
        """Go on leaving until it is stopped, that is waited for."""

    def stop(self) -> None:
        self._world.waited.append(len(self._world.finished()))
        self.ended = True

    def kill(self) -> None:
        self.ended = True
        # Two threads may end it at once.
        with suppress(OSError):
            self._theirs.close()

    def _send(self, reply: Reply) -> None:
        # One that was ended says nothing.
        with suppress(OSError):
            self._theirs.send(reply)


class World:
    """What the children do, and what was heard of them."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.places: list[int] = []
        self.asked: list[tuple[int, str, str | None]] = []
        self.deadly: set[str] = set()
        self.lying: set[str] = set()
        self.hungry: set[str] = set()
        self.leaving: set[str] = set()
        #: How many cases were done when a process was waited for.
        self.waited: list[int] = []
        self.endless: set[str] = set()
        self.hangs = threading.Event()
        self.heard: list[tuple[str, str]] = []
        self.proceeds: Callable[[], bool] = lambda: True

    def run(self, most: int) -> None:
        self.processes().run(most)

    def start(self, place: int) -> Any:
        self.places.append(place)
        return Child(self)

    def processes(self) -> CaseProcesses:
        return Ear(self)

    def finished(self) -> list[str]:
        return [nodeid for kind, nodeid in self.heard if kind == "finished"]


class Ear(CaseProcesses):
    def __init__(self, world: World) -> None:
        config: Any = None
        super().__init__(config, world.start)
        self._world = world

    def collected(self, ids: list[str]) -> list[str]:
        self._hear("collected", None)
        return ids

    def _hear(self, kind: str, nodeid: str | None) -> None:
        self._world.heard.append((kind, str(nodeid)))

    def started(self, nodeid: str, location: object) -> None:
        self._hear("started", nodeid)

    def report(self, data: dict[str, Any]) -> None:
        self._hear("report", data["nodeid"])

    def finished(self, nodeid: str) -> None:
        self._hear("finished", nodeid)

    def died(self, nodeid: str | None, how: str, times: int) -> None:
        self._hear(f"died {times}", nodeid)

    def proceed(self) -> bool:
        return self._world.proceeds()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    assert all(child.ended for child in made.children)


def told(nodeid: str) -> list[tuple[str, str]]:
    return [(kind, nodeid) for kind in ("started", "report", "finished")]


def test_one_process_runs_all_in_order_and_knows_what_comes_next(world: World) -> None:
    world.run(most=1)
    assert world.heard[1:] == [entry for nodeid in CASES for entry in told(nodeid)]
    assert world.asked == [
        (0, nodeid, following) for nodeid, following in zip(CASES, [*CASES[1:], None], strict=True)
    ]


def test_several_share_the_cases_and_what_one_says_of_a_case_stands_together(world: World) -> None:
    world.run(most=3)
    assert len(world.children) == 3 and {child for child, _, _ in world.asked} == {0, 1, 2}
    assert sorted(world.finished()) == CASES
    for nodeid in CASES:
        place = world.heard.index(("started", nodeid))
        assert world.heard[place : place + 3] == told(nodeid)


def test_no_case_waits_for_a_process_to_end(world: World) -> None:
    world.run(most=3)
    assert world.waited == [len(CASES)] * 3


def test_a_process_is_never_told_of_a_next_case_that_another_runs(world: World) -> None:
    world.run(most=3)
    for child in range(3):
        own = [(nodeid, following) for who, nodeid, following in world.asked if who == child]
        for (_, following), (nodeid, _) in itertools.pairwise(own):
            assert following == nodeid


@pytest.mark.parametrize("most", [1, 3])
def test_a_case_that_ends_its_process_is_given_up_the_second_time(world: World, most: int) -> None:
    world.deadly = {"case1", "case4"}
    world.run(most)
    assert sorted(world.finished()) == ["case0", "case2", "case3", "case5"]
    for nodeid in world.deadly:
        deaths = [kind for kind, name in world.heard if name == nodeid and "died" in kind]
        assert deaths == ["died 1", "died 2"]


def test_a_process_that_sends_what_no_case_sends_is_replaced(world: World) -> None:
    world.lying = {"case1"}
    world.run(most=1)
    assert ("died 2", "case1") in world.heard and len(world.children) == 3


@pytest.mark.parametrize("most", [1, 3])
def test_a_process_that_leaves_is_replaced(world: World, most: int) -> None:
    world.leaving = {"case0", "case2"}
    world.run(most)
    assert sorted(world.finished()) == CASES
    assert {*world.places} == {*range(most)}, "at the place of the one that left"


def test_what_found_no_memory_beside_others_runs_alone(world: World) -> None:
    world.hungry = {"case0", "case3"}
    world.run(most=3)
    assert sorted(world.finished()) == CASES
    assert len([nodeid for _, nodeid, _ in world.asked if nodeid in world.hungry]) > 2
    assert [nodeid for kind, nodeid in world.heard if kind == "report"].count("case0") == 1


def test_nothing_runs_any_more_when_the_session_is_to_stop(world: World) -> None:
    world.proceeds = lambda: not world.finished()
    world.run(most=1)
    assert world.finished() == ["case0"]


def test_what_cannot_collect_is_tried_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(self: Child) -> Reply:
        raise ChildDied("an import")

    monkeypatch.setattr(Child, "receive", dies)
    world.run(most=3)
    assert world.heard == [("died 1", "None"), ("died 2", "None")]


@pytest.mark.parametrize("most", [1, 3])
def test_a_run_is_ended_from_another_thread(world: World, most: int) -> None:
    """A case that hangs would never say another word; nothing is started in its place."""
    world.endless = {"case1"}
    processes = world.processes()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(processes.run, most)
        assert world.hangs.wait(HANG)
        processes.abandon()
        with pytest.raises(ChildDied):
            running.result(HANG)
    assert len(world.children) == most and "died 1" not in dict(world.heard)
    with pytest.raises(ChildDied):
        processes.run()
    assert len(world.children) == most, "it stays ended"


class Runs:
    """Runs that end when they are told to, as `run_side_by_side` sees them."""

    def __init__(self, count: int) -> None:
        self.now = self.most = self.ended = self.hung = 0
        self.together = threading.Barrier(count)

    def one(self, found: object) -> Any:
        abandoned = threading.Event()

        def run() -> object:
            if abandoned.is_set():
                raise ChildDied
            self.now += 1
            self.most = max(self.most, self.now)
            self.together.wait(HANG)
            self.now -= 1
            if isinstance(found, Exception):
                raise found
            if found is None:
                self.hung += not abandoned.wait(HANG)
                raise ChildDied
            return found

        def abandon() -> None:
            abandoned.set()
            # Who has begun meanwhile would wait for company.
            self.together.abort()

        return SimpleNamespace(run=run, abandon=abandon)

    def end(self) -> None:
        self.ended += 1


def test_runs_side_by_side_keep_their_places() -> None:
    runs = Runs(2)
    found = run_side_by_side([runs.one(number) for number in range(6)], 2, runs.end)
    assert (found, runs.most, runs.ended) == ([*range(6)], 2, 6)


def test_one_that_fails_ends_the_others() -> None:
    """Also those that have not begun: nobody waits for the end of what hangs."""
    runs = Runs(3)
    given = [runs.one(None), runs.one(OSError("no more processes")), runs.one(None), runs.one(7)]
    with pytest.raises(OSError, match="no more processes"):
        run_side_by_side(given, 3, runs.end)
    assert not runs.hung
