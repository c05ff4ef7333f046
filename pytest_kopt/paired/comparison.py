"""A paired comparison as it runs: fresh processes, blocks in random order, looks until it is clear.

Every block is commanded from here and every statistic computed here, where no kernel code runs.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO, ArmsOrder
from pytest_kopt.cases.seeds import derive
from pytest_kopt.decide.inference import LOOKS
from pytest_kopt.devices.vendor import Device
from pytest_kopt.honesty.heldout import Tried, merged
from pytest_kopt.paired.referee import Referee
from pytest_kopt.paired.replica import CaseQuads, Died, DiedNearby, Refused, Replica
from pytest_kopt.processes.child import MAX_DEATHS, NO_MEMORY, Child, why_open
from pytest_kopt.processes.site import Site
from pytest_kopt.processes.toolchain import Toolchain
from pytest_kopt.processes.worker_orders import WorkerOrders

#: Replicas that start up while another is measured; on the CPU they would disturb it.
_AHEAD_ON_GPU = 4
#: Idle threads of waiting siblings would take the CPU from the one that is timed.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
ONE_PROCESS, TWO_PROCESSES = "one process", "two processes"
_Result = TypeVar("_Result")


class NotComparable(Exception):
    """The two versions could not be measured this way; the message says why."""


class CandidateDied(Exception):
    """The candidate ended its process twice while `case`, a node id, was timed; says how."""

    def __init__(self, case: str, how: str) -> None:
        super().__init__(f"{case} killed its process twice: {how}")
        self.case = case


@dataclass(frozen=True, slots=True)
class Versions:
    """Where the versions lie.

    `trees` are two trees of the incumbent; `changed` the paths below `root` that may differ. Where
    the trees were `rebuilt`, one process cannot hold both versions. `extensions` is where torch
    builds what the incumbent compiles (None: in each tree). With an `other` toolchain the incumbent
    is the project itself in processes of that. In a race the project itself
    is the incumbent, the first tree its copy, and the others hold the candidates in `raced`.
    """

    root: Path
    trees: tuple[Path, ...]
    changed: tuple[str, ...]
    rebuilt: bool = False
    extensions: Path | None = None
    other: Toolchain | None = None
    raced: tuple[str, ...] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of the arms: the project's own, then those of the trees."""
        return (INCUMBENT, PLACEBO, *self.raced) if self.raced else (CANDIDATE, INCUMBENT, PLACEBO)


