"""A paired comparison as it runs: fresh processes, blocks in random order, looks until it is clear.

Every block is commanded from here and every statistic computed here, where no kernel code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

import pytest

from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT, LOOKS
from pytest_kopt.honesty.nearby_shapes import Tried, merged
from pytest_kopt.paired.arms import TWO_PROCESSES, Arms, Versions
from pytest_kopt.paired.lane import AT_ONCE_ON_GPU, Lane
from pytest_kopt.paired.replica import Refused
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.processes.child import why_open
from pytest_kopt.processes.remote_host import Place
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
        self._arms = Arms(config, orders, versions)
        self._progress = progress
        self._lanes = [Lane(self._arms, place, progress, most) for place in lanes]
        self._share_cores()
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
    def died_nearby(self) -> str:
        return next((lane.died_nearby for lane in self._lanes if lane.died_nearby), "")

    @property
    def device_seconds(self) -> float:
        return sum(lane.held_seconds for lane in self._lanes)

    @property
    def why_fresh(self) -> str:
        return next((why for lane in self._lanes if (why := lane.place.site.starter.why_fresh)), "")

    @property
    def flags(self) -> list[str]:
        """What a verdict says of how the processes were held."""
        flags = [why] if (why := why_open(self._arms.config)) else []
        if self.how == TWO_PROCESSES:
            bias = f"a bias of up to {KNOWN_BIAS_PCT:g} % is known"
            flags.insert(0, f"compared in two processes ({bias}): {self.why_two}")
        if self.why_fresh:
            flags.append(f"each process was an interpreter of its own: {self.why_fresh}")
        return flags

    @property
    def tried(self) -> list[Tried]:
        return merged(shape for lane in self._lanes for shape in lane.tried)

    def narrow(self, places: Sequence[Place]) -> bool:
        """Compare these cases alone, each on its device; say whether they can be compared here."""
        lane_places = {
            lane: place
            for place in places
            for lane in self._lanes
            if lane.place.site is place.site
            and lane.place.device == place.device
            and {*place.ids} <= {*lane.place.ids}
        }
        if len(lane_places) < len(places):
            return False
        for lane in self._lanes:
            if lane in lane_places:
                lane.pool.place = lane_places[lane]
            else:
                lane.close()
        self._lanes = [*lane_places]
        self._share_cores()
        return True

    def _share_cores(self) -> None:
        sites = [lane.place.site for lane in self._lanes]
        for lane, site in zip(self._lanes, sites, strict=True):
            room = site.cores // sum(neighbour is site for neighbour in sites)
            lane.pool.ahead = max(1, min(AT_ONCE_ON_GPU, room)) if site.kind == "cuda" else 1

    def get_ahead(self) -> None:
        """Start the first replicas; on the CPU, where they disturb, only try shapes nearby."""
        for lane in self._lanes:
            lane.try_nearby()
            if lane.place.site.kind != "cpu":
                lane.get_ahead(min(LOOKS) if len(self._lanes) == 1 else 0)
                lane.pool.start_spare()

    def replicas(
        self, count: int, only: Collection[str] | None = None
    ) -> Iterator[dict[str, CaseQuads]]:
        """Yield `count` replicas, each the quads of every case by node id, or of `only` some.

        Falls back to two processes for good; NotComparable where that fails too, CandidateDied or
        Caught where it is the candidate's doing.
        """
        measured = self._in_all_lanes(lambda lane: lane.measure(count, only))
        for parts in zip(*measured, strict=True):
            yield {nodeid: quads for part in parts for nodeid, quads in part.items()}

    def race(self, names: Collection[str]) -> None:
        self._arms.race(names)

    def in_company(self) -> dict[str, CaseQuads]:
        """Time the incumbent next to the candidate against itself alone; or Refused."""
        if self._arms.how == TWO_PROCESSES:
            raise Refused("each version has a process of its own")
        measured = self._in_all_lanes(lambda lane: lane.in_company())
        return {nodeid: quads for part in measured for nodeid, quads in part.items()}

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
            lane.close()
