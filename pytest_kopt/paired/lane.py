"""One device of a paired comparison: its processes, and the replicas of its cases, one by one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from statistics import fmean

from pytest_kopt.cases.order import CANDIDATE
from pytest_kopt.decide.inference import LOOKS
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.paired.arms import ONE_PROCESS, Arms, NotComparable
from pytest_kopt.paired.blocks import Sustained
from pytest_kopt.paired.nearby import Nearby
from pytest_kopt.paired.replica import Refused, Replica
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.paired.verifier_process import Verifier
from pytest_kopt.processes.child import NO_MEMORY, Children
from pytest_kopt.processes.remote_host import Place
from pytest_kopt.show.progress import Progress

#: Replicas that are there at once, so that one starts up while another is measured; on the CPU it
#: would disturb that.
AT_ONCE_ON_GPU = 2


class Pool:
    """Replicas in the order in which they are measured, and the processes that run with them.

    These are the verifier, the process that holds the incumbent alone, and the processes that try
    shapes near the declared ones.
    """

    def __init__(self, arms: Arms, place: Place) -> None:
        self._arms = arms
        self.place = place
        self.replicas: list[Replica] = []
        self.nearby: Nearby | None = None
        #: How many replicas may be there at once; one where they did not find the memory they need.
        self.room = AT_ONCE_ON_GPU
        #: How many are started before they are needed, the next one included.
        self.ahead = 1
        self._leaving: Replica | None = None
        self._verifier: Verifier | None = None
        #: The incumbent alone, where it was started before it was known to be needed.
        self._spare = Children()

    @property
    def is_crowded(self) -> bool:
        """Whether the first replica shares the device's memory with other processes."""
        return bool(self.replicas[1:] or self._spare.children or self.nearby is not None)

    def fill(self, measured: int, most: int) -> None:
        """Start the next replicas; `measured` ones are there, and `most` more may be."""
        while len(self.replicas) < max(1, min(self.room, self.ahead, most)):
            self.start(self.place, measured + len(self.replicas))

    def start(self, place: Place, number: int) -> Replica:
        """Start a replica of this number in the comparison."""
        replica = self._arms.start(place, self._judge(), number)
        self.replicas.append(replica)
        return replica

    def start_spare(self) -> None:
        """Start the incumbent alone before a gain is known, where another process disturbs none."""
        if self.ahead > 1 and self._arms.asks_more and not self._spare.children:
            self._spare.children.append(self._arms.start_alone(self.place))

    def join_alone(self, replica: Replica) -> bool:
        """Have the incumbent alone timed next to a replica; say whether that can be."""
        if not (self._arms.asks_more and self.room > 1 and replica.how == ONE_PROCESS):
            return False
        spare = self._spare.children
        replica.join(spare.pop() if spare else self._arms.start_alone(self.place))
        return True

    def start_nearby(self, ids: list[str]) -> None:
        self.nearby = self._arms.start_nearby(self.place._replace(ids=ids))

    def end_nearby(self) -> None:
        if self.nearby is not None:
            self.nearby.end()
            self.nearby = None

    def dismiss(self, replica: Replica) -> None:
        """Have a measured replica end while others go on."""
        self.replicas.remove(replica)
        self.await_leaving()
        replica.dismiss()
        self._leaving = replica

    def await_leaving(self) -> None:
        """Wait for the last replica to be gone: what ends on a device disturbs a timing there."""
        if self._leaving:
            self._leaving.stop()
            self._leaving = None

    def kill(self) -> None:
        """Kill all of them, from whatever thread."""
        running = (self.nearby, self._verifier, self._spare, *self.replicas)
        _kill([children for children in running if children is not None])

    def stop(self) -> None:
        """End all but the verifier: one that loads or waits for its turn would not listen."""
        self.end_nearby()
        running = [*self.replicas, self._spare]
        _kill(running)
        self.await_leaving()
        for children in running:
            children.stop()
        self.replicas, self._spare = [], Children()

    def close(self) -> None:
        self.stop()
        self._end_verifier()

    def _judge(self) -> Verifier:
        """Return what judges the replicas; one that died is replaced."""
        if self._verifier is None or self._verifier.has_died:
            self._end_verifier()
            self._verifier = self._arms.start_verifier(self.place)
        return self._verifier

    def _end_verifier(self) -> None:
        if self._verifier is not None:
            self._verifier.end()
            self._verifier = None