class Comparison:
    """Measures replicas on demand, in one process a replica or, where that fails, in several.

    Cases that were measured on different devices are measured there at the same time, also those
    of different hosts; a case and all its replicas stay on one device.
    """

    def __init__(
        self,
        config: pytest.Config,
        orders: WorkerOrders,
        lanes: Sequence[tuple[Site, Device, Sequence[str]]],
        versions: Versions,
        progress: Callable[[], None],
        over: Callable[[], None],
        most: int,
    ) -> None:
        """Compare `versions` over the node ids of each device.

        `progress` is called after every measured replica, from the thread of its device, `over`
        where the comparison is left. `most` is how many replicas there can be: some are started
        before it is known that they are needed. What is still running is ended where the
        comparison, a context manager, is left.
        """
        self._config = config
        self.progress = progress
        self._over = over
        self._orders = orders
        self._numbers = itertools.count()
        self._versions = versions
        self._falling_back = threading.Lock()
        self.most = most
        self._lanes = [_Lane(self, site, device, list(ids)) for site, device, ids in lanes]
        # A process that one of its threads started ends with that thread: they stay to the end.
        self._pool = ThreadPoolExecutor(len(self._lanes))
        self.random = random.SystemRandom()
        self.how, self.why_two = ONE_PROCESS, ""
        if versions.rebuilt:
            self.why_two = "rebuild_command builds each version in its own tree"
        if versions.other:
            self.why_two = "each interpreter runs processes of its own"
        if self.why_two:
            self.how = TWO_PROCESSES
        self._deaths = 0
        #: Why shapes near the declared ones are no longer tried: one of them ended a process.
        self.died_nearby = ""

    @property
    def device_seconds(self) -> float:
        """How long the replicas had their devices to themselves, all devices together."""
        return sum(lane.held_seconds for lane in self._lanes)

    @property
    def why_fresh(self) -> str:
        """Why the processes were not forked, "" where they were."""
        return next((why for lane in self._lanes if (why := lane.site.starter.why_fresh)), "")

    @property
    def why_open(self) -> str:
        """Why the processes were not kept to their own files, "" where they were."""
        return why_open(self._config)

    @property
    def tried(self) -> list[Tried]:
        """What each lane's first replica found at shapes near the declared ones."""
        return merged(item for lane in self._lanes for item in lane.tried)

    @property
    def tries_nearby(self) -> bool:
        """Whether shapes near the declared ones are still tried; a race's winner is asked later."""
        return not self.died_nearby and not self._versions.raced

    def ahead(self, site: Site) -> int:
        """Return how many replicas of a host's lane are started before they are needed.

        The next one is included.
        """
        room = site.cores // sum(lane.site is site for lane in self._lanes)
        return max(1, min(_AHEAD_ON_GPU, room)) if site.kind == "cuda" else 1

    def narrow(self, lanes: Sequence[tuple[Site, Device, Sequence[str]]]) -> bool:
        """Compare these cases alone, each on its device; say whether they can be compared here."""
        found = {
            index: ids
            for site, device, ids in lanes
            for index, lane in enumerate(self._lanes)
            if lane.site is site and lane.device == device and {*ids} <= {*lane.ids}
        }
        if len(found) < len(lanes):
            return False
        for index, lane in enumerate(self._lanes):
            lane.ids = list(found.get(index, ()))
            if not lane.ids:
                lane.close()
        self._lanes = [lane for lane in self._lanes if lane.ids]
        return True

    def get_ahead(self) -> None:
        """Start the first replicas now, so that they wait when the first look asks for them."""
        for lane in self._lanes:
            lane.get_ahead(min(LOOKS) if len(self._lanes) == 1 else 0)

    def replicas(
        self, count: int, only: Collection[str] | None = None
    ) -> Iterator[dict[str, CaseQuads]]:
        """Yield `count` replicas, each the quads of every case by node id, or of `only` some.

        Falls back to two processes for good when the versions cannot live in one. Raises
        NotComparable when that does not work either, CandidateDied when it is the candidate that
        ends its processes, and Caught when it was caught.
        """
        measured = self._in_all_lanes(lambda lane: lane.measure(count, only))
        for parts in zip(*measured, strict=True):
            yield {nodeid: quads for part in parts for nodeid, quads in part.items()}

    def in_company(self) -> dict[str, CaseQuads]:
        """Time the incumbent beside the candidate against itself in a process of its own, once.

        Raises Refused where that cannot be: the versions are in two processes anyhow, or the
        incumbent does not run in its own tree.
        """
        if self.how == TWO_PROCESSES:
            raise Refused("each version has a process of its own")
        measured = self._in_all_lanes(lambda lane: lane.in_company())
        return {nodeid: quads for part in measured for nodeid, quads in part.items()}

    def _in_all_lanes(self, work: Callable[[_Lane], _Result]) -> list[_Result]:
        running = [self._pool.submit(work, lane) for lane in self._lanes]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            # What went wrong in one lane comes before what that does to the others.
            for future in done:
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
        self._over()

    def close(self) -> None:
        """End what was started and is not needed any more."""
        for lane in self._lanes:
            lane.abandon()
        self._pool.shutdown()
        for lane in self._lanes:
            lane.close()

    def fall_back(self, how: str, refused: Refused) -> None:
        """Go on in two processes a replica; NotComparable where that is `how` it failed.

        A process of the candidate's own is replaced once: it may be anybody's doing.
        """
        reason = str(refused)
        with self._falling_back:
            if isinstance(refused, Died):
                self._deaths += 1
                if refused.case is not None and self._deaths >= MAX_DEATHS:
                    raise CandidateDied(refused.case, refused.death)
                if refused.case is not None:
                    return
            if self._versions.raced:
                raise NotComparable(reason)
            if how == TWO_PROCESSES:
                first = f" (in one process: {self.why_two})" if self.why_two else ""
                raise NotComparable(reason if self._versions.rebuilt else f"{reason}{first}")
            if self.how == ONE_PROCESS:
                self.how, self.why_two = TWO_PROCESSES, reason

    def start_referee(self, site: Site, device: Device, ids: Sequence[str]) -> Referee:
        """Start the process that judges what replicas of some cases look at."""
        versions = self._versions

        def start() -> Child:
            orders = self._fresh_orders(site)
            return self._alone((), versions.trees[0], site, device, ids, False, orders)

        why = "another interpreter may draw other inputs from a seed" if versions.other else ""
        return Referee(start, why)

    def start(
        self, site: Site, device: Device, ids: Sequence[str], near: bool, referee: Referee
    ) -> Replica:
        """Start the processes of a replica of some cases on a host's device.

        With `near` they also try shapes near the declared ones.
        """
        versions, how = self._versions, self.how
        orders = self._fresh_orders(site)
        names = list(versions.arms)
        self.random.shuffle(names)
        if how == ONE_PROCESS:
            children = [self._together(names, site, device, ids, near, orders)]
        else:
            tree_of = {CANDIDATE: None, INCUMBENT: versions.trees[0], PLACEBO: versions.trees[1]}
            held = {
                name: self._alone((name,), tree_of[name], site, device, ids, near, orders)
                for name in names
            }
            children = list(held.values())
        alone = None if how == ONE_PROCESS else held[CANDIDATE]
        seed = orders.session_seed
        return Replica(children, how, device, site.placement, referee, seed, alone)

    def start_company(
        self, site: Site, device: Device, ids: Sequence[str], referee: Referee
    ) -> Replica:
        """Start a process with both versions, and one in which the incumbent is alone."""
        orders, names = self._fresh_orders(site), [CANDIDATE, INCUMBENT]
        self.random.shuffle(names)
        both = self._together(names, site, device, ids, False, orders)
        alone = self._alone((ALONE,), self._versions.trees[0], site, device, ids, False, orders)
        seed = orders.session_seed
        return Replica([both, alone], self.how, device, site.placement, referee, seed)

    def _fresh_orders(self, site: Site) -> WorkerOrders:
        # No content comes in two replicas: a kernel's processes could pass answers on.
        seed = derive(self._orders.session_seed, "", f"replica {next(self._numbers)}")
        return replace(self._orders, session_seed=seed, device=site.kind)

    def _together(
        self,
        names: Sequence[str],
        site: Site,
        device: Device,
        ids: Sequence[str],
        near: bool,
        orders: WorkerOrders,
    ) -> Child:
        """Start a process that holds several arms."""
        versions = self._versions
        trees = tuple(str(site.tree(versions.root, tree)) for tree in versions.trees)
        root = str(site.path(versions.root))
        own, *others = versions.arms
        order = ArmsOrder(
            tuple(names),
            root,
            trees,
            versions.changed,
            near,
            orders.measure_same,
            own,
            tuple(others),
        )
        return self._child(replace(orders, arms=order), None, site, device, ids)

    def _alone(
        self,
        names: tuple[str, ...],
        tree: Path | None,
        site: Site,
        device: Device,
        ids: Sequence[str],
        near: bool,
        orders: WorkerOrders,
    ) -> Child:
        """Start a process that holds one arm, in a tree of the incumbent or in the project.

        Without a name it is a referee.
        """
        versions = self._versions
        order = ArmsOrder(names, held_out=near)
        if tree is not None and versions.other:
            site, tree = replace(site, starter=versions.other), None
        if tree is not None:
            root = str(site.path(versions.root))
            order = replace(order, root=root, changed=versions.changed)
        return self._child(replace(orders, arms=order), tree, site, device, ids)

    def _child(
        self,
        orders: WorkerOrders,
        tree: Path | None,
        site: Site,
        device: Device,
        ids: Sequence[str],
    ) -> Child:
        env = {**site.environment, **_PASSIVE, **site.placement.pin_to(device)}
        copy = site.copy(self._versions.root, tree)
        if tree is not None and copy is not None:
            held = self._versions.extensions if copy[1] == tree else None
            env["TORCH_EXTENSIONS_DIR"] = str(held or copy[1] / ".torch_extensions")
        return Child(self._config, orders, env, ids, copy, site.starter)


