"""A replica: fresh processes on one device that hold both versions; blocks on command."""

from __future__ import annotations

import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO, UNEVEN
from pytest_kopt.decide.inference import replica_ratio
from pytest_kopt.decide.verdict import KernelChange, Same
from pytest_kopt.devices.conditions import Conditions, steadily
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.checks import Phase, ask
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.heldout import Outcome, Tried
from pytest_kopt.honesty.watching.clock import Span
from pytest_kopt.measure.engine import agreed
from pytest_kopt.paired.referee import Looks, Referee, why_ended
from pytest_kopt.processes.child import Child, ChildDied, Children
from pytest_kopt.processes.site import Place
from pytest_kopt.sameness.recording import differences_later

#: The comparison, the A/A control, the comparison with the group sizes of a grouped GEMM drawn
#: anew, by their names in pairs.csv, and the incumbent beside the candidate against itself alone.
#: In a race each candidate's comparison has its name.
Kind = str
_PAIRS: dict[Kind, tuple[str, str]] = {
    "candidate": (CANDIDATE, INCUMBENT),
    "placebo": (PLACEBO, INCUMBENT),
    "uneven": (UNEVEN[CANDIDATE], UNEVEN[INCUMBENT]),
    "alone": (INCUMBENT, ALONE),
}
#: Arms that nobody looks into: what they run was accepted before.
_TRUSTED = frozenset({INCUMBENT, PLACEBO, ALONE, UNEVEN[INCUMBENT]})
#: So many blocks of an arm are looked at.
_LOOKS = 2
#: So many quads compare two arms, and more on a GPU whose blocks take less than so many ms each:
#: there a clock that steps between two blocks is what scatters.
_QUADS, _MORE_QUADS, _SHORT_MS = 3, 6, 12.0
#: Block times in ms: forward, and backward where the case has one.
Times = tuple[float, float | None]
Quad = list[tuple[str, Times]]


@dataclass(slots=True)
class CaseQuads:
    """One case in one replica: its quads, by what they compare.

    `engine` is that of both directions, or `graph+events`. `device` is the UUID of what
    measured it, `conditions` its state around that, `timed` from when to when it was measured alone
    (seconds since the epoch), `load` whether its process had loaded all for the first time (1) or
    the second, `not_captured` why something is not timed by replays of a graph,
    `judged_inside` why what was looked at was judged in its own process ("": it was not).
    """

    nodeid: str
    engine: str
    quads: dict[Kind, list[Quad]] = field(default_factory=dict)
    device: str = ""
    conditions: Conditions | None = None
    timed: tuple[float, float] = (0.0, 0.0)
    not_captured: Mapping[str, str] = field(default_factory=dict)
    judged_inside: str = ""
    load: int = 1
    #: How it is known that both versions are the same, where nothing was timed.
    same: Same | None = None
    #: What differs in their machine code, as far as it is told.
    kernels: Future[list[KernelChange]] | None = None

    @property
    def is_same(self) -> bool:
        return not self.quads

    def ratio(self, way: str, kind: Kind = "candidate") -> float:
        """Return the replica's log-ratio of a direction: forward, backward or step (both)."""
        if self.is_same:
            return 0.0
        quads = [[(arm, time_of(times, way)) for arm, times in quad] for quad in self.quads[kind]]
        return replica_ratio(quads, *_PAIRS.get(kind, (kind, INCUMBENT)))


def time_of(times: Times, way: str) -> float:
    forward, backward = times
    if way == "forward" or backward is None:
        return forward
    return backward if way == "backward" else forward + backward


class Refused(Exception):
    """A process could not hold the arms it was asked for."""


class Died(Refused):
    """A process ended; `case` ran in it, where it held the candidate and no other version."""

    def __init__(self, death: ChildDied, case: str | None = None) -> None:
        super().__init__(f"a replica died: {death}")
        self.death = str(death)
        self.case = case


