"""Which processes carry the replicas of a lane, and what follows where one cannot."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT
from pytest_kopt.decide.inference import FINAL_LOOK
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import NO_MEMORY_LEFT, Tried
from pytest_kopt.paired.comparison import Lane
from pytest_kopt.paired.judge import Refused
from pytest_kopt.paired.runner import ONE_PROCESS, TWO_PROCESSES, Died
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.processes.child import NO_MEMORY
from pytest_kopt.processes.sites import Place
from pytest_kopt.show.progress import Progress

from .scripted import block_time, nothing_nearby

IDS = ["a", "b"]


class Carrier:
    """A replica's processes; the first of all may fail."""

    are_orphans = False

    def __init__(self, how: str, fails: list[Refused], number: int | None = None) -> None:
        self.how, self.number = how, number
        self.held_seconds = 0.5
        self.tried: list[object] = []
        self.postponed: list[object] = []
        self.has_company = False
        self.witnessed: float | None = None
        self.has_ended = False
        self._fails = fails

    @property
    def takes_company(self) -> bool:
        return self.how == ONE_PROCESS

    def load(self, nodeid: str) -> None: ...

    def measure(self, ids: Sequence[str], *rest: Any) -> dict[str, CaseQuads]:
        assert not self.has_ended
        *_, self.witnessed = rest
        self.has_company = self.witnessed is not None and self.takes_company
        if self._fails:
            raise self._fails.pop()
        return {nodeid: CaseQuads(nodeid, "wall", {"placebo": [[]]}) for nodeid in ids}

    def dismiss(self) -> None:
        self.has_ended = True

    stop = kill = dismiss


class Starting:
    """Starts carriers, as `Arms` does replicas."""

    asks_more = False

    def __init__(self, how: str = ONE_PROCESS, *fails: Refused) -> None:
        self.how, self.random = how, random.Random(1)
        self.started: list[Carrier] = []
        self.fell_back: list[Refused] = []
        self.fails = [*fails]

    def start(self, place: Place, judge: object, number: int) -> Carrier:
        self.started.append(Carrier(self.how, self.fails, number))
        return self.started[-1]

    def start_nearby(self, place: Place, room: int) -> object:
        return nothing_nearby(place.ids, self.how)

    def start_judge(self, *where: object) -> object:
        quiet: Callable[[], None] = lambda: None  # noqa: E731
        judging: dict[str, Any] = {
            "await_loaded": lambda nodeid: None,
            "tried_in": lambda looks: [],
        }
        return SimpleNamespace(has_died=False, kill=quiet, end=quiet, **judging)

    def fall_back(self, how: str, refused: Refused) -> None:
        self.fell_back.append(refused)


class Losing(Carrier):
    """Leaves what it looked at to be judged later."""

    def measure(self, ids: Sequence[str], *rest: Any) -> dict[str, CaseQuads]:
        self.postponed = [SimpleNamespace(nodeid=nodeid) for nodeid in ids]
        return super().measure(ids, *rest)


class Gaining(Carrier):
    """Finds every case so many times as fast; in company the incumbent alone is timed, too."""

    gain = 1.1
    #: Whether the process that holds the candidate says that it holds the incumbent alone as well.
    claims_alone = False

    def measure(self, ids: Sequence[str], *rest: Any) -> dict[str, CaseQuads]:
        super().measure(ids, *rest)
        (old, alone), new = (
            ((arm, block_time(self.gain)) for arm in (INCUMBENT, ALONE)),
            (CANDIDATE, block_time(1.0)),
        )
        quads = {CANDIDATE: [[new, old, old, new]]}
        if self.has_company or self.claims_alone:
            quads["alone"] = [[alone, old, old, alone]]
        return {nodeid: CaseQuads(nodeid, "wall", {**quads}) for nodeid in ids}


def lane_of(arms: Starting, kind: str = "cpu", most: int = FINAL_LOOK) -> Lane:
    starter = SimpleNamespace(why_fresh="")
    site: Any = SimpleNamespace(kind=kind, cores=16, starter=starter)
    device: Any = SimpleNamespace(uuid="GPU-1")
    given: Any = (arms, Place(site, device, [*IDS]), Progress(None), most, 16)
    return Lane(*given)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_replica_has_a_process_of_its_own(kind: str) -> None:
    arms = Starting()
    lane = lane_of(arms, kind)
    lane.measure(FINAL_LOOK)
    assert [process.number for process in arms.started] == [*range(FINAL_LOOK)]
    lane.close()
    assert all(process.has_ended for process in arms.started)
    assert lane.held_seconds == FINAL_LOOK * 0.5