def _kill(running: Collection[Children]) -> None:
    """Kill them at once: a process takes a while to let go of its GPU."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda children: children.kill(), running))


#: A version that gains so much in a replica is likely to be kept: the next one is measured with the
#: incumbent alone beside it, which is asked of whatever is kept.
_GAIN_PCT = 1.0


class Then(Enum):
    """The step that follows if a replica's processes could not hold what they were asked for."""

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
    """The incumbent timed alone next to the first new replica after one with a gain."""

    def __init__(self) -> None:
        self.replica: Replica | None = None
        #: By node id, the incumbent alone and the candidate as they were timed there.
        self.quads: dict[str, CaseQuads] = {}
        self._has_gain = False

    @property
    def is_due(self) -> bool:
        return self._has_gain and self.replica is None

    def look(self, cases: Mapping[str, CaseQuads]) -> None:
        """Note whether there is a gain in the cases that a replica has measured so far."""
        gains = [quads.ratio("step") for quads in _timed(cases)]
        self._has_gain = bool(gains) and fmean(gains) > math.log1p(_GAIN_PCT / 100)

    def take(self, cases: Mapping[str, CaseQuads]) -> None:
        """Take out what was timed of the incumbent alone, and note whether there was a gain."""
        for quads in _timed(cases):
            if alone := quads.quads.pop("alone", None):
                pairs = {"alone": alone, CANDIDATE: quads.quads[CANDIDATE]}
                self.quads[quads.nodeid] = replace(quads, quads=pairs)
        self.look(cases)


def _timed(cases: Mapping[str, CaseQuads]) -> list[CaseQuads]:
    return [quads for quads in cases.values() if CANDIDATE in quads.quads]