class Caught(Exception):
    """The candidate gave itself away while it was timed; `findings` say how."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = tuple(findings)


class Replica(Children):
    """The processes of one replica; `how` they hold the versions, how often they loaded all."""

    def __init__(
        self,
        children: Iterable[Child],
        how: str,
        place: Place,
        referee: Referee,
        accuracy: Mapping[str, Mapping[str, Accuracy]],
        alone: Child | None = None,
        out: Collection[str] = (),
    ) -> None:
        """Take over started processes, and what judges them.

        `accuracy` is what the baseline's results of each case reached, `alone` the process that
        holds only the candidate, `out` arms that are not timed, whoever else adds to them.
        """
        super().__init__(children)
        self._alone = alone
        self._out = out
        self._referee = referee
        self._accuracy = accuracy
        self._device, self._placement = place.device, place.site.placement
        self.how = how
        self.loads = 1
        self._asked: str | None = None
        self.held_seconds = 0.0
        #: Of what blocks met, what the candidate is wrong for and the incumbent is not.
        self.tried: list[Tried] = []

    def load(self, nodeid: str) -> None:
        """Have the processes load a case, the first to be measured, while others are measured."""
        if self._asked is None:
            self._ask(nodeid)
            self._referee.load(nodeid)

    def join(self, child: Child) -> None:
        """Have another process's arm timed beside these from now on."""
        self.children.append(child)
        if self._asked is not None:
            self._tell_asked(child)

    def load_anew(self, referee: Referee) -> None:
        """Be another replica in the same processes: whatever is the project's is loaded again."""
        for child in self.children:
            child.tell("again")
        self._referee = referee
        self.loads += 1
        self._asked, self.held_seconds, self.tried = None, 0.0, []

    def measure(
        self,
        ids: Sequence[str],
        order: random.Random,
        clear: Callable[[], None],
        look_ahead: Callable[[Mapping[str, CaseQuads]], None] = lambda found: None,
    ) -> dict[str, CaseQuads]:
        """Measure every case, one after the other, alone on the device.

        `clear` is called before anything is timed and waits for what is still on its way out,
        `look_ahead` with what is found so far, while the next case is loaded.
        Raises Refused when a process cannot hold its arms, Died when one dies, NoIdleGpu when a
        stranger does not leave the device, Caught when the candidate gave itself away.
        """
        found: dict[str, CaseQuads] = {}
        nodeid = None
        try:
            for child in self.children:
                _wait(child, "collected")
            # What it was told to load comes first, and is gone through even if it needs no clock.
            left = deque(dict.fromkeys([self._asked or ids[0], *ids]))
            while left:
                nodeid = left.popleft()
                found[nodeid], looks = self._case(nodeid, order, clear)
                if left:
                    # Meanwhile this one is judged, and others may have the device.
                    self._ask(left[0])
                look_ahead(found)
                if not all(map(self._judge, looks)):
                    # Its own process judges it, which has gone on: once more, then.
                    left.append(nodeid)
                    if nodeid == self._asked:
                        self._ask(nodeid)
        except ChildDied as death:
            own = self._alone is not None and self._alone.has_died
            raise Died(death, nodeid if own else None) from None
        return found

    def _ask(self, nodeid: str) -> None:
        """Have a case loaded on content that comes nowhere else: answers could be passed."""
        self._asked, self._seed = nodeid, secrets.randbits(62)
        for child in self.children:
            self._tell_asked(child)

    def _tell_asked(self, child: Child) -> None:
        child.tell("run", nodeid=self._asked, next=None, seed=self._seed)

    def _case(
        self, nodeid: str, order: random.Random, clear: Callable[[], None]
    ) -> tuple[CaseQuads, list[Looks]]:
        """Measure a case; return it with what is still to be judged of it."""
        device, placement = self._device, self._placement
        arms: dict[str, Child] = {}
        if nodeid != self._asked:
            self._ask(nodeid)
        self._referee.load(nodeid)
        for child in self.children:
            message = _wait(child, "loaded", "same")
            if message["kind"] == "same":
                return _same(nodeid, child, message), []
        self._referee.await_loaded(nodeid)
        with placement.host.lock(device):
            placement.keep_strangers_off(device)
            since = time.time()
            prepared = []
            kernels = None
            for child in self.children:
                child.tell("go")
                message = _wait(child, "changed", "same", "prepared")
                if message["kind"] == "same":
                    return _same(nodeid, child, message), []
                if message["kind"] == "changed":
                    kernels = differences_later(
                        message["before"], message["after"], message["arch"]
                    )
                    message = _wait(child, "prepared")
                prepared.append(message)
            engine = agreed(message["engine"] for message in prepared)
            for child in self.children:
                child.tell("engine", engine=engine)
                arms |= dict.fromkeys(_wait(child, "ready")["arms"], child)
            clear()
            arms = {arm: child for arm, child in arms.items() if arm not in self._out}
            blocks = _Blocks(arms, order, device.kind)
            count = blocks.warm_up()
            quads, conditions = steadily(
                lambda: _quads(blocks, order, count), lambda: placement.host.read(device)
            )
            spans = [
                [span for arm, span in blocks.spans if (arm in _TRUSTED) == trusted]
                for trusted in (False, True)
            ]
            found = ask(Phase.COMPARED, spans=spans[0], others=spans[1])
            looks = []
            for child in self.children:
                secret = order.getrandbits(62)
                child.tell("block", arm="", seed=secret, keeps=blocks.keeps(child))
                handed = _wait(child, "kept")["looks"]
                if own := [(arm, seed) for arm, seed in blocks.looked_at if arms[arm] is child]:
                    looks.append(Looks(nodeid, self._seed, own, engine, secret, handed))
            timed = (since, time.time())
        self.held_seconds += timed[1] - timed[0]
        inside = self._referee.why_not(nodeid)
        for child in self.children:
            known = {name: asdict(item) for name, item in self._accuracy.get(nodeid, {}).items()}
            child.tell("settled", accuracy=known if inside else None)
            found += [Finding(**told) for told in _wait(child, "caught")["findings"]]
            if found:
                raise Caught(found)
            _wait(child, "finished")
        shown = "+".join(dict.fromkeys(engine.split("+")))
        why = {what: said for told in prepared for what, said in told["not_captured"].items()}
        case = CaseQuads(
            *(nodeid, shown, quads, device.uuid, conditions, timed, why, inside, self.loads),
            kernels=kernels,
        )
        return case, [] if inside else looks

    def _judge(self, looks: Looks) -> bool:
        """Say whether the referee can judge what was looked at; Caught or Refused if wrong."""
        wrong = self._referee.judge(looks)
        if not wrong:
            return wrong is not None
        if wrong[0].check != "timed-result":
            both: dict[str, Outcome] = {INCUMBENT: "right", CANDIDATE: "wrong"}
            what = {CANDIDATE: wrong[0].message}
            self.tried.append(Tried(looks.nodeid, "renewed", {}, both, what))
            return True
        if not self._referee.stands(looks):
            return False
        if self.loads > 1:
            # What the case drew as it was imported may be otherwise than in the first load.
            raise Refused(f"loaded anew, {wrong[0]}")
        raise Caught(wrong)


