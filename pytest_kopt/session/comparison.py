"""A paired comparison as it runs: fresh processes, blocks in random order, looks until it is clear.

Every block is commanded from here and every statistic computed here, where no kernel code runs.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, PLACEBO, ArmsOrder
from pytest_kopt.decide.inference import QUADS, replica_ratio
from pytest_kopt.devices.conditions import Conditions, steadily
from pytest_kopt.devices.lock import timing_lock
from pytest_kopt.devices.vendor import Device
from pytest_kopt.session.brief import Brief
from pytest_kopt.session.child import Child, ChildDied
from pytest_kopt.session.placement import Placement

#: Replicas that start up while another is measured; on the CPU they would disturb it.
_AHEAD_ON_GPU = 4
ONE_PROCESS, TWO_PROCESSES = "one process", "two processes"
_MAIN = (CANDIDATE, INCUMBENT)
_CONTROL = (PLACEBO, INCUMBENT)
#: Block times in ms: forward, and backward where the case has one.
Times = tuple[float, float | None]
Quad = list[tuple[str, Times]]


class NotComparable(Exception):
    """The two versions could not be measured this way; the message says why."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Where the two versions lie.

    `trees` are two overlay trees of the incumbent; `changed` the paths below `root` that may
    differ.
    """

    root: Path
    trees: tuple[Path, Path]
    changed: tuple[str, ...]


@dataclass(slots=True)
class CaseQuads:
    """One case in one replica: its quads, of the comparison and of the A/A control.

    `device` is the UUID of what measured it, `conditions` its state around that, `timed` from when
    to when it was measured alone (seconds since the epoch).
    """

    nodeid: str
    engine: str
    device: str = ""
    quads: list[Quad] = field(default_factory=list)
    control: list[Quad] = field(default_factory=list)
    conditions: Conditions | None = None
    timed: tuple[float, float] = (0.0, 0.0)

    def ratio(self, way: str, *, control: bool = False) -> float:
        """Return the replica's log-ratio of a direction: forward, backward or step (both)."""
        pair = _CONTROL if control else _MAIN
        quads = [
            [(arm, time_of(times, way)) for arm, times in quad]
            for quad in (self.control if control else self.quads)
        ]
        return replica_ratio(quads, *pair)


def time_of(times: Times, way: str) -> float:
    """Return a block's time of one direction in ms."""
    forward, backward = times
    if way == "forward" or backward is None:
        return forward
    return backward if way == "backward" else forward + backward


class Comparison:
    """Measures replicas on demand, in one process a replica or, where that fails, in several.

    Cases that were measured on different devices are measured there at the same time; a case and
    all its replicas stay on one device.
    """

    def __init__(
        self,
        config: pytest.Config,
        brief: Brief,
        env: Mapping[str, str],
        lanes: Mapping[Device, Sequence[str]],
        versions: Versions,
        placement: Placement,
    ) -> None:
        """Compare `versions` over the node ids of each device; `env` is what all processes get."""
        self._config = config
        self._brief = brief
        # Idle threads of waiting siblings would take the CPU from the one that is timed.
        self._env = {**env, "OMP_WAIT_POLICY": "PASSIVE"}
        self._versions = versions
        self._placement = placement
        self._falling_back = threading.Lock()
        self._lanes = [_Lane(self, device, list(ids)) for device, ids in lanes.items()]
        self.random = random.SystemRandom()
        self.how = ONE_PROCESS
        self.why_two = ""

    def replicas(self, count: int) -> Iterator[dict[str, CaseQuads]]:
        """Yield `count` replicas, each the quads of every case by node id.

        Falls back to two processes for good when the versions cannot live in one. Raises
        NotComparable when that does not work either.
        """
        with ThreadPoolExecutor(len(self._lanes)) as pool:
            running = [pool.submit(lane.measure, count) for lane in self._lanes]
            try:
                done, _ = wait(running, return_when=FIRST_EXCEPTION)
                # What went wrong in one lane comes before what that did to the others.
                for future in done:
                    future.result()
                measured = [future.result() for future in running]
            finally:
                for lane, future in zip(self._lanes, running, strict=True):
                    if not future.done():
                        lane.abandon()
        for parts in zip(*measured, strict=True):
            yield {nodeid: quads for part in parts for nodeid, quads in part.items()}

    def fall_back(self, how: str, reason: str) -> None:
        """Go on in two processes a replica; NotComparable where that is `how` it failed."""
        if how == TWO_PROCESSES:
            raise NotComparable(reason)
        with self._falling_back:
            if self.how == ONE_PROCESS:
                self.how, self.why_two = TWO_PROCESSES, reason

    def start(self, device: Device, ids: Sequence[str]) -> _Replica:
        """Start the processes of a replica of some cases on a device."""
        versions, how = self._versions, self.how
        names = [CANDIDATE, INCUMBENT, PLACEBO]
        self.random.shuffle(names)
        if how == ONE_PROCESS:
            trees = tuple(str(tree) for tree in versions.trees)
            order = ArmsOrder(tuple(names), str(versions.root), trees, versions.changed)
            children = [self._child(order, None, device, ids)]
        else:
            tree_of = {CANDIDATE: None, INCUMBENT: versions.trees[0], PLACEBO: versions.trees[1]}
            children = [
                self._child(ArmsOrder((name,)), tree_of[name], device, ids) for name in names
            ]
        return _Replica(children, how, device, self._placement)

    @property
    def ahead(self) -> int:
        """How many replicas of a lane start up before they are needed, the next one included."""
        return _AHEAD_ON_GPU if self._brief.device == "cuda" else 1

    def _child(
        self, order: ArmsOrder, tree: Path | None, device: Device, ids: Sequence[str]
    ) -> Child:
        brief = replace(self._brief, arms=order)
        env = self._env | self._placement.pin_to(device)
        if tree is not None:
            env["TORCH_EXTENSIONS_DIR"] = str(tree / ".torch_extensions")
        return Child(self._config, brief, env, ids, tree)


