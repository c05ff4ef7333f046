"""A paired comparison as it runs: on each device one runner after the other, in fresh processes.

Every block is commanded from here, where no kernel code runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

import pytest

from pytest_kopt.cases.details import tuning_flags
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, WorkerOrders
from pytest_kopt.cases.protocol import Looks
from pytest_kopt.decide.inference import KNOWN_BIAS_PCT, LOOKS
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import (
    NO_MEMORY_LEFT,
    Tried,
    held_out_findings,
    merged,
    untried,
)
from pytest_kopt.paired.arms import Arms, NotComparable, Versions
from pytest_kopt.paired.judge import Caught, Judge, Refused
from pytest_kopt.paired.nearby import Nearby
from pytest_kopt.paired.runner import TWO_PROCESSES, Runner
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.processes.child import MAX_DEATHS, NO_MEMORY, Children, why_open
from pytest_kopt.processes.remote_host import Site
from pytest_kopt.processes.sites import Place
from pytest_kopt.show.progress import Progress

_Result = TypeVar("_Result")
#: At most so many processes share the cases that are tried near their inputs on the CPU. On a GPU
#: several would wait for each other's kernels.
_NEARBY_AT_ONCE = 8
#: Runners that are there at once, so that one starts up while another is measured.
_AT_ONCE_ON_GPU = 2
#: A version that gains so much in a replicate, as a log-ratio, is likely to be kept: with the next
#: one the incumbent alone is timed as well, which is asked of whatever is kept.
_GAIN = math.log1p(0.01)


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
        """Why nobody knows whether results of the candidate are right, "" where that is known."""
        if why := next((lane.why_unjudged for lane in self._lanes if lane.why_unjudged), ""):
            return f"results of timed calls could not be judged: {why}"
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

        In the processes of the replica before, where these are there still; else in fresh ones.
        Raises as `replicas` does.
        """
        return _merged(self._in_all_lanes(lambda lane: lane.under_load(ids, turns)))

    def try_nearby(self) -> None:
        """Try the cases near their declared shapes; Caught for a candidate that was."""
        self._in_all_lanes(Lane.try_nearby)
        if caught := self._caught:
            raise Caught(caught)

    def judge_postponed(self) -> None:
        """Have judged what timed calls gave where the candidate lost; Caught where it is wrong."""
        self._in_all_lanes(Lane.judge_postponed)

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


