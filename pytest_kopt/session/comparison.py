"""A paired comparison as it runs: fresh processes, blocks in random order, looks until it is clear.

Every block is commanded from here and every statistic computed here, where no kernel code runs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, PLACEBO, ArmsOrder
from pytest_kopt.decide.inference import QUADS, replica_ratio
from pytest_kopt.devices.lock import timing_lock
from pytest_kopt.honesty.heldout import Tried, merged
from pytest_kopt.session.brief import Brief
from pytest_kopt.session.child import Child, ChildDied

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

    `trees` are two trees of the incumbent; `changed` the paths below `root` that may differ. Where
    the trees were `rebuilt`, one process cannot hold both versions.
    """

    root: Path
    trees: tuple[Path, Path]
    changed: tuple[str, ...]
    rebuilt: bool = False


@dataclass(slots=True)
class CaseQuads:
    """One case in one replica: its quads, of the comparison and of the A/A control."""

    nodeid: str
    engine: str
    quads: list[Quad] = field(default_factory=list)
    control: list[Quad] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether the change does not concern the case, so that nothing was timed."""
        return not self.quads

    def ratio(self, way: str, *, control: bool = False) -> float:
        """Return the replica's log-ratio of a direction: forward, backward or step (both)."""
        if self.is_same:
            return 0.0
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
    """Measures replicas on demand, in one process a replica or, where that fails, in several."""

    def __init__(
        self,
        config: pytest.Config,
        brief: Brief,
        env: Mapping[str, str],
        ids: Sequence[str],
        versions: Versions,
    ) -> None:
        self._config = config
        self._brief = brief
        # Idle threads of waiting siblings would take the CPU from the one that is timed.
        self._env = {**env, "OMP_WAIT_POLICY": "PASSIVE"}
        self._ids = list(ids)
        self._versions = versions
        self._random = random.SystemRandom()
        self.how = TWO_PROCESSES if versions.rebuilt else ONE_PROCESS
        self.why_two = (
            "rebuild_command builds each version in its own tree" if versions.rebuilt else ""
        )
        self.device_seconds = 0.0
        self._same: set[str] = set()
        self._tried: list[Tried] = []
        self.died_nearby = ""
        self._asked: set[str] = set()

    @property
    def tried(self) -> list[Tried]:
        """What the first replica found at shapes near the declared ones."""
        return merged(self._tried)

    def replicas(self, count: int) -> Iterator[dict[str, CaseQuads]]:
        """Yield `count` replicas, each the quads of every case by node id.

        Falls back to two processes for good when the versions cannot live in one. Raises
        NotComparable when that does not work either.
        """
        waiting: list[_Replica] = []
        ahead = _AHEAD_ON_GPU if self._brief.device == "cuda" else 1
        try:
            for left in range(count, 0, -1):
                while len(waiting) < min(ahead, left):
                    waiting.append(self._start())
                replica = waiting.pop(0)
                try:
                    yield self._measure(replica)
                except _Refused as refused:
                    for stale in (replica, *waiting):
                        stale.stop()
                    waiting.clear()
                    if self.how == TWO_PROCESSES:
                        raise NotComparable(str(refused)) from None
                    self.how, self.why_two = TWO_PROCESSES, str(refused)
                    replica = self._start()
                    try:
                        yield self._measure(replica)
                    except _Refused as again:
                        raise NotComparable(f"{again} (in one process: {self.why_two})") from None
                finally:
                    replica.stop()
        finally:
            for stale in waiting:
                stale.stop()

    def _measure(self, replica: _Replica) -> dict[str, CaseQuads]:
        """Measure what the change concerns; the other cases need no clock after the first time."""
        ids = [nodeid for nodeid in self._ids if nodeid not in self._same]
        try:
            found = replica.measure(ids, self._random)
        except _DiedNearby as death:
            # The declared shapes decide; that one close by kills the process is only told.
            self.died_nearby = str(death)
            replica.stop()
            replica.replace_by(self._start())
            found = replica.measure(ids, self._random)
        self._tried += replica.tried
        self.device_seconds += replica.held_seconds
        self._same |= {nodeid for nodeid, quads in found.items() if quads.is_same}
        return {nodeid: found.get(nodeid) or CaseQuads(nodeid, "") for nodeid in self._ids}

    def _start(self) -> _Replica:
        versions = self._versions
        names = [CANDIDATE, INCUMBENT, PLACEBO]
        self._random.shuffle(names)
        near = self.how not in self._asked and not self.died_nearby
        self._asked.add(self.how)
        if self.how == ONE_PROCESS:
            order = ArmsOrder(
                tuple(names),
                str(versions.root),
                tuple(str(tree) for tree in versions.trees),
                versions.changed,
            )
            return _Replica([self._child(order, None, near)], self._brief.device)
        trees = {CANDIDATE: None, INCUMBENT: versions.trees[0], PLACEBO: versions.trees[1]}
        children = [self._alone(name, trees[name], near) for name in names]
        return _Replica(children, self._brief.device)

    def _alone(self, name: str, tree: Path | None, near: bool) -> Child:
        """Start a process that holds one arm, in a tree of the incumbent or in the project."""
        versions = self._versions
        order = ArmsOrder((name,))
        if tree is not None:
            order = ArmsOrder((name,), str(versions.root), changed=versions.changed)
        return self._child(order, tree, near)

    def _child(self, order: ArmsOrder, tree: Path | None, near: bool) -> Child:
        brief = replace(self._brief, arms=replace(order, held_out=near))
        env = dict(self._env)
        if tree is not None:
            env["TORCH_EXTENSIONS_DIR"] = str(tree / ".torch_extensions")
        moved = None if tree is None else (self._versions.root, tree)
        return Child(self._config, brief, env, self._ids, moved)