class Lane:
    """The cases of one device; measured in a thread, since all it does is wait for processes."""

    def __init__(self, arms: Arms, place: Place, progress: Progress, most: int) -> None:
        """Measure the cases of a place; see Comparison for the rest."""
        self.pool = Pool(arms, place)
        self._arms = arms
        self._progress = progress
        self._most = most
        #: Cases that the change does not concern.
        self._same: dict[str, CaseQuads] = {}
        self._beside_alone = _BesideAlone()
        self._sustained = Sustained(arms.sustained_turns)
        self._abandoned = False
        self._measured = 0
        self.held_seconds = 0.0
        #: How the versions were held when shapes nearby had been tried.
        self._tried_how = ""
        self.tried: list[Tried] = []
        #: Why shapes near the declared ones were no longer tried: one of them ended a process.
        self.died_nearby = ""

    @property
    def place(self) -> Place:
        return self.pool.place

    def measure(self, count: int, only: Collection[str] | None) -> list[dict[str, CaseQuads]]:
        """Return that many replicas of all cases or of `only` some, one after the other."""
        ids = self.place.ids if only is None else only
        replicas = [self._one(ids, left) for left in range(count, 0, -1)]
        self._await_nearby()
        return replicas

    def get_ahead(self, count: int) -> None:
        """Start replicas before they are needed; the next `count` load their first case."""
        self.try_nearby()
        # Most comparisons end with their first look: what that does not need is not started.
        most = min(LOOKS) if self._measured < min(LOOKS) else self._most
        self.pool.fill(self._measured, most - self._measured)
        first = self._open_of(self.place.ids)[0]
        for replica in self.pool.replicas[:count]:
            replica.load(first)

    def in_company(self) -> dict[str, CaseQuads]:
        """Return one replica of what the change concerns, with the incumbent alone next to it.

        The part that a replica with a gain has measured of it already comes first.
        """
        measured, self._beside_alone.quads = self._beside_alone.quads, {}
        ids = self._open_of(self.place.ids)
        if measured.keys() >= {*ids}:
            return measured
        self.pool.stop()
        # With all arms, as in a round: what holds the incumbent up there does so here.
        place = self.place._replace(ids=ids)
        replica = self.pool.start(place, self._measured)
        replica.join(self._arms.start_alone(place))
        try:
            return replica.measure(ids, self._arms.random, self.pool.await_leaving)
        finally:
            self.held_seconds += replica.held_seconds
            self.pool.stop()

    def abandon(self) -> None:
        self._abandoned = True
        self.pool.kill()

    def close(self) -> None:
        self.pool.close()

    def try_nearby(self) -> None:
        """Have shapes near the declared ones tried from now on, unless they are or were."""
        arms = self._arms
        if self.pool.nearby is None and arms.asks_more and arms.how != self._tried_how:
            self.pool.start_nearby(self._open_of(self.place.ids))

    def _one(self, ids: Collection[str], count: int) -> dict[str, CaseQuads]:
        """Measure what the change concerns; the other cases need no clock after the first time.

        `count` replicas, this one included, are to come.
        """
        pool = self.pool
        while True:
            if pool.room == 1:
                self._await_nearby()
            if self._open_of(ids):
                self.get_ahead(count)
            if self.place.site.kind == "cpu":
                # There they would disturb each other.
                self._await_nearby()
            if not (open_ids := self._open_of(ids)):
                return self._all({})
            if self._abandoned:
                raise NotComparable("abandoned")
            if not pool.replicas:
                # They ended with what tried shapes nearby.
                continue
            replica = pool.replicas[0]
            self._join_alone(replica)
            try:
                cases = replica.measure(
                    open_ids,
                    self._arms.random,
                    pool.await_leaving,
                    self._look_ahead,
                    self._sustained,
                )
            except Refused as refused:
                self._go_on_after(refused, replica)
                continue
            return self._take(replica, cases)

    def _take(self, replica: Replica, cases: dict[str, CaseQuads]) -> dict[str, CaseQuads]:
        """Take a replica's cases over, and have it end."""
        self._measured += 1
        self.held_seconds += replica.held_seconds
        self.tried += replica.tried
        self.pool.dismiss(replica)
        self._same |= {nodeid: quads for nodeid, quads in cases.items() if quads.is_same}
        self._beside_alone.take(cases)
        self._progress.advance()
        return self._all(cases)

    def _go_on_after(self, refused: Refused, replica: Replica) -> None:
        then = after_refusal(
            str(refused),
            are_orphans=replica.are_orphans,
            is_crowded=self.pool.is_crowded,
            has_company=replica is self._beside_alone.replica,
        )
        if then is Then.ALL_AGAIN:
            self.pool.close()
            return
        self.pool.stop()
        if then is Then.ONE_AT_A_TIME:
            self.pool.room = 1
        elif then is Then.OTHERWISE and not self._abandoned:
            self._arms.fall_back(replica.how, refused)

    def _open_of(self, ids: Collection[str]) -> list[str]:
        return [nodeid for nodeid in self.place.ids if nodeid in ids and nodeid not in self._same]

    def _all(self, cases: Mapping[str, CaseQuads]) -> dict[str, CaseQuads]:
        """Return all cases: of those that were not timed, that they were not."""
        settled = {**self._same, **cases}
        return {nodeid: settled.get(nodeid) or CaseQuads(nodeid, "") for nodeid in self.place.ids}

    def _look_ahead(self, cases: Mapping[str, CaseQuads]) -> None:
        """Have the incumbent alone start up next to the next replica while this one is measured."""
        self._beside_alone.look(cases)
        if self.pool.replicas[1:]:
            self._join_alone(self.pool.replicas[1])

    def _join_alone(self, replica: Replica) -> None:
        """Have the incumbent timed alone next to a replica, if that is due and can be."""
        if self._beside_alone.is_due and self.pool.join_alone(replica):
            self._beside_alone.replica = replica

    def _await_nearby(self) -> None:
        """Wait for what is tried near the declared shapes; what ends it there is only told."""
        if self._same.keys() >= {*self.place.ids}:
            self.pool.end_nearby()
            return
        self.try_nearby()
        if (nearby := self.pool.nearby) is None:
            return
        tried = nearby.wait()
        if self._abandoned:
            raise NotComparable("abandoned")
        if nearby.are_orphans:
            self.pool.close()
            self._await_nearby()
            return
        self.pool.end_nearby()
        self.tried += [shape for shape in tried if shape.nodeid in self.place.ids]
        self._same |= {i: CaseQuads(i, "", same=how) for i, how in nearby.same.items()}
        if nearby.died and nearby.died_in not in self.place.ids:
            # What ended it is not compared here.
            self._await_nearby()
            return
        self.died_nearby, self._tried_how = nearby.died, nearby.how
