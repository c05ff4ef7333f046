"""Which processes carry the replicas of a lane: two of its own first, then two that load anew."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS
from pytest_kopt.paired.arms import ONE_PROCESS, TWO_PROCESSES
from pytest_kopt.paired.lane import Lane
from pytest_kopt.paired.replica import CaseQuads, Died, Refused
from pytest_kopt.processes import reload
from pytest_kopt.processes.child import NO_MEMORY, ChildDied
from pytest_kopt.processes.site import Place
from pytest_kopt.session.listening import audit_hook_of
from pytest_kopt.versions.errors import NotLoadable

from .scripted import block_time

IDS = ["a", "b"]


class Carrier:
    """A replica's processes, which may fail when they load for the n-th time."""

    are_orphans = False

    def __init__(self, how: str, fails: dict[int, Refused], *, tells_more: bool) -> None:
        self.how, self.tells_more = how, tells_more
        self.loads, self.held_seconds = 1, 0.5
        self.tried: list[object] = []
        self.joined: list[object] = []
        self.has_ended = False
        self._fails = fails

    def load(self, nodeid: str) -> None: ...

    def join(self, child: object) -> None:
        self.joined.append(child)

    def load_anew(self, referee: object) -> None:
        assert not self.has_ended
        self.loads, self.held_seconds = self.loads + 1, 0.5

    def measure(self, ids: Sequence[str], *rest: object) -> dict[str, CaseQuads]:
        assert not self.has_ended
        if failed := self._fails.pop(self.loads, None):
            raise failed
        return {
            nodeid: CaseQuads(nodeid, "wall", {"alone": [[]]}, load=self.loads) for nodeid in ids
        }

    def dismiss(self) -> None:
        self.has_ended = True

    stop = kill = dismiss


class Starting:
    """Starts carriers, as `Arms` does replicas."""

    asks_more = False

    def __init__(self, how: str = ONE_PROCESS, **fails: Refused) -> None:
        self.how, self.random = how, random.Random(1)
        self.started: list[Carrier] = []
        self.alone: list[Carrier] = []
        self.fell_back: list[Refused] = []
        self.fails = {int(name.removeprefix("load")): error for name, error in fails.items()}

    def start(self, *where: object, tells_more: bool = False) -> Carrier:
        self.started.append(Carrier(self.how, self.fails, tells_more=tells_more))
        return self.started[-1]

    def start_alone(self, place: Place) -> object:
        self.alone.append(Carrier(self.how, {}, tells_more=False))
        return self.alone[-1]

    def start_nearby(self, place: Place) -> object:
        nothing: Any = list
        told = {"are_orphans": False, "same": {}, "died": "", "died_in": "", "how": self.how}
        return SimpleNamespace(**told, wait=nothing, end=nothing, kill=nothing)

    def start_referee(self, *where: object) -> object:
        quiet: Callable[[], None] = lambda: None  # noqa: E731
        return SimpleNamespace(has_died=False, kill=quiet, end=quiet)

    def fall_back(self, how: str, refused: Refused) -> None:
        self.fell_back.append(refused)


class Gaining(Carrier):
    """Finds every case 10 % faster; `seen` is what had been joined to whom when a case was done."""

    seen: ClassVar[list[list[int]]] = []
    all: ClassVar[list[Carrier]] = []

    def measure(self, ids: Sequence[str], *rest: Any) -> dict[str, CaseQuads]:
        found: dict[str, CaseQuads] = {}
        old, new = (INCUMBENT, block_time(1.1)), (CANDIDATE, block_time(1.0))
        for nodeid in ids:
            found[nodeid] = CaseQuads(nodeid, "wall", {CANDIDATE: [[new, old, old, new]]})
            *_, look_ahead = rest
            look_ahead(found)
            Gaining.seen.append([len(each.joined) for each in Gaining.all])
        return found


def lane_of(
    arms: Starting, kind: str = "cpu", *, loads_anew: bool = True, most: int = FINAL_LOOK
) -> Lane:
    starter = SimpleNamespace(why_fresh="")
    site: Any = SimpleNamespace(kind=kind, cores=16, starter=starter)
    device: Any = SimpleNamespace(uuid="GPU-1")
    given: Any = (arms, Place(site, device, [*IDS]), lambda: None, most)
    lane = Lane(*given, loads_anew=loads_anew)
    lane.ahead = 2 if kind == "cuda" else 1
    return lane


def loads(lane: Lane, count: int = FINAL_LOOK) -> list[int]:
    return [case.load for replica in lane.measure(count, None) for case in replica.values()][::2]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_process_carries_two_replicas(kind: str) -> None:
    arms = Starting()
    lane = lane_of(arms, kind)
    assert loads(lane) == [1, 1, 2, 2, 1, 1, 2, 2]
    assert [process.tells_more for process in arms.started] == [True, False, False, False]
    lane.close()
    assert len(arms.started) == 4 and all(process.has_ended for process in arms.started)
    assert lane.held_seconds == FINAL_LOOK * 0.5


@pytest.mark.parametrize("look", LOOKS)
def test_at_every_look_half_of_the_replicas_are_the_first_of_their_process(look: int) -> None:
    first = loads(lane_of(Starting()), look).count(1)
    assert first >= look / 2 and first >= min(LOOKS)


def test_a_first_look_needs_two_processes_and_no_third_is_started() -> None:
    arms = Starting()
    lane = lane_of(arms, "cuda")
    lane.get_ahead(2)
    assert len(arms.started) == 2
    assert loads(lane, 2) == [1, 1] and len(arms.started) == 2


@pytest.mark.parametrize(
    "reason", [Died(ChildDied("signal SIGSEGV")), Refused("an extension is there already")]
)
def test_what_cannot_be_loaded_again_is_measured_in_fresh_processes(reason: Refused) -> None:
    arms = Starting(load2=reason)
    assert loads(lane_of(arms)) == [1] * FINAL_LOOK
    assert arms.fell_back == [], "it says nothing of the versions in one process"