class _Refused(Exception):
    """A process could not hold the arms it was asked for."""


class _DiedNearby(Exception):
    """A process died while it tried a shape near a declared one."""


class _Replica:
    """The processes of one replica, which of them holds which arm, how long they had the device."""

    def __init__(self, children: list[Child], device: str) -> None:
        self._children = children
        self._device = device
        self.held_seconds = 0.0
        self.tried: list[Tried] = []

    def replace_by(self, other: _Replica) -> None:
        """Go on with another replica's processes."""
        self._children, self.tried = other._children, []

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

    def _case(self, nodeid: str, order: random.Random) -> CaseQuads:
        arms: dict[str, Child] = {}
        engine = ""
        with timing_lock(self._device):
            start = time.monotonic()
            for child in self._children:
                child.ask(nodeid, None)
                ready = _wait(child, "ready", "same")
                if ready["kind"] == "same":
                    _wait(child, "finished")
                    return CaseQuads(nodeid, engine)
                engine = ready["engine"]
                arms |= dict.fromkeys(ready["arms"], child)
            found = CaseQuads(nodeid, engine)
            for arm, child in arms.items():
                child.block(arm)
            for _ in range(QUADS):
                found.quads.append(_quad(arms, _MAIN, order))
                found.control.append(_quad(arms, _CONTROL, order))
            for child in self._children:
                child.release()
                try:
                    while (message := _wait(child, "tried", "finished"))["kind"] == "tried":
                        self.tried.append(Tried(**message["shape"]))
                except ChildDied as death:
                    raise _DiedNearby(f"{nodeid}: {death}".splitlines()[0]) from None
            self.held_seconds += time.monotonic() - start
        return found


def _quad(arms: Mapping[str, Child], pair: tuple[str, str], order: random.Random) -> Quad:
    """Run ABBA or BAAB, whichever the dice say."""
    a, b = pair if order.random() < 0.5 else pair[::-1]
    return [(arm, arms[arm].block(arm)) for arm in (a, b, b, a)]


def _wait(child: Child, *kinds: str) -> dict[str, Any]:
    """Read messages up to one of these kinds; a refusal or a failed case ends the replica."""
    while True:
        message = child.receive()
        if message["kind"] in kinds:
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
