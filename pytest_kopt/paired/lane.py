"""The cases of one device in a paired comparison: their replicas, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from statistics import fmean

from pytest_kopt.cases.order import CANDIDATE
from pytest_kopt.decide.inference import LOOKS
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.paired.arms import ONE_PROCESS, Arms, NotComparable
from pytest_kopt.paired.nearby import Nearby
from pytest_kopt.paired.replica import CaseQuads, Refused, Replica
from pytest_kopt.paired.verifier_process import Referee
from pytest_kopt.processes.child import NO_MEMORY, Children
from pytest_kopt.processes.site import Place

#: Replicas that are there at once, so that one starts up while another is measured; on the CPU it
#: would disturb that.
AT_ONCE_ON_GPU = 2
#: A version that gains so much in a replica is likely to be kept: the next one is measured with the
#: incumbent alone beside it, which is asked of whatever is kept.
_GAIN_PCT = 1.0


class Then(Enum):
    """What follows where a replica's processes could not hold what they were asked for."""

    ALL_AGAIN = "whatever was forked ended with its parent: all of it is started again"
    ONE_AT_A_TIME = "they lacked memory next to others: the same, with nothing next to them"
    THE_SAME_AGAIN = "it may be the doing of the current best alone, which is not started again"
    OTHERWISE = "the versions are held in another way, a process each at the end"


def after_refusal(reason: str, *, are_orphans: bool, is_crowded: bool, has_company: bool) -> Then:
    """Return what follows; `has_company` says that the current best alone was timed as well."""
    if are_orphans:
        return Then.ALL_AGAIN
    if is_crowded and NO_MEMORY in reason:
        return Then.ONE_AT_A_TIME
    return Then.THE_SAME_AGAIN if has_company else Then.OTHERWISE


class _BesideAlone:
    """The incumbent timed alone beside the first new replica after one with a gain."""

    def __init__(self) -> None:
        self.replica: Replica | None = None
        self.told: dict[str, CaseQuads] = {}
        self._has_gain = False

    @property
    def is_due(self) -> bool:
        return self._has_gain and self.replica is None

    def look(self, found: Mapping[str, CaseQuads]) -> None:
        """Note whether there is a gain in what a replica has found so far."""
        gains = [quads.ratio("step") for quads in _timed(found)]
        self._has_gain = bool(gains) and fmean(gains) > math.log1p(_GAIN_PCT / 100)

    def take(self, found: Mapping[str, CaseQuads]) -> None:
        """Take out what was timed of the incumbent alone, and note whether there was a gain."""
        for quads in _timed(found):
            if alone := quads.quads.pop("alone", None):
                both = {"alone": alone, CANDIDATE: quads.quads[CANDIDATE]}
                self.told[quads.nodeid] = replace(quads, quads=both)
        self.look(found)


def _timed(found: Mapping[str, CaseQuads]) -> list[CaseQuads]:
    return [quads for quads in found.values() if CANDIDATE in quads.quads]