def _same(nodeid: str, child: Child, message: Mapping[str, Any]) -> CaseQuads:
    """Return a case that needs no clock, once its process is done with it."""
    _wait(child, "finished")
    return CaseQuads(nodeid, "", same=message["how"])


class _Blocks:
    """Blocks of the arms of a case, in the processes that hold them; some are looked at.

    Which ones, and what content they meet, is not told before: on the CPU, not before they are
    over, and each of an arm's blocks is as likely as any other.
    """

    def __init__(self, arms: Mapping[str, Child], order: random.Random, kind: str) -> None:
        self.arms = arms
        self._order = order
        self._is_gpu = kind != "cpu"
        #: By arm, the blocks that a GPU is told to look at as they begin.
        self._chosen: dict[str, list[int]] = {}
        self._runs = dict.fromkeys(arms, 0)
        #: The places of what processes are to keep of their last blocks.
        self._keeping: dict[Child, int] = {}
        self._seeds: dict[tuple[str, int], int] = {}
        self.spans: list[tuple[str, Span]] = []

    @property
    def looked_at(self) -> list[tuple[str, int]]:
        """Arm and seed of the blocks so far whose results are to be judged."""
        return [(arm, seed) for (arm, _), seed in self._seeds.items() if arm not in _TRUSTED]

    def warm_up(self) -> int:
        """Run each arm once, which does not count; return how many quads are to come."""
        for arm in self.arms:
            self.run(arm, self._order.getrandbits(62))
        shortest = min(span.inside for _, span in self.spans)
        self.spans.clear()
        count = _MORE_QUADS if self._is_gpu and shortest < _SHORT_MS else _QUADS
        runs = range(1, 1 + 2 * count)
        if self._is_gpu:
            self._chosen = {arm: self._order.sample(runs, _LOOKS) for arm in self.arms}
        return count

    def run(self, arm: str, seed: int) -> Times:
        number, self._runs[arm] = self._runs[arm], self._runs[arm] + 1
        child, before = self.arms[arm], number in self._chosen.get(arm, ())
        if before:
            # The arm before this one has left results of the content that both meet, in memory that
            # this one's may lie in.
            seed = self._order.getrandbits(62)
        keeps = self.keeps(child)
        child.tell("block", arm=arm, seed=seed, is_looked_at=before, keeps=keeps)
        message = child.receive()
        if message["kind"] != "time":
            raise ChildDied(f"sent {message['kind']} instead of a time")
        self.spans.append((arm, Span(float(message["waited"]), float(message["spent"]))))
        place = number if number < _LOOKS else self._order.randrange(number + 1)
        if before:
            self._seeds[arm, number] = seed
        elif not self._is_gpu and place < _LOOKS:
            self._seeds[arm, place] = seed
            self._keeping[child] = place
        backward = message["backward"]
        return float(message["forward"]), None if backward is None else float(backward)

    def keeps(self, child: Child) -> int | None:
        """Return, once, the place of what a process is to keep of its last block."""
        return self._keeping.pop(child, None)


