"""What tries shapes near the declared ones, as the deciding process talks to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from pytest_kopt.cases.protocol import TryNearby
from pytest_kopt.cases.replies import (
    CaseFinished,
    CaseStarted,
    Collected,
    Findings,
    Loaded,
    Reply,
    Report,
    TriedShape,
)
from pytest_kopt.honesty.nearby_shapes import Tried, tried_axes
from pytest_kopt.paired.nearby import AHEAD, Nearby, notes_nearby
from pytest_kopt.processes.child import ChildDied

from .waiting import until


class Process:
    """Tries what it is asked for, but dies at one case and has others that do not concern it."""

    is_begun = True

    def __init__(
        self,
        dies_at: str = "",
        same: tuple[str, ...] = (),
        breaks_off: str = "",
    ) -> None:
        self.asked: list[str] = []
        self.seeds: set[int] = set()
        self.answered = self.most_ahead = 0
        self._dies_at, self._same, self._breaks_off = dies_at, same, breaks_off
        self._messages = self._talk()

    def send(self, order: TryNearby) -> None:
        self.seeds.add(order.secret)
        self.asked.append(order.nodeid)
        self.most_ahead = max(self.most_ahead, len(self.asked) - self.answered)
        assert self.most_ahead <= AHEAD, "a pipe would be full in the end"

    def receive(self) -> Reply:
        return next(self._messages)

    def kill(self) -> None:
        """Do nothing, as it has ended."""

    def stop(self) -> None:
        """Do nothing, as it has ended."""

    def _talk(self) -> Iterator[Reply]:
        yield Collected([])
        while True:
            nodeid = self.asked[self.answered]
            yield from [CaseStarted(nodeid, ("t.py", 1, nodeid))] * self.is_begun
            if nodeid == self._dies_at:
                raise ChildDied("the process was ended by signal SIGSEGV\nand more")
            is_broken = nodeid == self._breaks_off
            crash = {"reprcrash": {"message": "OSError: refused"}}
            data = {"outcome": "failed" if is_broken else "passed", "longrepr": crash}
            yield Report(data)
            if nodeid in self._same:
                yield Loaded(same="source")
            else:
                yield TriedShape(Tried(nodeid, "size", {"n": 3}))
                yield from [Findings([])] * (not is_broken)
            self.answered += 1
            yield CaseFinished(nodeid)


class Unstarted(Process):
    """Ends while it collects."""

    is_begun = False


IDS = [f"case{i}" for i in range(3 * AHEAD)]


def nearby(*processes: Process) -> Nearby:
    return Nearby(dict.fromkeys(cast("Any", processes), IDS), "one process", IDS, 7)


@pytest.mark.parametrize("count", [1, 2])
def test_all_cases_are_tried_and_a_few_are_asked_for_ahead(count: int) -> None:
    processes = [Process(same=("case2",)) for _ in range(count)]
    trying = nearby(*processes)
    tried = trying.wait()
    assert all(process.most_ahead == AHEAD for process in processes)
    expected = [nodeid for nodeid in IDS if nodeid != "case2" for _ in processes]
    assert [item.nodeid for item in tried] == expected
    assert trying.died == ""
    assert all(process.asked == IDS and process.seeds == {7} for process in processes)


def test_processes_share_cases_and_what_they_find_comes_in_the_order_of_the_cases() -> None:
    asked = {Process(): IDS[0::2], Process(): IDS[1::2]}
    tried = Nearby(cast("Any", asked), "one process", IDS, 7).wait()
    assert [item.nodeid for item in tried] == IDS
    assert all(process.asked == ids for process, ids in asked.items())


def test_what_was_found_before_a_process_ended_is_kept() -> None:
    trying = nearby(Process(dies_at="case20"), Process())
    tried = trying.wait()
    reached = [trial.nodeid for trial in tried if not trial.untried]
    assert reached == sorted([*IDS[:20], *IDS], key=IDS.index)
    assert {trial.nodeid for trial in tried if trial.untried} == {*IDS[20:]}
    assert trying.died == "case20: the process was ended by signal SIGSEGV"


def test_a_case_whose_trials_break_off_is_said_to_be_untried() -> None:
    """An error of a kernel's or a plugin's there would leave all other inputs out in silence."""
    tried = nearby(Process(breaks_off="case3")).wait()
    broken = [trial for trial in tried if trial.untried]
    assert {trial.nodeid for trial in broken} == {"case3"}
    assert {trial.untried for trial in broken} == {
        "trying them broke off (failed: OSError: refused)"
    }
    assert {trial.kind for trial in broken} == {*tried_axes(())} - {"size"}


def test_what_they_answer_is_read_before_anybody_waits_for_it() -> None:
    process = Process()
    trying = nearby(process)
    until(lambda: process.answered == len(IDS))
    assert len(trying.wait()) == len(IDS)


def test_the_tests_behind_two_that_end_their_process_are_not_tried() -> None:
    """Each may take as long as the limit of a case that hangs."""
    ids = [f"t.py::test_{test}[{n}]" for test in "abcd" for n in (1, 2)]
    processes = [Process(dies_at=ids[2]), Process(dies_at=ids[5])]
    started: list[list[str]] = []

    def start(left: list[str]) -> Any:
        started.append(left)
        return processes[len(started) - 1]

    untried, *deaths = notes_nearby(start, ids, 7)
    assert started == [ids, ids[4:]]
    assert [death.where for death in deaths] == [ids[2], ids[5]]
    assert not any(death.rejects for death in deaths)
    assert {place.partition(": ")[0] for place in untried.details} == {*ids[2:4], *ids[5:]}


def test_a_process_that_never_began_a_case_accuses_no_kernel() -> None:
    (untried,) = notes_nearby(lambda _: cast("Any", Unstarted(dies_at="case0")), IDS[:2], 7)
    assert untried.message.endswith(" in 2 cases: the process ended before")


def test_an_end_before_the_first_case_is_told_where_a_current_best_stands_against_it() -> None:
    """A kernel may end its process while it is imported."""
    trying = nearby(Unstarted(dies_at=IDS[0]))
    trying.wait()
    assert trying.death is not None and not trying.has_begun