@pytest.mark.parametrize("are_orphans", [True, False])
def test_what_ended_with_its_parent_tells_nothing_of_the_versions(
    are_orphans: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Carrier, "are_orphans", are_orphans)
    arms = Starting(load1=Died(ChildDied("signal SIGKILL")))
    assert loads(lane_of(arms)) == [1, 1, 2, 2, 1, 1, 2, 2]
    assert len(arms.fell_back) == (not are_orphans)


def test_no_process_stays_where_there_is_no_memory_for_two() -> None:
    arms = Starting(load1=Refused(NO_MEMORY))
    lane = lane_of(arms, "cuda")
    lane.get_ahead(2)
    assert loads(lane) == [1] * FINAL_LOOK
    assert arms.fell_back == []


@pytest.mark.parametrize(("how", "anew"), [(TWO_PROCESSES, True), (ONE_PROCESS, False)])
def test_versions_in_two_processes_and_calibrations_take_fresh_ones(how: str, anew: bool) -> None:
    """An extension that was built is not loaded twice; a calibration is about processes."""
    assert loads(lane_of(Starting(how), loads_anew=anew)) == [1] * FINAL_LOOK


@pytest.mark.parametrize(("count", "quads"), [(2, 1), (3, 2)])
def test_the_incumbent_alone_is_timed_as_often_loaded_as_replicas_are(
    count: int, quads: int
) -> None:
    """Else a candidate could hold the incumbent up from its second load on, and gain by it."""
    arms = Starting()
    lane = lane_of(arms)
    loads(lane, count)
    for found in lane.in_company().values():
        assert len(found.quads["alone"]) == quads
    assert len(arms.started) == 3 and arms.started[-1].loads == quads
    assert lane.held_seconds == (count + quads) * 0.5


@pytest.mark.parametrize(
    ("kind", "seen"),
    [("cuda", [[0, 1], [0, 1], [0, 1], [0, 1]]), ("cpu", [[0], [0], [0, 1], [0, 1]])],
)
def test_the_incumbent_alone_starts_up_as_soon_as_a_gain_shows(
    kind: str, seen: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the next replica, where that is there already: on the CPU it would disturb."""
    monkeypatch.setattr(sys.modules[__name__], "Carrier", Gaining)
    arms = Starting()
    arms.asks_more = True
    Gaining.seen, Gaining.all = [], arms.started
    lane = lane_of(arms, kind)
    lane.get_ahead(2 if kind == "cuda" else 1)
    lane.measure(2, None)
    assert Gaining.seen == seen


@pytest.mark.parametrize("carrier", [Carrier, Gaining])
@pytest.mark.parametrize(("kind", "ahead"), [("cuda", 1), ("cpu", 0)])
def test_on_a_gpu_the_incumbent_alone_is_there_before_a_gain_shows(
    kind: str, ahead: int, carrier: type[Carrier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Carrier", carrier)
    arms = Starting()
    arms.asks_more = True
    Gaining.seen, Gaining.all = [], arms.started
    lane = lane_of(arms, kind)
    lane.get_alone_ahead()
    assert len(arms.alone) == ahead
    lane.measure(2, None)
    gained = carrier is Gaining
    assert len(arms.alone) == max(ahead, gained)
    assert [each for replica in arms.started for each in replica.joined] == arms.alone * gained
    lane.close()
    # What joined a replica ends with it.
    assert gained or all(process.has_ended for process in arms.alone)


def test_memory_that_is_short_beside_the_spare_alone_is_not_the_versions_doing() -> None:
    arms = Starting()
    arms.asks_more = True
    lane = lane_of(arms, "cuda", loads_anew=False, most=2)
    lane.get_alone_ahead()
    lane.measure(1, None)
    arms.fails[1] = Refused(NO_MEMORY)
    lane.measure(1, None)
    assert arms.alone[0].has_ended and not arms.fell_back


def test_what_is_the_projects_is_loaded_anew_but_not_pytests_plugins(tmp_path: Path) -> None:
    for name in ("kept_plugin", "some_kernel"):
        (tmp_path / f"{name}.py").write_text("STATE = []\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import kept_plugin  # type: ignore[import-not-found]
        import some_kernel  # type: ignore[import-not-found]

        numbers = random.getstate()
        reload.forget(tmp_path, ["some_kernel.py"], {"kept_plugin"})
        assert sys.modules["kept_plugin"] is kept_plugin
        assert "some_kernel" not in sys.modules and not vars(some_kernel)
        assert random.getstate() != numbers and "torch" in sys.modules
        with pytest.raises(NotLoadable, match="'kept_plugin' was loaded by a plugin"):
            reload.forget(tmp_path, ["kept_plugin.py"], {"kept_plugin"})
    finally:
        sys.path.remove(str(tmp_path))
        for name in ("kept_plugin", "some_kernel"):
            sys.modules.pop(name, None)


def test_a_process_listens_from_before_it_loaded_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that the first loading opened are known when everything is loaded again."""
    from pytest_kopt.honesty.audit_hook import AuditHook

    monkeypatch.setattr(AuditHook, "install", lambda hook: None)
    serve = SimpleNamespace(audit_hook=None, bounds=None, lasting=frozenset())
    manager = SimpleNamespace(get_plugin=lambda name: serve)
    first, second = (
        SimpleNamespace(stash={}, pluginmanager=manager, rootpath=tmp_path) for _ in range(2)
    )
    hook = audit_hook_of(cast("Any", first))
    assert hook is audit_hook_of(cast("Any", second)) is serve.audit_hook
    assert "torch" in serve.lasting