def _quads(blocks: _Blocks, order: random.Random, count: int) -> dict[Kind, list[Quad]]:
    arms = blocks.arms
    pairs = {kind: pair for kind, pair in _PAIRS.items() if arms.keys() >= {*pair}}
    named = {arm for pair in _PAIRS.values() for arm in pair}
    found: dict[Kind, list[Quad]] = {kind: [] for kind in pairs}
    raced = [arm for arm in arms if arm not in named]
    for _ in range(count):
        if raced:
            laps = _lap(blocks, [INCUMBENT, PLACEBO, *raced], order)
            for kind in ("placebo", *raced):
                found.setdefault(kind, []).append(laps(kind))
            continue
        for kind, quads in found.items():
            quads.append(_quad(blocks, pairs[kind], order))
    return found


def _lap(blocks: _Blocks, arms: Sequence[str], order: random.Random) -> Callable[[str], Quad]:
    """Run all arms in a drawn order and back: what drifts meets all alike; return an arm's quad."""
    there = order.sample(arms, len(arms))
    first, second = order.getrandbits(62), order.getrandbits(62)
    ran = [(arm, blocks.run(arm, first)) for arm in there]
    ran += [(arm, blocks.run(arm, second)) for arm in reversed(there)]
    return lambda arm: [block for block in ran if block[0] in (arm, INCUMBENT)]


def _quad(blocks: _Blocks, pair: tuple[str, str], order: random.Random) -> Quad:
    """Run ABBA or BAAB, whichever the dice say; both arms get the same seed in either half."""
    a, b = pair if order.random() < 0.5 else pair[::-1]
    first, second = order.getrandbits(62), order.getrandbits(62)
    halves = ((a, first), (b, first), (b, second), (a, second))
    return [(arm, blocks.run(arm, seed)) for arm, seed in halves]


def _wait(child: Child, *kinds: str) -> dict[str, Any]:
    """Read messages up to one of these kinds; a refusal or a failed case ends the replica."""
    while True:
        message = child.receive()
        if message["kind"] in kinds:
            return message
        if why := why_ended(message):
            raise Refused(why)
