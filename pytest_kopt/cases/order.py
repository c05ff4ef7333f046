"""What a worker has to know of its session, and of the versions that it holds; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path

from pytest_kopt import wire
from pytest_kopt.cases.result import ExpectedCase

CANDIDATE, INCUMBENT, PLACEBO = "candidate", "incumbent", "placebo"
#: The incumbent in a process without the candidate.
ALONE = "incumbent, alone"
#: The arms of a grouped GEMM with group sizes drawn anew, by the arm that they are like.
UNEVEN = {CANDIDATE: "candidate, uneven groups", INCUMBENT: "incumbent, uneven groups"}

#: The directions of an arm's blocks, in their order.
WAYS = ("forward", "backward")
#: Of a timed call as many results at most are written down as the first says: how many there are,
#: then the address and the bytes of each, in numbers as the second says.
RESULTS, PLACES = 8, 1 + 8 * 2


@dataclass(frozen=True, slots=True)
class ArmsOrder:
    """Which arms this process holds and where the other versions lie.

    `names` in the order in which they are prepared; `project_version` names the version that lies
    in the project, `tree_versions` those that lie in the overlay `trees`, in that order. In a race
    the project's is the incumbent's, and the others are its copy and the candidates. `changed` are
    the paths below `root` that differ (none: whatever file a case's function stands in). Without
    trees the process runs only the version of `tree`, which must use none of the changed files
    below `root`, or the project's. Where it `tells_more` it is told what the arms have a GPU do
    before they are timed (which they are where that is the same only with `measure_same`) and what
    known content is worth to the candidate. `domains` are, by node id, all that a case may say of
    what its kernels need not support; others say what they like.
    """

    names: tuple[str, ...]
    root: str = ""
    tree: str = ""
    trees: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    tells_more: bool = False
    measure_same: bool = False
    project_version: str = CANDIDATE
    tree_versions: tuple[str, ...] = (INCUMBENT, PLACEBO)
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_referee(self) -> bool:
        """Whether this process holds no arm and judges what others' gave."""
        return not self.names

    def domain_of(self, nodeid: str, declared: Sequence[str]) -> tuple[str, ...]:
        """Return what the kernels of a case need not support, of what it has `declared`."""
        admitted = self.domains.get(nodeid, declared)
        return tuple(word for word in declared if word in admitted)

    def changed_data(self) -> list[Path]:
        """Return the changed files of this process's own version that are no Python source."""
        here = self.tree or self.root
        return [Path(here, path).resolve() for path in self.changed if not path.endswith(".py")]

    def without(self, out: Collection[str]) -> ArmsOrder:
        """Return the order of the arms that are not `out`, whose trees are not looked at."""
        if not out:
            return self
        left = [
            pair for pair in zip(self.tree_versions, self.trees, strict=True) if pair[0] not in out
        ]
        return replace(
            self,
            names=tuple(name for name in self.names if name not in out),
            tree_versions=tuple(name for name, _ in left),
            trees=tuple(tree for _, tree in left),
        )


class Depth(str, Enum):
    """How far a case is gone into."""

    #: Whether results are right, and not how they came about.
    RESULTS = "results"
    #: Everything that is checked, but no time.
    CHECKS = "checks"
    TIMES = "times"


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """What a worker has to know of the session.

    `expected` are the baseline's cases (None: nothing is frozen); `classes` columns that every case
    has to have; `cases_only` deselects every test that is no case; with `one_schema` the rows stand
    in one CSV; `ignored` are node ids to leave out (skipped at the baseline), `selected` the labels
    or node ids that alone are measured (none: all). `arms` says which versions a worker of a
    comparison has, and where they lie. Cases are gone into as far as `depth` says. With
    `measure_same` arms are timed that have a GPU do the same. Of cases that are `compared` later,
    what a comparison asks as well is left to it. `repeats` and `iterations` are the samples of a
    case and, on the CPU, the most calls in one (None: as ever). `target` is the architecture and
    `language` the one that a campaign is for, `metric` what decides there. `markers` are those that
    the session has registered.
    """

    device: str
    engine: str
    session_seed: int
    timeout: float
    suite: str
    cases_only: bool = False
    one_schema: bool = False
    expected: tuple[ExpectedCase, ...] | None = None
    ignored: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    arms: ArmsOrder | None = None
    depth: Depth = Depth.TIMES
    compared: bool = False
    measure_same: bool = False
    repeats: int | None = None
    iterations: int | None = None
    target: str | None = None
    language: str = ""
    metric: str | None = None
    markers: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerOrders:
        return wire.read(cls, json.loads(text))