def test_a_first_look_needs_two_processes_and_no_third_is_started() -> None:
    arms = Starting()
    lane_of(arms, "cuda").measure(2)
    assert len(arms.started) == 2


def test_the_replica_that_was_measured_last_is_loaded_and_then_a_new_one() -> None:
    arms = Starting()
    lane = lane_of(arms, "cuda")
    lane.measure(2)
    assert [process.has_ended for process in arms.started] == [True, False]
    lane.under_load(IDS, 1)
    assert [process.has_ended for process in arms.started] == [True, True]
    lane.under_load(IDS, 1)
    assert len(arms.started) == 3 and arms.started[-1].has_ended


@pytest.mark.parametrize("are_orphans", [True, False])
def test_what_ended_with_its_parent_tells_nothing_of_the_versions(
    are_orphans: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Carrier, "are_orphans", are_orphans)
    arms = Starting(ONE_PROCESS, Died("a replica died: signal SIGKILL", "signal SIGKILL"))
    assert len(lane_of(arms).measure(2)) == 2 and len(arms.started) == 3
    assert len(arms.fell_back) == (not are_orphans)


@pytest.mark.parametrize(
    ("kind", "reason", "falls_back"),
    [("cuda", NO_MEMORY, False), ("cpu", NO_MEMORY, True), ("cuda", "two of one name", True)],
    ids=["no memory for two", "no memory for one", "another reason"],
)
def test_versions_are_held_otherwise_unless_there_was_no_memory_for_two_processes(
    kind: str, reason: str, falls_back: bool
) -> None:
    arms = Starting(ONE_PROCESS, Refused(reason))
    lane = lane_of(arms, kind)
    assert len(lane.measure(FINAL_LOOK)) == FINAL_LOOK
    assert bool(arms.fell_back) == falls_back