class _Lane:
    """The cases of one device; measured in a thread, since all it does is wait for processes."""

    def __init__(self, comparison: Comparison, device: Device, ids: list[str]) -> None:
        self._comparison = comparison
        self._device = device
        self._ids = ids
        self._started: list[_Replica] = []
        self._abandoned = False

    def measure(self, count: int) -> list[dict[str, CaseQuads]]:
        """Return that many replicas, one measured after the other."""
        try:
            return [self._one(left) for left in range(count, 0, -1)]
        finally:
            self._stop_all()

    def abandon(self) -> None:
        """End what is running, from another thread."""
        self._abandoned = True
        for replica in list(self._started):
            replica.kill()

    def _one(self, left: int) -> dict[str, CaseQuads]:
        comparison = self._comparison
        while True:
            while len(self._started) < min(comparison.ahead, left):
                self._started.append(comparison.start(self._device, self._ids))
            if self._abandoned:
                raise NotComparable("abandoned")
            replica = self._started[0]
            try:
                found = replica.measure(self._ids, comparison.random)
            except _Refused as refused:
                self._stop_all()
                if not self._abandoned:
                    comparison.fall_back(replica.how, str(refused))
                continue
            self._started.remove(replica)
            replica.stop()
            return found

    def _stop_all(self) -> None:
        while self._started:
            self._started.pop().stop()


class _Refused(Exception):
    """A process could not hold the arms it was asked for."""


class _Replica:
    """The processes of one replica, and which of them holds which arm."""

    def __init__(
        self, children: list[Child], how: str, device: Device, placement: Placement
    ) -> None:
        self._children = children
        self._device = device
        self._placement = placement
        self.how = how

    def measure(self, ids: Sequence[str], order: random.Random) -> dict[str, CaseQuads]:
        """Measure every case, one after the other, alone on the device."""
        try:
            for child in self._children:
                _wait(child, "collected")
            return {nodeid: self._case(nodeid, order) for nodeid in ids}
        except ChildDied as death:
            raise _Refused(f"a replica died: {death}") from None

    def stop(self) -> None:
        for child in self._children:
            child.stop()

    def kill(self) -> None:
        for child in self._children:
            child.kill()

    def _case(self, nodeid: str, order: random.Random) -> CaseQuads:
        device, placement = self._device, self._placement
        arms: dict[str, Child] = {}
        engine = ""
        with timing_lock(device.uuid):
            placement.keep_strangers_off(device)
            since = time.time()
            for child in self._children:
                child.ask(nodeid, None)
                ready = _wait(child, "ready")
                engine = ready["engine"]
                arms |= dict.fromkeys(ready["arms"], child)
            for arm, child in arms.items():
                child.block(arm)
            (quads, control), conditions = steadily(
                lambda: _quads(arms, order), lambda: placement.read(device)
            )
            for child in self._children:
                child.release()
                _wait(child, "finished")
            timed = (since, time.time())
        return CaseQuads(nodeid, engine, device.uuid, quads, control, conditions, timed)


def _quads(arms: Mapping[str, Child], order: random.Random) -> tuple[list[Quad], list[Quad]]:
    """Run the quads of a replica, the comparison's and the control's in turn."""
    found: tuple[list[Quad], list[Quad]] = ([], [])
    for _ in range(QUADS):
        found[0].append(_quad(arms, _MAIN, order))
        found[1].append(_quad(arms, _CONTROL, order))
    return found


def _quad(arms: Mapping[str, Child], pair: tuple[str, str], order: random.Random) -> Quad:
    """Run ABBA or BAAB, whichever the dice say."""
    a, b = pair if order.random() < 0.5 else pair[::-1]
    return [(arm, arms[arm].block(arm)) for arm in (a, b, b, a)]


def _wait(child: Child, kind: str) -> dict[str, Any]:
    """Read messages up to one of a kind; a refusal or a failed case on the way ends the replica."""
    while True:
        message = child.receive()
        if message["kind"] == kind:
            return message
        if message["kind"] == "refused":
            raise _Refused(message["reason"])
        if message["kind"] == "collect_error":
            raise _Refused(f"does not import: {_last_line(message['data'].get('longrepr'))}")
        if message["kind"] == "report" and message["data"]["outcome"] == "failed":
            raise _Refused(f"failed: {_last_line(message['data'].get('longrepr'))}")
        if message["kind"] == "finished":
            raise _Refused("the case never called kopt()")


def _last_line(longrepr: Any) -> str:
    crash = longrepr.get("reprcrash") if isinstance(longrepr, dict) else None
    text = str(crash["message"] if crash else longrepr).strip()
    return text.splitlines()[-1] if text else "no reason given"