class Lane:
    """The cases of one device, and the processes that measure them.

    A thread uses it, since all it does is wait for processes; another thread may abandon it.
    """

    def __init__(
        self, arms: Arms, place: Place, progress: Progress, most: int, cores: int = 1
    ) -> None:
        """Measure the cases of a place; `cores` of its host are for them alone.

        See Comparison for the rest.
        """
        self.place = place
        self._arms = arms
        self._progress = progress
        self._most = most
        self._cores = cores
        #: The runners of replicates to come, in their order; one of them may be at work.
        self._runners: list[Runner] = []
        #: The last that was measured: it may be asked for more as long as no other is.
        self._last: Runner | None = None
        self._leaving: Runner | None = None
        self._judge: Judge | None = None
        self._nearby: Nearby | None = None
        #: Whether processes find the memory that they need next to others.
        self._has_room = True
        self._abandoned = False
        #: Cases that the change does not concern.
        self._same: dict[str, CaseQuads] = {}
        self._measured = 0
        #: The gain in the last replicate, as a log-ratio.
        self._gain = 0.0
        self._had_company = False
        #: By node id, the incumbent alone and the candidate as they were timed in company.
        self._alone: dict[str, CaseQuads] = {}
        #: By case, how the versions could not be held to try shapes nearby, "" where these are.
        self._nearby_tried: dict[str, str] = {}
        self.held_seconds = 0.0
        #: What was looked at where the candidate lost: it is judged if the version would be kept.
        self._postponed: list[Looks] = []
        self.why_unjudged = ""
        self.tried: list[Tried] = []
        #: What the candidate was seen to change or to return while shapes nearby were tried.
        self.caught: list[Finding] = []
        #: Why shapes near the declared ones were no longer tried: one of them ended a process.
        self.death_nearby: Finding | None = None

    def measure(self, count: int) -> list[dict[str, CaseQuads]]:
        """Return that many replicates of all cases, one after the other.

        Cases that the change does not concern need no clock after the first time. After a replicate
        with a gain the incumbent is timed alone next to one, and the outside clock is asked there.
        """
        replicas: list[dict[str, CaseQuads]] = []
        while len(replicas) < count:
            self._dismiss_last()
            if not (ids := self._open_ids):
                replicas.append(self._all({}))
                continue
            runner = self._next(count - len(replicas))
            if self._abandoned:
                raise NotComparable("abandoned")
            gain = self._gain if self._gain > _GAIN and not self._had_company else None
            has_company = gain is not None and runner.takes_company
            self._had_company |= has_company
            try:
                cases = self._run(runner, ids, to_witness=gain)
            except Refused as refused:
                self._go_on_after(refused, runner, had_company=has_company)
                continue
            self._measured += 1
            self._runners.remove(runner)
            self._last = runner
            self._note(cases, had_company=has_company)
            self._progress.advance()
            replicas.append(self._all(cases))
        return replicas

    def in_company(self, gain: float) -> dict[str, CaseQuads]:
        """Return one replicate of what the change concerns, with the incumbent alone next to it.

        The part that a replicate with a gain has measured of it already comes first.
        """
        measured, self._alone = self._alone, {}
        ids = self._open_ids
        if measured.keys() >= {*ids}:
            return measured
        # With all arms, as in a round: what holds the incumbent up there does so here.
        with self._lone_runner(ids) as runner:
            return self._run(runner, ids, to_witness=gain)

    def under_load(self, asked: Collection[str], turns: int) -> dict[str, CaseQuads]:
        """Return what cases gain under load, where each version runs alone in its `turns`."""
        ids = [nodeid for nodeid in self.place.ids if nodeid in asked]
        while ids:
            if self._abandoned:
                raise NotComparable("abandoned")
            last = self._last
            with self._lone_runner(ids, last) as runner:
                try:
                    return self._run(runner, ids, turns=turns)
                except Refused as refused:
                    # One that rested since its replicate says nothing of how versions are held.
                    if runner is not last or runner.are_orphans:
                        self._go_on_after(refused, runner)
        return {}

    def try_nearby(self) -> None:
        """Try the cases near their declared shapes, and learn what ended a process there.

        It goes on behind a case in which the current best ends a process as well.
        """
        found, deaths = list[Tried](), 0
        while (left := self._left_nearby) and not self.death_nearby and deaths < MAX_DEATHS:
            is_cpu = self.place.site.kind == "cpu"
            room = min(_NEARBY_AT_ONCE, self._cores) if is_cpu else 1
            place = self.place._replace(ids=left)
            nearby = self._nearby = self._arms.start_nearby(place, room=room)
            with self._progress.during("wait", "near shapes"):
                tried = nearby.wait()
            if self._abandoned:
                raise NotComparable("abandoned")
            self._end_nearby()
            if nearby.are_orphans:
                continue
            if self._last and any(shape.untried == NO_MEMORY_LEFT for shape in tried):
                # The runner that rests holds memory that they lack.
                self._dismiss_last()
                self._await_leaving()
                continue
            found = [shape for shape in found if shape.nodeid not in left] + tried
            self.caught += nearby.caught
            self._nearby_tried |= dict.fromkeys(nearby.unloaded, nearby.how)
            self._nearby_tried |= dict.fromkeys(nearby.through, "")
            if nearby.died:
                deaths += 1
                self.death_nearby = self._death(nearby)
        self.tried += found

    def judge_postponed(self) -> None:
        """Have judged what replicates left; `why_unjudged` says why no process could."""
        with self._progress.during("judge", "judge"):
            while self._judge is not None and self._postponed:
                looks = self._postponed.pop()
                try:
                    self._judge.await_loaded(looks.nodeid)
                    self.tried += self._judge.tried_in(looks)
                except Refused as reason:
                    self.why_unjudged = str(reason)

    def abandon(self) -> None:
        """End all processes, from whatever thread."""
        self._abandoned = True
        running = (self._nearby, self._judge, self._last, *self._runners)
        _kill([children for children in running if children is not None])

    def close(self) -> None:
        self._stop()
        self._end_judge()

    @property
    def unloaded_nearby(self) -> list[str]:
        """The cases that could not be loaded where shapes near theirs were tried."""
        return [nodeid for nodeid, how in self._nearby_tried.items() if how]

    @property
    def _open_ids(self) -> list[str]:
        return [nodeid for nodeid in self.place.ids if nodeid not in self._same]

    def _all(self, cases: Mapping[str, CaseQuads]) -> dict[str, CaseQuads]:
        """Return all cases: of those that were not timed, that they were not."""
        settled = {**self._same, **cases}
        return {nodeid: settled[nodeid] for nodeid in self.place.ids}

    def _next(self, left: int) -> Runner:
        """Return the next runner; others of the `left` ones start and load meanwhile."""
        # Most comparisons end with their first look: what that does not need is not started.
        most = min(LOOKS) if self._measured < min(LOOKS) else self._most
        # On the CPU one that starts would disturb the one that is timed.
        is_ahead = self.place.site.kind == "cuda" and self._has_room
        at_once = min(_AT_ONCE_ON_GPU, self._cores, most - self._measured) if is_ahead else 1
        while len(self._runners) < max(1, at_once):
            self._start(self.place, self._measured + len(self._runners))
        for runner in self._runners[:left]:
            runner.load(self._open_ids[0])
        return self._runners[0]

    def _start(self, place: Place, number: int) -> Runner:
        """Start a runner of this number in the comparison, and a judge if that has died."""
        if self._judge is None or self._judge.has_died:
            self._end_judge()
            self._judge = self._arms.start_judge(self.place)
        self._runners.append(self._arms.start(place, self._judge, number))
        return self._runners[-1]

    def _run(
        self,
        runner: Runner,
        ids: Sequence[str],
        turns: int = 0,
        to_witness: float | None = None,
    ) -> dict[str, CaseQuads]:
        """Have a runner measure cases once the one before it is gone."""
        self._await_leaving()
        try:
            cases = runner.measure(ids, self._arms.random, turns, to_witness)
            self._postponed += runner.postponed
            return cases
        finally:
            self.held_seconds += runner.held_seconds
            self.tried += runner.tried

    def _note(self, cases: Mapping[str, CaseQuads], *, had_company: bool) -> None:
        """Note what is the same, what was gained, and what was timed of the incumbent alone.

        A process that holds the candidate may say that it holds that one as well.
        """
        self._same |= {nodeid: quads for nodeid, quads in cases.items() if quads.same}
        for quads in cases.values():
            alone = quads.quads.pop("alone", None)
            if alone and had_company:
                pairs = {"alone": alone, CANDIDATE: quads.quads[CANDIDATE]}
                self._alone[quads.nodeid] = replace(quads, quads=pairs, outside=(), looks=[])
                quads.singles, quads.brought = [], []
        gains = [case.ratio("step") for case in cases.values() if CANDIDATE in case.quads]
        self._gain = fmean(gains) if gains else 0.0

    def _go_on_after(self, refused: Refused, runner: Runner, *, had_company: bool = False) -> None:
        """Prepare for what a runner could not do to be tried again, perhaps in another way."""
        if runner.are_orphans:
            # Whatever was forked ended with its parent: all of it is started again.
            self.close()
            return
        is_crowded = bool(self._runners[1:])
        self._stop()
        if is_crowded and NO_MEMORY in str(refused):
            self._has_room = False
        elif not (had_company or self._abandoned):
            # What has company may have failed for that: the incumbent alone is not loaded again.
            self._arms.fall_back(runner.how, refused)

    @contextmanager
    def _lone_runner(self, ids: Sequence[str], last: Runner | None = None) -> Iterator[Runner]:
        """Yield the last runner, or a new one of these cases; end all others, then that one."""
        if last:
            self._last = None
        self._stop()
        try:
            if last:
                self._runners.append(last)
            yield last or self._start(self.place._replace(ids=[*ids]), self._measured)
        finally:
            self._stop()

    def _dismiss_last(self) -> None:
        """Have the last runner end while others go on."""
        if self._last:
            self._last.dismiss()
            self._leaving, self._last = self._last, None

    def _await_leaving(self) -> None:
        """Wait for the last runner to be gone: what ends on a device disturbs a timing there."""
        if self._leaving:
            self._leaving.stop()
            self._leaving = None

    def _stop(self) -> None:
        """End all but the judge: one that loads or waits for its turn would not listen."""
        self._end_nearby()
        self._dismiss_last()
        _kill(self._runners)
        self._await_leaving()
        for runner in self._runners:
            runner.stop()
        self._runners = []

    def _end_judge(self) -> None:
        """End the judge, whose folder has the files of what was postponed."""
        if self._postponed:
            self.why_unjudged = "the process that judges died"
            self._postponed.clear()
        if self._judge is not None:
            self._judge.end()
            self._judge = None

    def _end_nearby(self) -> None:
        if self._nearby is not None:
            self._nearby.end()
            self._nearby = None

    @property
    def _left_nearby(self) -> list[str]:
        """The cases that are still to be tried nearby, as the versions are held now."""
        gone = "", self._arms.how
        left = [i for i in self._open_ids if self._nearby_tried.get(i) not in gone]
        return left if self._arms.asks_more else []

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


def _cores(site: Site, lanes: Sequence[Place]) -> int:
    """Return how many cores each lane on a host has for itself."""
    return max(1, site.cores // sum(place.site is site for place in lanes))


def _kill(running: Collection[Children]) -> None:
    """Kill them at once: a process takes a while to let go of its GPU."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda children: children.kill(), running))