@pytest.mark.parametrize("how", [ONE_PROCESS, TWO_PROCESSES])
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_the_incumbent_alone_is_timed_in_the_replica_after_one_with_a_gain(
    kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Carrier", Gaining)
    arms = Starting(how)
    arms.asks_more = True
    lane_of(arms, kind).measure(2)
    is_alone = how == ONE_PROCESS
    assert [carrier.has_company for carrier in arms.started[:2]] == [False, is_alone]
    # That replica's gain is witnessed in any case.
    witnessed = [carrier.witnessed for carrier in arms.started[:2]]
    assert witnessed == [None, pytest.approx(math.log(1.1))]


@pytest.mark.parametrize(
    ("gain", "refuses", "replicas"),
    [(1.2, False, 2), (0.8, False, 3), (1.2, True, 4)],
    ids=["gain", "loss", "gain, and the incumbent does not load alone"],
)
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_after_a_gain_the_next_replica_has_company(
    gain: float, refuses: bool, replicas: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no replica more has to be measured for what is asked of whatever is kept.

    Also one that was started before the gain was known, as it is on a GPU.
    """
    monkeypatch.setattr(sys.modules[__name__], "Carrier", Gaining)
    monkeypatch.setattr(Gaining, "gain", gain)
    arms = Starting()
    arms.asks_more = True
    lane = lane_of(arms, kind)
    measured = lane.measure(1)
    arms.fails += [Refused("it does not load alone")] * refuses
    for quads in (*measured, *lane.measure(1)):
        assert all([*found.quads] == ["candidate"] for found in quads.values())
    alone = lane.in_company(0.1)
    assert all("alone" in found.quads for found in alone.values()) and len(alone) == len(IDS)
    # The current best alone may have failed, which tells nothing of the versions.
    assert arms.fell_back == []
    assert sum(carrier.has_company for carrier in arms.started) == 1 + refuses
    begun = len(arms.started)
    # Where they are started ahead there may be more.
    assert begun >= replicas if kind == "cuda" else begun == replicas
    lane.in_company(0.1)
    assert len(arms.started) == begun + 1 and arms.started[-1].has_company


def test_a_case_that_no_process_loads_near_its_shape_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A candidate's process may say so, though it loads the case to be timed."""
    arms = Starting()
    arms.asks_more = True

    def start_nearby(place: Place, room: int) -> Any:
        trying = nothing_nearby(place.ids, ONE_PROCESS)
        trying.unloaded, trying.through = {"b"}, {"a"}
        return trying

    monkeypatch.setattr(arms, "start_nearby", start_nearby)
    lane = lane_of(arms, "cpu")
    lane.try_nearby()
    assert lane.unloaded_nearby == ["b"]


def test_no_process_with_the_candidate_is_taken_for_the_incumbent_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Carrier", Gaining)
    monkeypatch.setattr(Gaining, "claims_alone", True)
    arms = Starting()
    arms.asks_more = True
    lane = lane_of(arms, "cpu")
    lane.measure(1)
    lane.in_company(0.1)
    assert [carrier.has_company for carrier in arms.started] == [False, True]


@pytest.mark.parametrize(("kind", "count"), [("cpu", 8), ("cuda", 1)])
def test_several_processes_try_inputs_nearby_on_the_cpu_only(
    kind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU each would wait for the others' kernels, in memory that a case may need."""
    arms = Starting()
    arms.asks_more = True
    asked: list[int] = []

    def start_nearby(place: Place, room: int) -> Any:
        asked.append(room)
        return nothing_nearby(place.ids, ONE_PROCESS)

    monkeypatch.setattr(arms, "start_nearby", start_nearby)
    lane_of(arms, kind).try_nearby()
    assert asked == [count]


def test_the_runner_that_rests_gives_its_memory_to_what_lacks_it_near_the_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arms = Starting()
    lane = lane_of(arms, "cuda")
    lane.measure(2)
    arms.asks_more = True
    tried = []

    def start_nearby(place: Place, room: int) -> Any:
        is_short = not arms.started[-1].has_ended
        tried.append(is_short)
        trying = nothing_nearby(place.ids, ONE_PROCESS)
        untried = NO_MEMORY_LEFT if is_short else ""
        trying.wait = lambda: [Tried("a", "size", {}, untried=untried)]
        return trying

    monkeypatch.setattr(arms, "start_nearby", start_nearby)
    lane.try_nearby()
    assert tried == [True, False]


@pytest.mark.parametrize("dies_alone", [False, True])
def test_cases_behind_one_in_which_the_current_best_ends_as_well_are_tried(
    dies_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is wrong there alone would be kept."""
    arms = Starting()
    arms.asks_more = True
    asked: list[Sequence[str]] = []

    def start_nearby(place: Place, seed: int = 0, of: Sequence[str] = (), room: int = 1) -> Any:
        trying = nothing_nearby(place.ids, ONE_PROCESS)
        trying.seed, trying.death = 7, Finding("held-out-death", "it ended")
        asked.append(place.ids)
        if of:
            trying.died = "a: it ended" if dies_alone else ""
        elif "a" in place.ids:
            trying.died, trying.died_in, trying.through = "a: it ended", "a", {"a"}
            trying.wait = lambda: [Tried(i, "size", {}, untried="it ended") for i in IDS]
        return trying

    monkeypatch.setattr(arms, "start_nearby", start_nearby)
    lane = lane_of(arms, "cuda")
    lane.try_nearby()
    assert (lane.death_nearby is None) == dies_alone
    assert asked == [["a", "b"], ["a"], *[["b"]] * dies_alone]
    assert [shape.nodeid for shape in lane.tried] == (["a"] if dies_alone else ["a", "b"])


@pytest.mark.parametrize("why", ["", "it cannot be loaded"])
def test_what_a_lost_case_gave_is_judged_once_and_after_the_replicates(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Carrier", Losing)
    judged = list[str]()

    def tried_in(looks: Any) -> list[Tried]:
        judged.append(looks.nodeid)
        if why:
            raise Refused(why)
        return [Tried(looks.nodeid, "renewed", {}, {})]

    lane = lane_of(Starting())
    lane.measure(2)
    judge: Any = lane._judge
    judge.tried_in = tried_in
    assert not judged
    lane.judge_postponed()
    assert sorted(judged) == sorted(IDS * 2)
    assert lane.why_unjudged == why and len(lane.tried) == (0 if why else 2 * len(IDS))
    lane.judge_postponed()
    assert len(judged) == 2 * len(IDS)


def test_what_a_judge_that_died_was_to_judge_is_judged_by_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its folder has the files of it, and goes with it."""
    monkeypatch.setattr(sys.modules[__name__], "Carrier", Losing)
    lane = lane_of(Starting())
    lane.measure(1)
    judge: Any = lane._judge
    judge.has_died = True
    assert not lane.why_unjudged
    lane.measure(1)
    lane.judge_postponed()
    assert "died" in lane.why_unjudged and not lane.tried
