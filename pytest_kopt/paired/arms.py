"""The versions of a paired comparison, and the processes that hold them."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO, ArmsOrder
from pytest_kopt.devices.vendor import Device
from pytest_kopt.options.declare import STEP
from pytest_kopt.paired.nearby import Nearby
from pytest_kopt.paired.referee import Referee
from pytest_kopt.paired.replica import Died, Refused, Replica
from pytest_kopt.processes.child import MAX_DEATHS, Child
from pytest_kopt.processes.site import Site
from pytest_kopt.processes.toolchain import Toolchain
from pytest_kopt.processes.worker_orders import WorkerOrders

#: Idle threads of waiting siblings would take the CPU from the one that is timed.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
ONE_PROCESS, TWO_PROCESSES = "one process", "two processes"


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


class Arms:
    """Starts a replica in one process or, where the versions cannot live in one, in several."""

    def __init__(self, config: pytest.Config, orders: WorkerOrders, versions: Versions) -> None:
        self.config = config
        self._orders = orders
        expected = orders.expected or ()
        self._accuracy = {case.nodeid: case.accuracy for case in expected}
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
        if versions.other:
            self.why_two = "each interpreter runs processes of its own"
        if self.why_two:
            self.how = TWO_PROCESSES
        self._deaths = 0
        #: Candidates of a race that are out; processes that were started before hold them still.
        self._out: set[str] = set()

    @property
    def asks_more(self) -> bool:
        """Whether more is asked than times: shapes nearby, the incumbent alone.

        A race's winner is asked later, and a bisection only for the times.
        """
        return not (self._versions.raced or self.config.pluginmanager.has_plugin(STEP))

    def race(self, names: Collection[str]) -> None:
        """Hold and time these candidates of a race alone from now on."""
        versions = self._versions
        copy, *trees = versions.trees
        kept = [both for both in zip(versions.raced, trees, strict=True) if both[0] in names]
        self._out |= {*versions.raced} - {*names}
        raced = tuple(name for name, _ in kept)
        self._versions = replace(versions, trees=(copy, *(t for _, t in kept)), raced=raced)

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

    def start(
        self,
        site: Site,
        device: Device,
        ids: Sequence[str],
        referee: Referee,
        *,
        tells_more: bool,
        and_alone: bool,
    ) -> Replica:
        """Start the processes of a replica of some cases on a host's device.

        In one process, with `and_alone` another one holds the incumbent alone.
        """
        orders, how = replace(self._blind, device=site.kind), self.how
        order = ArmsOrder((), tells_more=tells_more)
        held = self._holding(how, [*self._versions.arms], site, device, ids, order, orders)
        own = None if how == ONE_PROCESS else held[CANDIDATE]
        if and_alone and how == ONE_PROCESS:
            held[ALONE] = self._incumbent_alone(site, device, ids, orders)
        children = [*dict.fromkeys(held.values())]
        accuracy, out = self._accuracy, self._out
        return Replica(children, how, device, site.placement, referee, accuracy, own, out)

    def start_nearby(self, site: Site, device: Device, ids: Sequence[str]) -> Nearby:
        """Start what tries candidate and incumbent at shapes near those of some cases."""
        orders, how = replace(self._blind, device=site.kind), self.how
        names = [CANDIDATE, INCUMBENT]
        held = self._holding(how, names, site, device, ids, ArmsOrder((), nearby=True), orders)
        return Nearby([*dict.fromkeys(held.values())], how, ids, self.random.getrandbits(62))

    def _holding(
        self,
        how: str,
        names: list[str],
        site: Site,
        device: Device,
        ids: Sequence[str],
        order: ArmsOrder,
        orders: WorkerOrders,
    ) -> dict[str, Child]:
        """Start the processes that hold these arms, in whatever order; one, or one for each."""
        self.random.shuffle(names)
        if how == ONE_PROCESS:
            together = self._together(names, site, device, ids, order, orders)
            return dict.fromkeys(names, together)
        trees = self._versions.trees
        tree_of = {CANDIDATE: None, INCUMBENT: trees[0], PLACEBO: trees[1]}
        return {
            name: self._alone(
                replace(order, names=(name,)), tree_of[name], site, device, ids, orders
            )
            for name in names
        }

    def start_company(
        self, site: Site, device: Device, ids: Sequence[str], referee: Referee
    ) -> Replica:
        """Start a process with both versions, and one in which the incumbent is alone."""
        orders, names = replace(self._blind, device=site.kind), [CANDIDATE, INCUMBENT]
        self.random.shuffle(names)
        both = self._together(names, site, device, ids, ArmsOrder(()), orders)
        children = [both, self._incumbent_alone(site, device, ids, orders)]
        return Replica(children, self.how, device, site.placement, referee, self._accuracy)

    def _incumbent_alone(
        self, site: Site, device: Device, ids: Sequence[str], orders: WorkerOrders
    ) -> Child:
        tree = self._versions.trees[0]
        return self._alone(ArmsOrder((ALONE,)), tree, site, device, ids, orders)

    def start_referee(self, site: Site, device: Device, ids: Sequence[str]) -> Referee:
        """Start the process that judges what replicas of some cases look at."""
        versions = self._versions

        def start() -> Child:
            orders = replace(self._orders, device=site.kind)
            return self._alone(ArmsOrder(()), versions.trees[0], site, device, ids, orders)

        why = "another interpreter may draw other inputs from a seed" if versions.other else ""
        return Referee(start, why)

    def _together(
        self,
        names: Sequence[str],
        site: Site,
        device: Device,
        ids: Sequence[str],
        order: ArmsOrder,
        orders: WorkerOrders,
    ) -> Child:
        """Start a process that holds several arms."""
        versions = self._versions
        trees = tuple(str(site.tree(versions.root, tree)) for tree in versions.trees)
        root = str(site.path(versions.root))
        own, *others = versions.arms
        order = replace(
            order,
            names=tuple(names),
            root=root,
            trees=trees,
            changed=versions.changed,
            measure_same=orders.measure_same,
            own=own,
            others=tuple(others),
        )
        return self._child(replace(orders, arms=order), None, site, device, ids)

    def _alone(
        self,
        order: ArmsOrder,
        tree: Path | None,
        site: Site,
        device: Device,
        ids: Sequence[str],
        orders: WorkerOrders,
    ) -> Child:
        """Start a process that holds one arm, in a tree of the incumbent or in the project.

        Without a name it is a referee.
        """
        versions = self._versions
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
        return Child(self.config, orders, env, ids, copy, site.starter)