class _Lane:
    """The cases of one device; measured in a thread, since all it does is wait for processes."""

    def __init__(self, comparison: Comparison, site: Site, device: Device, ids: list[str]) -> None:
        self.site = site
        self._comparison = comparison
        self.device = device
        self.ids = ids
        self._same: set[str] = set()
        self._started: list[Replica] = []
        self._held_referee: Referee | None = None
        self._leaving: Replica | None = None
        self._abandoned = False
        self._measured = 0
        #: How many may be there at once; one where they did not find the memory they need.
        self._most = _AHEAD_ON_GPU
        self._asked_near: set[str] = set()
        self.held_seconds = 0.0
        self.tried: list[Tried] = []

    def measure(self, count: int, only: Collection[str] | None) -> list[dict[str, CaseQuads]]:
        """Return that many replicas of all cases or of `only` some, one after the other."""
        asked = self.ids if only is None else only
        return [self._one(asked, due) for due in range(count, 0, -1)]

    def get_ahead(self, due: int) -> None:
        """Start replicas before they are needed; those that are `due` load their first case."""
        while len(self._started) < self._wanted():
            self._started.append(self._start())
        first = next(nodeid for nodeid in self.ids if nodeid not in self._same)
        for replica in self._started[:due]:
            replica.load(first)

    def in_company(self) -> dict[str, CaseQuads]:
        """Return one replica of what the change concerns, the incumbent alone beside it."""
        self.stop_all()
        wanted = [nodeid for nodeid in self.ids if nodeid not in self._same]
        if not wanted:
            return {}
        referee = self._referee()
        replica = self._comparison.start_company(self.site, self.device, wanted, referee)
        self._started.append(replica)
        try:
            replica.load(wanted[0])
            return replica.measure(wanted, self._comparison.random, self._await_leaving)
        finally:
            self.held_seconds += replica.held_seconds
            self.stop_all()

    def abandon(self) -> None:
        """End what is running, from another thread."""
        self._abandoned = True
        if (referee := self._held_referee) is not None:
            referee.kill()
        self._kill_all()

    def _kill_all(self) -> None:
        if started := list(self._started):
            # At once: a process takes a while to let go of its GPU.
            with ThreadPoolExecutor(len(started)) as pool:
                list(pool.map(Replica.kill, started))

    def _referee(self) -> Referee:
        """Return what judges this lane's replicas; one that died is replaced."""
        if self._held_referee is not None and self._held_referee.has_died:
            self._drop_referee()
        if self._held_referee is None:
            comparison = self._comparison
            self._held_referee = comparison.start_referee(self.site, self.device, self.ids)
        return self._held_referee

    def _one(self, asked: Collection[str], due: int) -> dict[str, CaseQuads]:
        """Measure what the change concerns; the other cases need no clock after the first time."""
        comparison = self._comparison
        while True:
            wanted = [i for i in self.ids if i in asked and i not in self._same]
            if not wanted:
                return {nodeid: CaseQuads(nodeid, "") for nodeid in self.ids}
            self.get_ahead(due)
            if self._abandoned:
                raise NotComparable("abandoned")
            replica = self._started[0]
            forked = not self.site.starter.why_fresh
            try:
                found = replica.measure(wanted, comparison.random, self._await_leaving)
            except DiedNearby as death:
                # The declared shapes decide; that one close by ends the process is only told.
                comparison.died_nearby = str(death)
                self.stop_all()
                continue
            except Refused as refused:
                crowded = len(self._started) > 1
                self.stop_all()
                orphaned = forked and isinstance(refused, Died) and self._lost_parent()
                if orphaned:
                    self._drop_referee()
                if crowded and NO_MEMORY in str(refused):
                    self._most = 1
                elif not (self._abandoned or orphaned):
                    comparison.fall_back(replica.how, refused)
                continue
            self._started.remove(replica)
            self._await_leaving()
            replica.dismiss()
            self._leaving = replica
            self._measured += 1
            self.held_seconds += replica.held_seconds
            self.tried += replica.tried
            self._same |= {nodeid for nodeid, quads in found.items() if quads.is_same}
            comparison.progress()
            return {nodeid: found.get(nodeid) or CaseQuads(nodeid, "") for nodeid in self.ids}

    def _lost_parent(self) -> bool:
        """Say whether forks ended with their parent, which tells nothing of what they held."""
        # It ends a moment after them.
        time.sleep(0.05)
        return bool(self.site.starter.why_fresh)

    def _wanted(self) -> int:
        """Return how many replicas there should be, started and not measured yet.

        Most verdicts need no more than a first look: until then what ends is not replaced, since
        what wakes on a device disturbs who is timed there.
        """
        most = min(self._most, self._comparison.ahead(self.site))
        if self._measured < min(LOOKS):
            most -= self._measured
        return max(1, min(most, self._comparison.most - self._measured))

    def _start(self) -> Replica:
        comparison = self._comparison
        near = comparison.tries_nearby and comparison.how not in self._asked_near
        self._asked_near.add(comparison.how)
        return comparison.start(self.site, self.device, self.ids, near, self._referee())

    def _await_leaving(self) -> None:
        """Wait for the last replica to be gone: what ends on a device disturbs a timing there."""
        if self._leaving:
            self._leaving.stop()
            self._leaving = None

    def close(self) -> None:
        """End all that is left."""
        self.stop_all()
        self._drop_referee()

    def _drop_referee(self) -> None:
        if (referee := self._held_referee) is not None:
            referee.kill()
            referee.stop()
            self._held_referee = None

    def stop_all(self) -> None:
        """End all: one that loads or waits for its turn would not listen."""
        self._kill_all()
        self._await_leaving()
        while self._started:
            self._started.pop().stop()
