"""A paired comparison as it runs: on each device one replica after the other, in fresh processes.

Every block is commanded from here, where no kernel code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import pytest

from pytest_kopt.cases.details import tuning_flags
from pytest_kopt.cases.order import INCUMBENT, WorkerOrders
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT, LOOKS
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Tried, merged
from pytest_kopt.paired.arms import (
    Arms,
    NotComparable,
    Pool,
    Then,
    Versions,
    after_refusal,
)
from pytest_kopt.paired.nearby import Nearby
from pytest_kopt.paired.replica import TWO_PROCESSES, BesideAlone, Caught, Replica
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.paired.verifier_process import Refused
from pytest_kopt.processes.child import why_open
from pytest_kopt.processes.sites import Place
from pytest_kopt.show.progress import Progress

_Result = TypeVar("_Result")


class Comparison:
    """Measures replicas on demand, each in one process or, where that fails, in several.

    Cases that were measured on different devices are measured there at the same time, also those
    of different hosts; a case and all its replicas stay on one device.
    """

    def __init__(
        self,
        config: pytest.Config,
        orders: WorkerOrders,
        lanes: Sequence[Place],
        versions: Versions,
        progress: Progress,
        most: int,
    ) -> None:
        """Compare `versions` over the node ids of each device.

        `progress` is shown every measured replica, from the thread of its device, and where the
        comparison is left. `most` is how many replicas there can be: some are started before it is
        known that they are needed. Leaving the comparison, a context manager, ends what is still
        running.
        """
        self._arms = Arms(config, orders, versions, progress.during)
        self._progress = progress
        self._lanes = [Lane(self._arms, place, progress, most) for place in lanes]
        sites = [place.site for place in lanes]
        for lane, site in zip(self._lanes, sites, strict=True):
            lane.pool.cores = max(1, site.cores // sum(neighbour is site for neighbour in sites))
        # A process that one of its threads started ends with that thread: they stay to the end.
        self._pool = ThreadPoolExecutor(len(self._lanes))

    @property
    def how(self) -> str:
        return self._arms.how

    @property
    def why_two(self) -> str:
        return self._arms.why_two

    @property
    def written(self) -> str:
        return self._arms.written

    @property
    def death_nearby(self) -> Finding | None:
        return next(filter(None, (lane.death_nearby for lane in self._lanes)), None)

    @property
    def choices(self) -> Mapping[str, Mapping[str, str]]:
        return self._arms.choices

    @property
    def device_seconds(self) -> float:
        return sum(lane.held_seconds for lane in self._lanes)

    @property
    def why_fresh(self) -> str:
        return next((why for lane in self._lanes if (why := lane.place.site.starter.why_fresh)), "")

    @property
    def asks_more(self) -> bool:
        return self._arms.asks_more

    @property
    def flags(self) -> list[str]:
        """The flags of a verdict that say how the processes held the versions."""
        flags = [why] if (why := why_open(self._arms.config)) else []
        if self.how == TWO_PROCESSES:
            bias = f"a bias of up to {KNOWN_BIAS_PCT:g} % is known"
            flags.insert(0, f"compared in two processes ({bias}): {self.why_two}")
        flags += tuning_flags(self.choices)
        if self.why_fresh:
            flags.append(f"each process was an interpreter of its own: {self.why_fresh}")
        return flags

    @property
    def tried(self) -> list[Tried]:
        return merged(shape for lane in self._lanes for shape in lane.tried)

    def replicas(self, count: int) -> Iterator[dict[str, CaseQuads]]:
        """Yield `count` replicas, each the quads of every case by node id.

        Falls back to two processes for good; NotComparable where that fails too, CandidateDied or
        Caught where it is the candidate's doing.
        """
        measured = self._in_all_lanes(lambda lane: lane.measure(count))
        for parts in zip(*measured, strict=True):
            yield _merged(parts)

    def race(self, names: Collection[str]) -> None:
        self._arms.race(names)

    def in_company(self, gain: float) -> dict[str, CaseQuads]:
        """Time the incumbent next to the candidate against itself alone; or Refused.

        The outside clock is to tell a `gain` of the candidate, as a log-ratio.
        """
        if self._arms.how == TWO_PROCESSES:
            raise Refused("each version has a process of its own")
        return _merged(self._in_all_lanes(lambda lane: lane.in_company(gain)))

    def under_load(self, ids: Collection[str], turns: int) -> dict[str, CaseQuads]:
        """Measure cases at the sustained operating point, each version in some `turns`.

        In fresh processes: those of the replicas are gone. Raises as `replicas` does.
        """
        return _merged(self._in_all_lanes(lambda lane: lane.under_load(ids, turns)))

    @property
    def caught(self) -> list[Finding]:
        """The findings about the candidate that trials of shapes nearby gave."""
        return [finding for lane in self._lanes for finding in lane.caught]

    def try_nearby(self) -> None:
        """Try the cases near their declared shapes; Caught for a candidate that was."""
        self._in_all_lanes(Lane.try_nearby)
        if caught := self.caught:
            raise Caught(caught)

    def _in_all_lanes(self, work: Callable[[Lane], _Result]) -> list[_Result]:
        running = [self._pool.submit(work, lane) for lane in self._lanes]
        try:
            finished, _ = wait(running, return_when=FIRST_EXCEPTION)
            # What went wrong in one lane comes before what that does to the others.
            for future in finished:
                future.result()
            return [future.result() for future in running]
        finally:
            for lane, future in zip(self._lanes, running, strict=True):
                if not future.done():
                    lane.abandon()

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        self._progress.begin("deciding")

    def close(self) -> None:
        for lane in self._lanes:
            lane.abandon()
        self._pool.shutdown()
        for lane in self._lanes:
            lane.pool.close()


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
        self._beside_alone = BesideAlone()
        self._abandoned = False
        self._measured = 0
        self.held_seconds = 0.0
        #: By case, how the versions could not be held to try shapes nearby, "" where these are.
        self._nearby_tried: dict[str, str] = {}
        self.tried: list[Tried] = []
        #: What the candidate was seen to change or to return while these were tried.
        self.caught: list[Finding] = []
        self._died_nearby: Nearby | None = None
        #: Why shapes near the declared ones were no longer tried: one of them ended a process.
        self.death_nearby: Finding | None = None

    @property
    def place(self) -> Place:
        return self.pool.place

    def measure(self, count: int) -> list[dict[str, CaseQuads]]:
        """Return that many replicas of all cases, one after the other."""
        return [self._one(left) for left in range(count, 0, -1)]

    def get_ahead(self, count: int) -> None:
        """Start replicas before they are needed; the next `count` load their first case."""
        # Most comparisons end with their first look: what that does not need is not started.
        most = min(LOOKS) if self._measured < min(LOOKS) else self._most
        self.pool.fill(self._measured, most - self._measured)
        first = self._open_cases[0]
        for replica in self.pool.replicas[:count]:
            replica.load(first)

    def in_company(self, gain: float) -> dict[str, CaseQuads]:
        """Return one replica of what the change concerns, with the incumbent alone next to it.

        The part that a replica with a gain has measured of it already comes first.
        """
        measured, self._beside_alone.quads = self._beside_alone.quads, {}
        ids = self._open_cases
        if measured.keys() >= {*ids}:
            return measured
        # With all arms, as in a round: what holds the incumbent up there does so here.
        with self._lone_replica(ids) as replica:
            replica.join(self._arms.start_alone(self.place._replace(ids=ids)))
            replica.to_witness = gain
            return replica.measure(ids, self._arms.random, self.pool.await_leaving)

    def under_load(self, asked: Collection[str], turns: int) -> dict[str, CaseQuads]:
        """Return what cases gain under load, where each version runs alone in its `turns`."""
        ids = [nodeid for nodeid in self.place.ids if nodeid in asked]
        while ids:
            if self._abandoned:
                raise NotComparable("abandoned")
            with self._lone_replica(ids) as replica:
                clear = self.pool.await_leaving
                try:
                    return replica.measure(ids, self._arms.random, clear, turns=turns)
                except Refused as refused:
                    self._go_on_after(refused, replica)
        return {}

    @contextmanager
    def _lone_replica(self, ids: Sequence[str]) -> Iterator[Replica]:
        """Start a replica of these cases, and end all processes but the verifier."""
        self.pool.stop()
        replica = self.pool.start(self.place._replace(ids=[*ids]), self._measured)
        try:
            yield replica
        finally:
            self.held_seconds += replica.held_seconds
            self.tried += replica.tried
            self.pool.stop()

    def abandon(self) -> None:
        self._abandoned = True
        self.pool.kill()

    def try_nearby(self) -> None:
        """Try the cases near their declared shapes, and learn what ended a process there."""
        while left := self._left_nearby:
            self._take_nearby(self.pool.start_nearby(left))
        if self._died_nearby is not None:
            self.death_nearby = self._death(self._died_nearby)

    def _one(self, count: int) -> dict[str, CaseQuads]:
        """Measure what the change concerns; the other cases need no clock after the first time.

        `count` replicas, this one included, are to come.
        """
        pool = self.pool
        while True:
            if self._open_cases:
                self.get_ahead(count)
            if not (open_ids := self._open_cases):
                return self._all({})
            if self._abandoned:
                raise NotComparable("abandoned")
            replica = pool.replicas[0]
            self._join_alone(replica)
            beside = self._beside_alone
            # It is still due where the incumbent cannot be timed alone.
            if beside.is_due or beside.replica is replica:
                replica.to_witness = beside.gain
            try:
                cases = replica.measure(open_ids, self._arms.random, pool.await_leaving)
            except Refused as refused:
                self._go_on_after(refused, replica)
                continue
            self._measured += 1
            self.held_seconds += replica.held_seconds
            self.tried += replica.tried
            pool.dismiss(replica)
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

    @property
    def _open_cases(self) -> list[str]:
        return [nodeid for nodeid in self.place.ids if nodeid not in self._same]

    def _all(self, cases: Mapping[str, CaseQuads]) -> dict[str, CaseQuads]:
        """Return all cases: of those that were not timed, that they were not."""
        settled = {**self._same, **cases}
        return {nodeid: settled.get(nodeid) or CaseQuads(nodeid, "") for nodeid in self.place.ids}

    def _join_alone(self, replica: Replica) -> None:
        """Have the incumbent timed alone next to a replica, if that is due and can be."""
        if self._beside_alone.is_due and self.pool.join_alone(replica):
            self._beside_alone.replica = replica

    @property
    def _left_nearby(self) -> list[str]:
        """The cases that are still to be tried nearby, as the versions are held now."""
        gone = "", self._arms.how
        left = [i for i in self._open_cases if self._nearby_tried.get(i) not in gone]
        return left if self._arms.asks_more else []

    def _take_nearby(self, nearby: Nearby) -> None:
        """Wait for the end of what tries shapes nearby, and note what it found."""
        with self._progress.during("wait", "near shapes"):
            tried = nearby.wait()
        if self._abandoned:
            raise NotComparable("abandoned")
        self.pool.end_nearby()
        if nearby.are_orphans:
            return
        if nearby.short_of_memory:
            self.pool.room = 1
        self.tried += tried
        self.caught += nearby.caught
        self._nearby_tried |= dict.fromkeys(nearby.unloaded, nearby.how)
        self._nearby_tried |= dict.fromkeys(nearby.through, "")
        if nearby.died:
            self._died_nearby = nearby

    def _death(self, nearby: Nearby) -> Finding | None:
        """Return what the end of a process says, None if the current best alone ends one too."""
        place = self.place._replace(ids=[nearby.died_in])
        alone = self._arms.start_nearby(place, nearby.seed, of=[INCUMBENT])
        try:
            alone.wait()
        finally:
            alone.end()
        return None if alone.died else nearby.death


def _merged(parts: Iterable[Mapping[str, CaseQuads]]) -> dict[str, CaseQuads]:
    """Return the cases of all devices together."""
    return {nodeid: quads for part in parts for nodeid, quads in part.items()}
