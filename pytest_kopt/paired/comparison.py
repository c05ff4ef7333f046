"""A paired comparison as it runs: on each device one replica after the other, in fresh processes.

Every block is commanded from here, where no kernel code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

import pytest

from pytest_kopt.cases.details import tuning_flags
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, WorkerOrders
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Tried, held_out_findings, merged, untried
from pytest_kopt.paired.arms import Arms, Lane, Versions
from pytest_kopt.paired.replica import TWO_PROCESSES, Caught
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.paired.verifier_process import Refused
from pytest_kopt.processes.child import why_open
from pytest_kopt.processes.sites import Place, Site
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
        self._lanes = [
            Lane(self._arms, place, progress, most, _cores(place.site, lanes)) for place in lanes
        ]
        # A process that one of its threads started ends with that thread: they stay to the end.
        self._pool = ThreadPoolExecutor(len(self._lanes))

    @property
    def how(self) -> str:
        return self._arms.how

    @property
    def why_apart(self) -> str:
        """Why the current best is in no process with the candidate, "" where it is."""
        return "each version has a process of its own" if self.how == TWO_PROCESSES else ""

    @property
    def written(self) -> str:
        return self._arms.written

    @property
    def asks_more(self) -> bool:
        return self._arms.asks_more

    @property
    def _why_fresh(self) -> str:
        return next((why for lane in self._lanes if (why := lane.place.site.starter.why_fresh)), "")

    def to_document(self) -> dict[str, object]:
        """Return how the processes held the versions, and how long they held devices."""
        return {
            "compared_in": self.how,
            "why_two_processes": self._arms.why_two,
            "why_not_forked": self._why_fresh,
            "autotuned": self._arms.choices,
            "device_seconds": round(sum(lane.held_seconds for lane in self._lanes), 3),
        }

    @property
    def flags(self) -> list[str]:
        """The flags of a verdict that say how the processes held the versions."""
        flags = [why] if (why := why_open(self._arms.config)) else []
        if self.how == TWO_PROCESSES:
            bias = f"a bias of up to {KNOWN_BIAS_PCT:g} % is known"
            flags.insert(0, f"compared in two processes ({bias}): {self._arms.why_two}")
        flags += tuning_flags(self._arms.choices)
        if self._why_fresh:
            flags.append(f"each process was an interpreter of its own: {self._why_fresh}")
        return flags

    @property
    def tried(self) -> list[Tried]:
        return merged(shape for lane in self._lanes for shape in lane.tried)

    @property
    def untried(self) -> str:
        """Why inputs near the cases show nothing of the candidate, "" where they do."""
        unloaded = [nodeid for lane in self._lanes for nodeid in lane.unloaded_nearby]
        return f"{unloaded[0]}: no process could load it to try near inputs" if unloaded else ""

    def replicas(self, count: int) -> Iterator[dict[str, CaseQuads]]:
        """Yield `count` replicas, each the quads of every case by node id.

        Falls back to two processes for good; NotComparable where that fails too, Died or Caught
        where it is the candidate's doing.
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
        if self.why_apart:
            raise Refused(self.why_apart)
        return _merged(self._in_all_lanes(lambda lane: lane.in_company(gain)))

    def under_load(self, ids: Collection[str], turns: int) -> dict[str, CaseQuads]:
        """Measure cases at the sustained operating point, each version in some `turns`.

        In fresh processes: those of the replicas are gone. Raises as `replicas` does.
        """
        return _merged(self._in_all_lanes(lambda lane: lane.under_load(ids, turns)))

    def try_nearby(self) -> None:
        """Try the cases near their declared shapes; Caught for a candidate that was."""
        self._in_all_lanes(Lane.try_nearby)
        if caught := self._caught:
            raise Caught(caught)

    def findings_nearby(self, gains: Mapping[str, float]) -> Iterator[Finding]:
        """Yield what other shapes and inputs say of the candidate, whose `gains` are by node id."""
        yield from held_out_findings(self.tried, CANDIDATE, INCUMBENT, gains)
        yield from untried(self.tried)
        yield from [*filter(None, (lane.death_nearby for lane in self._lanes))][:1]
        yield from self._caught

    @property
    def _caught(self) -> list[Finding]:
        return [finding for lane in self._lanes for finding in lane.caught]

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


def _merged(parts: Iterable[Mapping[str, CaseQuads]]) -> dict[str, CaseQuads]:
    """Return the cases of all devices together."""
    return {nodeid: quads for part in parts for nodeid, quads in part.items()}


def _cores(site: Site, lanes: Sequence[Place]) -> int:
    """Return how many cores each lane on a host has for itself."""
    return max(1, site.cores // sum(place.site is site for place in lanes))
