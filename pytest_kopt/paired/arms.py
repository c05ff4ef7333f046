"""The versions of a paired comparison, the processes that hold them, and the lane of a device.

A lane measures one replica after the other, in fresh processes.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import pytest

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, PLACEBO, ArmsOrder, WorkerOrders
from pytest_kopt.decide.inference import LOOKS
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.paired.nearby import Nearby
from pytest_kopt.paired.replica import (
    ONE_PROCESS,
    TWO_PROCESSES,
    Clocks,
    Died,
    During,
    Replica,
    untold,
)
from pytest_kopt.paired.samples import CaseQuads
from pytest_kopt.paired.verifier_process import Refused, Verifier
from pytest_kopt.processes.child import MAX_DEATHS, NO_MEMORY, Child, Children
from pytest_kopt.processes.sites import Place
from pytest_kopt.show.progress import Progress
from pytest_kopt.versions.executed_files import BUILD_IN_PLACE
from pytest_kopt.versions.tree import BUILDS, Tree

#: Idle threads of waiting siblings would take the CPU from the one that is timed.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
#: At most so many processes share the cases that are tried near their shapes while nobody times.
_NEARBY_AT_ONCE = 8
#: Replicas that are there at once, so that one starts up while another is measured.
AT_ONCE_ON_GPU = 2
#: A version that gains so much in a replica, as a log-ratio, is likely to be kept: the next one is
#: measured with the incumbent alone beside it, which is asked of whatever is kept.
_GAIN = math.log1p(0.01)

_BUILD = (
    "set kopt_rebuild_command in pytest's settings (at the base first), in a campaign "
    "rebuild_command in its manifest: python setup.py build_ext --inplace"
)


class NotComparable(Exception):
    """The two versions could not be measured this way; `fix` is what to do, "" if unknown."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Versions:
    """The places of the versions.

    `trees` are two trees of the incumbent; `changed` the paths below `root` that may differ. If the
    trees were `rebuilt`, one process cannot hold both versions. `extensions` is where torch builds
    what the incumbent compiles (None: in each tree). In a race the project itself is the incumbent,
    the first tree its copy, and the others hold the candidates in `raced`. `own` is a tree of the
    project in which its own version runs, with other tests around it (None: it runs in the
    project).
    """

    trees: tuple[Tree, ...]
    changed: tuple[str, ...]
    rebuilt: bool = False
    extensions: Path | None = None
    raced: tuple[str, ...] = ()
    own: Tree | None = None

    @property
    def root(self) -> Path:
        """The project's."""
        return self.trees[0].root

    @property
    def written(self) -> str:
        """A path in a tree that was written since it was made, "" where there is none."""
        return next((path for tree in self.trees for path in tree.written), "")

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of the arms: the project's own, then those of the trees."""
        return (INCUMBENT, PLACEBO, *self.raced) if self.raced else (CANDIDATE, INCUMBENT, PLACEBO)


