"""The versions of a paired comparison, and the processes that are started to hold them."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, PLACEBO, ArmsOrder, WorkerOrders
from pytest_kopt.paired.judge import Judge, Refused
from pytest_kopt.paired.nearby import Nearby
from pytest_kopt.paired.runner import (
    ONE_PROCESS,
    TWO_PROCESSES,
    Clocks,
    Died,
    During,
    Runner,
    untold,
)
from pytest_kopt.processes.child import MAX_DEATHS, Child
from pytest_kopt.processes.sites import Place
from pytest_kopt.versions.executed_files import BUILD_IN_PLACE
from pytest_kopt.versions.tree import BUILDS, Tree

#: Idle threads of waiting siblings would take the CPU from the one that is timed.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}

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
                    why = f"{refused.case} ended its process twice: {refused.how}"
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

    def start(self, place: Place, judge: Judge, number: int) -> Runner:
        """Start the processes of the replica of this number, which holds all arms."""
        how, order = self.how, ArmsOrder((), replica=number)
        children_of = self._holding(place, how, [*self._versions.arms], order)
        candidates = None if how == ONE_PROCESS else children_of[CANDIDATE]
        during = partial(self._during, process=f"replicate {number + 1}")
        return Runner(children_of, place, judge, candidates, self._out, self._clocks, during)

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

    def start_judge(self, place: Place) -> Judge:
        versions = self._versions
        start = partial(self._alone, place, ArmsOrder(()), versions.trees[0])
        fresh = partial(self._alone, place, ArmsOrder((CANDIDATE,)), versions.own)
        return Judge(start, None if versions.raced else fresh)

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
        orders = self._orders if order.is_judge else self._blind
        env = site.environment_on(device) | _PASSIVE
        copy = site.copy(self._versions.root, tree.place if tree else None)
        if tree is not None and copy is not None:
            is_shared = copy[1] == tree.place and tree is not self._versions.own
            extensions = self._versions.extensions if is_shared else None
            env["TORCH_EXTENSIONS_DIR"] = str(extensions or copy[1] / BUILDS)
        orders = replace(orders, device=site.kind, arms=order)
        return Child(self.config, orders, env, ids, copy, site.starter)