class Lane:
    """The cases of one device; measured in a thread, since all it does is wait for processes."""

    def __init__(
        self,
        arms: Arms,
        place: Place,
        progress: Callable[[], None],
        most: int,
    ) -> None:
        """Measure the cases of a place; see Comparison for the rest."""
        self.place = place
        self._arms = arms
        self._progress = progress
        self._most = most
        #: Cases that the change does not concern.
        self._same: dict[str, CaseQuads] = {}
        self._started: list[Replica] = []
        self._leaving: Replica | None = None
        self._beside_alone = _BesideAlone()
        #: The process for it, where one was started before it was known to be needed.
        self._spare = Children()
        self._abandoned = False
        self._measured = 0
        #: How many may be there at once; one where they did not find the memory they need.
        self._room = AT_ONCE_ON_GPU
        #: How many are started before they are needed, the next one included.
        self.ahead = 1
        self.held_seconds = 0.0
        #: What judges the replicas, and what tries shapes nearby.
        self._referee: Referee | None = None
        self._nearby: Nearby | None = None
        #: How the versions were held when these shapes had been tried.
        self._tried_how = ""
        self.tried: list[Tried] = []
        #: Why shapes near the declared ones were no longer tried: one of them ended a process.
        self.died_nearby = ""

    def measure(self, count: int, only: Collection[str] | None) -> list[dict[str, CaseQuads]]:
        """Return that many replicas of all cases or of `only` some, one after the other."""
        asked = self.place.ids if only is None else only
        found = [self._one(asked, due) for due in range(count, 0, -1)]
        self._await_nearby()
        return found

    def get_ahead(self, due: int) -> None:
        """Start replicas before they are needed; those that are `due` load their first case."""
        self.try_nearby()
        # Most comparisons end with their first look: what that does not need is not started.
        left = (min(LOOKS) if self._measured < min(LOOKS) else self._most) - self._measured
        while len(self._started) < max(1, min(self._room, self.ahead, left)):
            self._started.append(self._start())
        first = self._wanted_of(self.place.ids)[0]
        for replica in self._started[:due]:
            replica.load(first)

    def get_alone_ahead(self) -> None:
        """Start the incumbent alone before a gain is known, where another process disturbs none."""
        if self.ahead > 1 and self._arms.asks_more and not self._spare.children:
            self._spare.children.append(self._arms.start_alone(self.place))

    def in_company(self) -> dict[str, CaseQuads]:
        """Return one replica of what the change concerns, the incumbent alone beside it.

        What a replica with a gain has told of it already comes first.
        """
        told, self._beside_alone.told = self._beside_alone.told, {}
        wanted = self._wanted_of(self.place.ids)
        if told.keys() >= {*wanted}:
            return told
        self.stop_all()
        place = self.place._replace(ids=wanted)
        # With all arms, as in a round: what holds the incumbent up there does so here.
        replica = self._arms.start(place, self._judge())
        self._started.append(replica)
        replica.join(self._arms.start_alone(place))
        try:
            return replica.measure(wanted, self._arms.random, self._await_leaving)
        finally:
            self.held_seconds += replica.held_seconds
            self.stop_all()

    def abandon(self) -> None:
        self._abandoned = True
        held = (self._nearby, self._referee, self._spare, *self._started)
        _kill([each for each in held if each is not None])

    def _judge(self) -> Referee:
        """Return what judges this lane's replicas; one that died is replaced."""
        if self._referee is None or self._referee.has_died:
            self._drop_referee()
            self._referee = self._arms.start_referee(self.place)
        return self._referee

    def _one(self, asked: Collection[str], due: int) -> dict[str, CaseQuads]:
        """Measure what the change concerns; the other cases need no clock after the first time."""
        arms, on_cpu = self._arms, self.place.site.kind == "cpu"
        while True:
            if self._room == 1:
                self._await_nearby()
            if self._wanted_of(asked):
                self.get_ahead(due)
            if on_cpu:
                # There they would disturb each other.
                self._await_nearby()
            if not (wanted := self._wanted_of(asked)):
                return self._all({})
            if self._abandoned:
                raise NotComparable("abandoned")
            if not self._started:
                # They ended with what tried shapes nearby.
                continue
            replica = self._started[0]
            self._join(replica)
            try:
                found = replica.measure(wanted, arms.random, self._await_leaving, self._look_ahead)
            except Refused as refused:
                then = after_refusal(
                    str(refused),
                    are_orphans=replica.are_orphans,
                    is_crowded=bool(
                        self._started[1:] or self._spare.children or self._nearby is not None
                    ),
                    has_company=replica is self._beside_alone.replica,
                )
                self._start_over(replica, refused, then)
                continue
            self._started.remove(replica)
            self._measured += 1
            self.held_seconds += replica.held_seconds
            self.tried += replica.tried
            self._await_leaving()
            replica.dismiss()
            self._leaving = replica
            self._same |= {nodeid: quads for nodeid, quads in found.items() if quads.is_same}
            self._beside_alone.take(found)
            self._progress()
            return self._all(found)

    def _start_over(self, replica: Replica, refused: Refused, then: Then) -> None:
        if then is Then.ALL_AGAIN:
            self.close()
            return
        self.stop_all()
        if then is Then.ONE_AT_A_TIME:
            self._room = 1
        elif then is Then.OTHERWISE and not self._abandoned:
            self._arms.fall_back(replica.how, refused)

    def _wanted_of(self, asked: Collection[str]) -> list[str]:
        return [nodeid for nodeid in self.place.ids if nodeid in asked and nodeid not in self._same]

    def _all(self, found: Mapping[str, CaseQuads]) -> dict[str, CaseQuads]:
        """Return all cases: of those that were not timed, that they were not."""
        known = {**self._same, **found}
        return {nodeid: known.get(nodeid) or CaseQuads(nodeid, "") for nodeid in self.place.ids}

    def _start(self) -> Replica:
        number = self._measured + len(self._started)
        return self._arms.start(self.place, self._judge(), tells_more=not number)

    def _look_ahead(self, found: Mapping[str, CaseQuads]) -> None:
        """Have the incumbent alone start up beside the next replica while this one is measured."""
        self._beside_alone.look(found)
        if self._started[1:]:
            self._join(self._started[1])

    def _join(self, replica: Replica) -> None:
        """Have the incumbent timed alone beside a replica, if that is due and can be."""
        has_room = self._room > 1 and replica.how == ONE_PROCESS
        if self._beside_alone.is_due and self._arms.asks_more and has_room:
            self._beside_alone.replica = replica
            spare = self._spare.children
            replica.join(spare.pop() if spare else self._arms.start_alone(self.place))

    def try_nearby(self) -> None:
        """Have shapes near the declared ones tried from now on, unless they are or were."""
        arms = self._arms
        if self._nearby is None and arms.asks_more and arms.how != self._tried_how:
            wanted = self._wanted_of(self.place.ids)
            self._nearby = arms.start_nearby(self.place._replace(ids=wanted))

    def _await_nearby(self) -> None:
        """Wait for what is tried near the declared shapes; what ends it there is only told."""
        if self._same.keys() >= {*self.place.ids}:
            self._drop_nearby()
            return
        self.try_nearby()
        if (nearby := self._nearby) is None:
            return
        found = nearby.wait()
        if self._abandoned:
            raise NotComparable("abandoned")
        if nearby.are_orphans:
            self.close()
            self._await_nearby()
            return
        self._drop_nearby()
        self.tried += [item for item in found if item.nodeid in self.place.ids]
        self._same |= {i: CaseQuads(i, "", same=how) for i, how in nearby.same.items()}
        if nearby.died and nearby.died_in not in self.place.ids:
            # What ended it is not compared here.
            self._await_nearby()
            return
        self.died_nearby, self._tried_how = nearby.died, nearby.how

    def _drop_nearby(self) -> None:
        if self._nearby is not None:
            self._nearby.end()
            self._nearby = None

    def _drop_referee(self) -> None:
        if self._referee is not None:
            self._referee.end()
            self._referee = None

    def _await_leaving(self) -> None:
        """Wait for the last replica to be gone: what ends on a device disturbs a timing there."""
        if self._leaving:
            self._leaving.stop()
            self._leaving = None

    def close(self) -> None:
        self.stop_all()
        self._drop_referee()

    def stop_all(self) -> None:
        """End all: one that loads or waits for its turn would not listen."""
        self._drop_nearby()
        held = [*self._started, self._spare]
        _kill(held)
        self._await_leaving()
        for each in held:
            each.stop()
        self._started, self._spare = [], Children()


def _kill(all_of: Sequence[Children]) -> None:
    """Kill them at once: a process takes a while to let go of its GPU."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda held: held.kill(), all_of))
