"""The versions of a paired comparison, and the processes that hold them."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO, ArmsOrder, WorkerOrders
from pytest_kopt.options.declare import STEP
from pytest_kopt.paired.nearby import Nearby
from pytest_kopt.paired.replica import Died, Refused, Replica
from pytest_kopt.paired.verifier_process import Verifier
from pytest_kopt.processes.child import MAX_DEATHS, Child
from pytest_kopt.processes.launched import Toolchain
from pytest_kopt.processes.remote_host import Place
from pytest_kopt.versions import overlay

#: Idle threads of waiting siblings would take the CPU from the one that is timed.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
ONE_PROCESS, TWO_PROCESSES = "one process", "two processes"
#: So many processes share the cases that are tried near their shapes on a GPU: a second one runs
#: while the first compiles.
_NEARBY_ON_GPU = 2


class NotComparable(Exception):
    """The two versions could not be measured this way; the message says why."""


class CandidateDied(Exception):
    """The candidate ended its process twice while `case`, a node id, was timed; says how."""

    def __init__(self, case: str, how: str) -> None:
        super().__init__(f"{case} killed its process twice: {how}")
        self.case = case


@dataclass(frozen=True, slots=True)
class Versions:
    """The places of the versions.

    `trees` are two trees of the incumbent; `changed` the paths below `root` that may differ. If the
    trees were `rebuilt`, one process cannot hold both versions. `extensions` is where torch builds
    what the incumbent compiles (None: in each tree). With an `other` toolchain the incumbent is the
    project itself in processes of that. In a race the project itself is the incumbent, the first
    tree its copy, and the others hold the candidates in `raced`. `seals` are what the trees were
    when they had been made. `domains` are those of an `ArmsOrder`. `own` is a tree of the project
    in which its own version runs, with other tests around it (None: it runs in the project).
    """

    root: Path
    trees: tuple[Path, ...]
    changed: tuple[str, ...]
    rebuilt: bool = False
    extensions: Path | None = None
    other: Toolchain | None = None
    raced: tuple[str, ...] = ()
    seals: tuple[Mapping[str, object], ...] = ()
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own: Path | None = None

    @property
    def written(self) -> str:
        """A path in a tree that was written since it was made, "" where there is none."""
        for tree, then in zip(self.trees, self.seals, strict=False):
            for path, now in {**dict.fromkeys(then), **overlay.seal(tree)}.items():
                if now != then.get(path):
                    return path
        return ""

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
    def written(self) -> str:
        """A path in the current best's trees that was written since they were made."""
        return self._versions.written

    @property
    def asks_more(self) -> bool:
        """Whether more is asked than times; of a race's winner later, in a bisection never."""
        return not (self._versions.raced or self.config.pluginmanager.has_plugin(STEP))

    @property
    def sustained_turns(self) -> int:
        """Turns under load for the point that does not decide; a race or bisection asks none.

        The winner of a race is compared again, and so is a commit that a bisection finds.
        """
        return self._orders.sustained_turns if self.asks_more else 0

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
                if refused.case is not None and self._deaths >= MAX_DEATHS:
                    raise CandidateDied(refused.case, refused.death)
                if refused.case is not None:
                    return
            if self._versions.raced:
                raise NotComparable(reason) from refused
            if how == TWO_PROCESSES:
                first = f" (in one process: {self.why_two})" if self.why_two else ""
                raise NotComparable(reason if self._versions.rebuilt else f"{reason}{first}")
            if self.how == ONE_PROCESS:
                self.how, self.why_two = TWO_PROCESSES, reason

    def start(self, place: Place, verifier: Verifier, number: int) -> Replica:
        """Start the processes of the replica of this number, which holds all arms."""
        how, order = self.how, ArmsOrder((), replica=number)
        children_of = self._holding(place, how, [*self._versions.arms], order)
        candidates = None if how == ONE_PROCESS else children_of[CANDIDATE]
        children, accuracy = dict.fromkeys(children_of.values()), self._accuracy
        return Replica(children, how, place, verifier, accuracy, candidates, self._out)

    def start_alone(self, place: Place) -> Child:
        """Start a process that holds the incumbent alone."""
        return self._alone(place, ArmsOrder((ALONE,)), self._versions.trees[0])

    def start_nearby(self, place: Place) -> Nearby:
        """Start what tries candidate and incumbent at shapes near those of some cases."""
        how, asked = self.how, dict[Child, list[str]]()
        count = 1 if how == TWO_PROCESSES or place.device.kind == "cpu" else _NEARBY_ON_GPU
        for number in range(min(count, len(place.ids)) or 1):
            own = place._replace(ids=place.ids[number::count])
            children_of = self._holding(own, how, [CANDIDATE, INCUMBENT], ArmsOrder(()))
            asked |= dict.fromkeys(children_of.values(), own.ids)
        return Nearby(asked, how, place.ids, self.random.getrandbits(62))

    def start_verifier(self, place: Place) -> Verifier:
        versions = self._versions
        why = "another interpreter may draw other inputs from a seed" if versions.other else ""
        return Verifier(lambda: self._alone(place, ArmsOrder(()), versions.trees[0]), why)

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
            tree=str(site.tree(versions.root, versions.own)) if versions.own else "",
            trees=tuple(str(site.tree(versions.root, tree)) for tree in versions.trees),
            changed=versions.changed,
            project_version=own_arm,
            tree_versions=tuple(tree_arms),
        )
        return dict.fromkeys(names, self._child(place, order, versions.own))

    def _alone(self, place: Place, order: ArmsOrder, tree: Path | None) -> Child:
        """Start a process that holds one arm, in a tree of the incumbent or in the project."""
        versions = self._versions
        if tree is not None and versions.other:
            site = replace(place.site, starter=versions.other)
            return self._child(place._replace(site=site), order, None)
        site = place.site
        order = replace(
            order,
            root=str(site.path(versions.root)),
            tree=str(site.tree(versions.root, tree)) if tree else "",
            changed=versions.changed,
            # What a build makes of a change is not seen in the sources.
            concerning=() if versions.rebuilt else versions.changed,
        )
        return self._child(place, order, tree)

    def _child(self, place: Place, order: ArmsOrder, tree: Path | None) -> Child:
        site, device, ids = place
        orders = self._orders if order.is_verifier else self._blind
        env = site.environment_on(device) | _PASSIVE
        copy = site.copy(self._versions.root, tree)
        if tree is not None and copy is not None:
            is_shared = copy[1] == tree and tree != self._versions.own
            extensions = self._versions.extensions if is_shared else None
            env["TORCH_EXTENSIONS_DIR"] = str(extensions or copy[1] / overlay.BUILDS)
        order = replace(order, domains=self._versions.domains)
        orders = replace(orders, device=site.kind, arms=order)
        return Child(self.config, orders, env, ids, copy, site.starter)