class Arms:
    """Starts a replica in one process or, where the versions cannot live in one, in several."""

    def __init__(
        self,
        config: pytest.Config,
        orders: WorkerOrders,
        versions: Versions,
        during: During = untold,
    ) -> None:
        """Start processes by these orders; `during` puts what they do into a timeline."""
        self.config = config
        self._during = during
        self._orders = orders
        expected = orders.expected or ()
        #: The orders of processes that hold a candidate: no seed, nothing of what is judged by.
        self._blind = replace(
            orders,
            session_seed=0,
            expected=orders.expected and tuple(replace(c, accuracy={}) for c in expected),
        )
        self._versions = versions
        self._falling_back = threading.Lock()
        self.random = random.SystemRandom()
        self.how, self.why_two = ONE_PROCESS, ""
        if versions.rebuilt:
            self.why_two = "rebuild_command builds each version in its own tree"
            self.how = TWO_PROCESSES
        self._deaths = 0
        #: Candidates of a race that are out; processes that were started before hold them still.
        self._out: set[str] = set()
        self._clocks = Clocks()

    @property
    def written(self) -> str:
        """A path in the current best's trees that was written since they were made."""
        return self._versions.written

    @property
    def asks_more(self) -> bool:
        """Whether more is asked than times; of a race's winner later."""
        return not self._versions.raced

    @property
    def choices(self) -> Mapping[str, Mapping[str, str]]:
        """The configurations that autotuned kernels of both versions run with."""
        return self._orders.preset_choices

    def race(self, names: Collection[str]) -> None:
        versions = self._versions
        copy, *trees = versions.trees
        racing = [(n, t) for n, t in zip(versions.raced, trees, strict=True) if n in names]
        self._out |= {*versions.raced} - {*names}
        raced = tuple(name for name, _ in racing)
        self._versions = replace(versions, trees=(copy, *(tree for _, tree in racing)), raced=raced)

    def fall_back(self, how: str, refused: Refused) -> None:
        """Go on in two processes a replica; NotComparable where that is `how` it failed.

        A process of the candidate's own is replaced once: it may be anybody's doing.
        """
        reason = str(refused)
        with self._falling_back:
            if isinstance(refused, Died):
                self._deaths += 1
                if refused.case and self._deaths >= MAX_DEATHS:
                    why = f"{refused.case} killed its process twice: {refused.how}"
                    raise Died(why, refused.how, refused.case)
                if refused.case:
                    return
            if self._versions.raced:
                raise NotComparable(reason) from refused
            if how == TWO_PROCESSES:
                first = f" (in one process: {self.why_two})" if self.why_two else ""
                fix = _BUILD if BUILD_IN_PLACE in reason else ""
                raise NotComparable(reason if self._versions.rebuilt else f"{reason}{first}", fix)
            if self.how == ONE_PROCESS:
                self.how, self.why_two = TWO_PROCESSES, reason

    def start(self, place: Place, verifier: Verifier, number: int) -> Replica:
        """Start the processes of the replica of this number, which holds all arms."""
        how, order = self.how, ArmsOrder((), replica=number)
        children_of = self._holding(place, how, [*self._versions.arms], order)
        candidates = None if how == ONE_PROCESS else children_of[CANDIDATE]
        during = partial(self._during, process=f"replicate {number + 1}")
        return Replica(children_of, place, verifier, candidates, self._out, self._clocks, during)

    def start_nearby(
        self,
        place: Place,
        seed: int | None = None,
        of: Collection[str] = (CANDIDATE, INCUMBENT),
        room: int = 1,
    ) -> Nearby:
        """Start what tries versions at shapes near those of some cases, drawn under a seed.

        Up to `room` processes share the cases, if one holds both versions.
        """
        how, asked = TWO_PROCESSES if len(of) == 1 else self.how, dict[Child, list[str]]()
        count = 1 if how == TWO_PROCESSES else room
        for number in range(min(count, len(place.ids)) or 1):
            own = place._replace(ids=place.ids[number::count])
            children_of = self._holding(own, how, [*of], ArmsOrder(()))
            asked |= dict.fromkeys(children_of.values(), own.ids)
        seed = self.random.getrandbits(62) if seed is None else seed
        return Nearby(asked, how, place.ids, seed)

    def start_verifier(self, place: Place) -> Verifier:
        versions = self._versions
        start = partial(self._alone, place, ArmsOrder(()), versions.trees[0])
        fresh = partial(self._alone, place, ArmsOrder((CANDIDATE,)), versions.own)
        return Verifier(start, None if versions.raced else fresh)

    def _holding(
        self, place: Place, how: str, names: list[str], order: ArmsOrder
    ) -> dict[str, Child]:
        """Start the processes that hold these arms, in whatever order; one, or one for each."""
        self.random.shuffle(names)
        versions, site = self._versions, place.site
        if how == TWO_PROCESSES:
            tree_of = dict(zip(versions.arms, (versions.own, *versions.trees), strict=True))
            return {
                name: self._alone(place, replace(order, names=(name,)), tree_of[name])
                for name in names
            }
        own_arm, *tree_arms = versions.arms
        order = replace(
            order,
            names=tuple(names),
            root=str(site.path(versions.root)),
            tree=str(site.tree(versions.root, versions.own.place)) if versions.own else "",
            trees=tuple(str(site.tree(versions.root, tree.place)) for tree in versions.trees),
            changed=versions.changed,
            project_version=own_arm,
            tree_versions=tuple(tree_arms),
        )
        return dict.fromkeys(names, self._child(place, order, versions.own))

    def _alone(self, place: Place, order: ArmsOrder, tree: Tree | None) -> Child:
        """Start a process that holds one arm, in a tree of the incumbent or in the project."""
        versions, site = self._versions, place.site
        order = replace(
            order,
            root=str(site.path(versions.root)),
            tree=str(site.tree(versions.root, tree.place)) if tree else "",
            changed=versions.changed,
            # What a build makes of a change is not seen in the sources.
            concerning=() if versions.rebuilt else versions.changed,
        )
        return self._child(place, order, tree)

    def _child(self, place: Place, order: ArmsOrder, tree: Tree | None) -> Child:
        site, device, ids = place
        orders = self._orders if order.is_verifier else self._blind
        env = site.environment_on(device) | _PASSIVE
        copy = site.copy(self._versions.root, tree.place if tree else None)
        if tree is not None and copy is not None:
            is_shared = copy[1] == tree.place and tree is not self._versions.own
            extensions = self._versions.extensions if is_shared else None
            env["TORCH_EXTENSIONS_DIR"] = str(extensions or copy[1] / BUILDS)
        orders = replace(orders, device=site.kind, arms=order)
        return Child(self.config, orders, env, ids, copy, site.starter)


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
        #: The replicas to come, in their order; one of them may be at work.
        self._replicas: list[Replica] = []
        #: The last that was measured: it may be asked for more as long as no other is.
        self._last: Replica | None = None
        self._leaving: Replica | None = None
        self._verifier: Verifier | None = None
        self._nearby: Nearby | None = None
        #: Whether processes find the memory that they need next to others.
        self._has_room = True
        self._abandoned = False
        #: Cases that the change does not concern.
        self._same: dict[str, CaseQuads] = {}
        self._measured = 0
        #: The gain in the last replica, as a log-ratio.
        self._gain = 0.0
        self._had_company = False
        #: By node id, the incumbent alone and the candidate as they were timed in company.
        self._alone: dict[str, CaseQuads] = {}
        #: By case, how the versions could not be held to try shapes nearby, "" where these are.
        self._nearby_tried: dict[str, str] = {}
        self.held_seconds = 0.0
        self.tried: list[Tried] = []
        #: What the candidate was seen to change or to return while shapes nearby were tried.
        self.caught: list[Finding] = []
        #: Why shapes near the declared ones were no longer tried: one of them ended a process.
        self.death_nearby: Finding | None = None

    def measure(self, count: int) -> list[dict[str, CaseQuads]]:
        """Return that many replicas of all cases, one after the other.

        Cases that the change does not concern need no clock after the first time. After a replica
        with a gain the incumbent is timed alone next to one, and the outside clock is asked there.
        """
        replicas: list[dict[str, CaseQuads]] = []
        while len(replicas) < count:
            self._dismiss_last()
            if not (ids := self._open_ids):
                replicas.append(self._all({}))
                continue
            replica = self._next(count - len(replicas))
            if self._abandoned:
                raise NotComparable("abandoned")
            gain = self._to_witness(replica)
            try:
                cases = self._run(replica, ids, to_witness=gain)
            except Refused as refused:
                self._go_on_after(refused, replica, had_company=gain is not None)
                continue
            self._measured += 1
            self._replicas.remove(replica)
            self._last = replica
            self._note(cases, had_company=gain is not None)
            self._progress.advance()
            replicas.append(self._all(cases))
        return replicas

    def in_company(self, gain: float) -> dict[str, CaseQuads]:
        """Return one replica of what the change concerns, with the incumbent alone next to it.

        The part that a replica with a gain has measured of it already comes first.
        """
        measured, self._alone = self._alone, {}
        ids = self._open_ids
        if measured.keys() >= {*ids}:
            return measured
        # With all arms, as in a round: what holds the incumbent up there does so here.
        with self._lone_replica(ids) as replica:
            return self._run(replica, ids, to_witness=gain)

    def under_load(self, asked: Collection[str], turns: int) -> dict[str, CaseQuads]:
        """Return what cases gain under load, where each version runs alone in its `turns`."""
        ids = [nodeid for nodeid in self.place.ids if nodeid in asked]
        while ids:
            if self._abandoned:
                raise NotComparable("abandoned")
            with self._lone_replica(ids, self._last) as replica:
                try:
                    return self._run(replica, ids, turns=turns)
                except Refused as refused:
                    self._go_on_after(refused, replica)
        return {}

    def try_nearby(self) -> None:
        """Try the cases near their declared shapes, and learn what ended a process there."""
        died = None
        while left := self._left_nearby:
            room = min(_NEARBY_AT_ONCE, self._cores) if self._has_room else 1
            place = self.place._replace(ids=left)
            nearby = self._nearby = self._arms.start_nearby(place, room=room)
            with self._progress.during("wait", "near shapes"):
                tried = nearby.wait()
            if self._abandoned:
                raise NotComparable("abandoned")
            self._end_nearby()
            if nearby.are_orphans:
                continue
            self._has_room &= not nearby.short_of_memory
            self.tried += tried
            self.caught += nearby.caught
            self._nearby_tried |= dict.fromkeys(nearby.unloaded, nearby.how)
            self._nearby_tried |= dict.fromkeys(nearby.through, "")
            died = nearby if nearby.died else died
        if died is not None:
            self.death_nearby = self._death(died)

    def abandon(self) -> None:
        """End all processes, from whatever thread."""
        self._abandoned = True
        running = (self._nearby, self._verifier, self._last, *self._replicas)
        _kill([children for children in running if children is not None])

    def close(self) -> None:
        self._stop()
        self._end_verifier()

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
        return {nodeid: settled.get(nodeid) or CaseQuads(nodeid, "") for nodeid in self.place.ids}

    def _next(self, left: int) -> Replica:
        """Return the next replica; others of the `left` ones start and load meanwhile."""
        # Most comparisons end with their first look: what that does not need is not started.
        most = min(LOOKS) if self._measured < min(LOOKS) else self._most
        # On the CPU one that starts would disturb the one that is timed.
        is_ahead = self.place.site.kind == "cuda" and self._has_room
        at_once = min(AT_ONCE_ON_GPU, self._cores, most - self._measured) if is_ahead else 1
        while len(self._replicas) < max(1, at_once):
            self._start(self.place, self._measured + len(self._replicas))
        for replica in self._replicas[:left]:
            replica.load(self._open_ids[0])
        return self._replicas[0]

    def _start(self, place: Place, number: int) -> Replica:
        """Start a replica of this number in the comparison, and what judges it if that has died."""
        if self._verifier is None or self._verifier.has_died:
            self._end_verifier()
            self._verifier = self._arms.start_verifier(self.place)
        self._replicas.append(self._arms.start(place, self._verifier, number))
        return self._replicas[-1]

    def _to_witness(self, replica: Replica) -> float | None:
        """Return, once, the gain that a replica is to show next to the incumbent alone."""
        is_due = self._gain > _GAIN and not self._had_company
        if not (is_due and self._arms.asks_more and replica.how == ONE_PROCESS):
            return None
        self._had_company = True
        return self._gain

    def _run(
        self,
        replica: Replica,
        ids: Sequence[str],
        turns: int = 0,
        to_witness: float | None = None,
    ) -> dict[str, CaseQuads]:
        """Have a replica measure cases once the one before it is gone."""
        self._await_leaving()
        try:
            return replica.measure(ids, self._arms.random, turns, to_witness)
        finally:
            self.held_seconds += replica.held_seconds
            self.tried += replica.tried

    def _note(self, cases: Mapping[str, CaseQuads], *, had_company: bool) -> None:
        """Note what is the same, what was gained, and what was timed of the incumbent alone.

        A process that holds the candidate may say that it holds that one as well.
        """
        self._same |= {nodeid: quads for nodeid, quads in cases.items() if quads.is_same}
        for quads in cases.values():
            alone = quads.quads.pop("alone", None)
            if alone and had_company:
                pairs = {"alone": alone, CANDIDATE: quads.quads[CANDIDATE]}
                self._alone[quads.nodeid] = replace(quads, quads=pairs, outside=(), looks=[])
        gains = [case.ratio("step") for case in cases.values() if CANDIDATE in case.quads]
        self._gain = fmean(gains) if gains else 0.0

    def _go_on_after(
        self, refused: Refused, replica: Replica, *, had_company: bool = False
    ) -> None:
        """Prepare for what a replica could not do to be tried again, perhaps in another way."""
        if replica.are_orphans:
            # Whatever was forked ended with its parent: all of it is started again.
            self.close()
            return
        is_crowded = bool(self._replicas[1:])
        self._stop()
        if is_crowded and NO_MEMORY in str(refused):
            self._has_room = False
        elif not (had_company or self._abandoned):
            # What has company may have failed for that: the incumbent alone is not loaded again.
            self._arms.fall_back(replica.how, refused)

    @contextmanager
    def _lone_replica(self, ids: Sequence[str], last: Replica | None = None) -> Iterator[Replica]:
        """Yield the last replica, or a new one of these cases; end all others, then that one."""
        if last:
            self._last = None
        self._stop()
        try:
            if last:
                self._replicas.append(last)
            yield last or self._start(self.place._replace(ids=[*ids]), self._measured)
        finally:
            self._stop()

    def _dismiss_last(self) -> None:
        """Have a measured replica end while others go on."""
        if self._last:
            self._last.dismiss()
            self._leaving, self._last = self._last, None

    def _await_leaving(self) -> None:
        """Wait for the last replica to be gone: what ends on a device disturbs a timing there."""
        if self._leaving:
            self._leaving.stop()
            self._leaving = None

    def _stop(self) -> None:
        """End all but the verifier: one that loads or waits for its turn would not listen."""
        self._end_nearby()
        self._dismiss_last()
        _kill(self._replicas)
        self._await_leaving()
        for replica in self._replicas:
            replica.stop()
        self._replicas = []

    def _end_verifier(self) -> None:
        if self._verifier is not None:
            self._verifier.end()
            self._verifier = None

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


def _kill(running: Collection[Children]) -> None:
    """Kill them at once: a process takes a while to let go of its GPU."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda children: children.kill(), running))
