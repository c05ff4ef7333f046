"""The orders of a worker: its session, its seeds, the versions that it holds; and its bench.

Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_kopt import models
from pytest_kopt.cases.case import Case
from pytest_kopt.cases.result import ExpectedCase
from pytest_kopt.devices.lock import Waiting
from pytest_kopt.devices.states import BOOST
from pytest_kopt.devices.vendor import Reading
from pytest_kopt.honesty.audit_hook import AuditHook
from pytest_kopt.measure.engine import BLOCK_MS
from pytest_kopt.measure.wall import WallEngine
from pytest_kopt.schema.table import describe_header_drift

CANDIDATE, INCUMBENT, PLACEBO = "candidate", "incumbent", "placebo"
#: The incumbent in a process without the candidate.
ALONE = "incumbent, alone"
#: The arms of a grouped GEMM with group sizes drawn anew, by the arm that they are like.
UNEVEN = {CANDIDATE: "candidate, uneven groups", INCUMBENT: "incumbent, uneven groups"}

#: The configurations that autotuned kernels run with, by kernel and Triton's key.
Choices = dict[str, dict[str, str]]

#: The directions of an arm's blocks, in their order.
WAYS = ("forward", "backward")
#: Of a timed call as many results at most are written down as the first says: how many there are,
#: then the address and the bytes of each, in numbers as the second says. A result that is a number
#: has its bits as a float64, and the third in place of bytes. The last three are the address of
#: such pairs of the call's inputs, how many of these are activations, and how many there are.
#: Activations come first, then weights, then all others.
RESULTS, PLACES, NUMBER = 64, 1 + 64 * 2 + 3, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ArmsOrder:
    """Which arms this process holds and where the other versions lie.

    In a race the project's version is the incumbent's, and the others are its copy and the
    candidates. A process that runs in a `tree` must use none of the changed files below `root`;
    without `trees` it runs no other version than that one, or the project's.
    """

    #: The arms, in the order in which they are prepared; none: the process judges others'.
    names: tuple[str, ...]
    #: The project's folder.
    root: str = ""
    #: The tree in which this process runs ("": it runs in the project).
    tree: str = ""
    #: The trees of the other versions.
    trees: tuple[str, ...] = ()
    #: The paths below `root` that differ (none: whatever file a case's function stands in).
    changed: tuple[str, ...] = ()
    #: Of these, the paths of which the one version of this process has to use one for the change to
    #: concern a case (none: it concerns every case).
    concerning: tuple[str, ...] = ()
    #: The number of this process's replica in the comparison (None: it is of none). The first looks
    #: at what once is enough for: the files that run, memory and machine code.
    replica: int | None = None
    #: The version that lies in the project.
    project_version: str = CANDIDATE
    #: The versions that lie in `trees`, in that order.
    tree_versions: tuple[str, ...] = (INCUMBENT, PLACEBO)

    @property
    def is_first_replica(self) -> bool:
        return self.replica == 0

    @property
    def is_judge(self) -> bool:
        """Whether this process holds no arm and judges what others' gave."""
        return not self.names

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


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """The facts that a worker needs about the session."""

    #: torch's name of the kind of device.
    device: str
    #: What times, one of the option's names.
    engine: str
    session_seed: int
    #: Seconds that a case may take.
    timeout: float = 300.0
    #: Which of the option's suites runs.
    suite: str = "standard"
    #: Whether rows are for a verdict or a baseline; a test that is no case runs only if not.
    decides: bool = False
    #: Whether that verdict rests on a comparison of two versions, which follows.
    compares: bool = False
    #: Whether cases that are not the baseline's have one schema, since all rows stand in one CSV.
    has_one_schema: bool = False
    #: The baseline's cases (None: nothing is frozen).
    expected: tuple[ExpectedCase, ...] | None = None
    #: Node ids to leave out: skipped at the baseline.
    ignored: tuple[str, ...] = ()
    #: Columns that every case has to have.
    classes: tuple[str, ...] = ()
    #: Labels or node ids that alone are measured (none: all).
    selected: tuple[str, ...] = ()
    #: Which versions a worker of a comparison has, and where they lie.
    arms: ArmsOrder | None = None
    #: Whether cases are checked and none is timed.
    only_checks: bool = False
    #: Node ids of cases that are checked and not timed.
    untimed: tuple[str, ...] = ()
    #: Whether arms are timed that have a GPU do the same.
    times_same: bool = False
    #: The operating point of a GPU that decides in a case that names none.
    operating_point: str = BOOST
    #: Samples of a case (None: as ever).
    repeats: int | None = None
    #: On the CPU, the most calls in a sample (None: as ever).
    iterations: int | None = None
    #: The architecture that a campaign is for.
    target: str | None = None
    #: The language that a campaign is for.
    language: str = ""
    #: What decides in the campaign.
    metric: str | None = None
    #: The markers that the session has registered.
    markers: tuple[str, ...] = ()
    #: Seeds what tests and fixtures draw themselves: without it no process could judge what another
    #: computed.
    setup_seed: int = 0
    #: Choices of the current best's autotuned kernels, and of the candidate's.
    choices: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    candidate_choices: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: What fixtures of xdist say of a worker, for a process that is one of several (else empty).
    workerinput: Mapping[str, Any] = field(default_factory=dict)

    @property
    def preset_choices(self) -> Mapping[str, Mapping[str, str]]:
        """The choices for this process; one that runs the current best alone has no candidate's.

        A kernel of both versions runs with the current best's.
        """
        names = self.arms.names if self.arms else (CANDIDATE,)
        is_without = {*names} <= {INCUMBENT, PLACEBO, ALONE}
        return self.choices if is_without else {**self.candidate_choices, **self.choices}

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerOrders:
        return models.read(cls, json.loads(text))


@dataclass(frozen=True, slots=True)
class Bench(WorkerOrders):
    """The orders of this process, and what it measures with."""

    #: Blocks on the CPU.
    cpu: WallEngine = field(default_factory=WallEngine)
    #: The least length of a block on a GPU.
    gpu_block_ms: float = BLOCK_MS
    #: What the device's host calls it.
    uuid: str = "cpu"
    #: Returns the device's state.
    read: Callable[[], Reading] = Reading
    #: This process's.
    audit_hook: AuditHook | None = None
    #: Those of torch that others than kernels replaced here.
    operators: frozenset[str] = frozenset()
    #: Entered while a case waits for its turn on the device.
    waiting: Waiting = nullcontext

    def times(self, nodeid: str, interpreted: bool) -> bool:
        """Say whether a case is timed; one that was interpreted only where a row has to be full."""
        if self.only_checks or nodeid in self.untimed:
            return False
        return self.decides or not interpreted

    @property
    def freezes(self) -> bool:
        """Whether this run is the baseline itself, or decides without any."""
        return self.decides and self.expected is None

    def frozen(self, nodeid: str) -> ExpectedCase:
        """Return what the baseline knows of a case, one of which nothing is known without it."""
        return _frozen(self.expected or (), nodeid) or ExpectedCase(nodeid, "", (), {})

    @property
    def is_confined(self) -> bool:
        return self.audit_hook is not None and self.audit_hook.is_confined

    def opened(self, root: Path) -> dict[str, tuple[str, ...]]:
        """Return the files below the project's root that were opened, each with by which."""
        inside, opened = f"{root}{os.sep}", self.audit_hook.opened if self.audit_hook else {}
        return {
            name.removeprefix(inside): tuple(sorted(by.removeprefix(inside) for by in authors))
            for name, authors in opened.items()
            if name.startswith(inside)
        }


def _frozen(expected: Sequence[ExpectedCase], nodeid: str) -> ExpectedCase | None:
    return next((known for known in expected if known.nodeid == nodeid), None)


def hold_against_baseline(case: Case, expected: Sequence[ExpectedCase] | None) -> None:
    """Raise BadInput when the case is not the one that the baseline froze under this node id."""
    if expected is None:
        return
    frozen = _frozen(expected, case.nodeid)
    if frozen is None:
        fix = "undo the edit of the tests, or begin again: kopt init NEW --from OLD"
        raise case.refusal("is not in the baseline", fix=fix)
    if case.header != frozen.header:
        drift = describe_header_drift(case.header, frozen.header)
        raise case.refusal(drift, ",".join(frozen.header))
    empty = {column.name for column in case.schema.columns if column.is_backward}
    had_backward = not empty or not empty <= set(frozen.empty)
    if empty and case.backward != had_backward:
        raise case.refusal(f"backward is {case.backward} now", f"the baseline's {had_backward}")
    if case.dims != frozen.dims:
        raise case.refusal(f"dims drifted: {case.dims}", f"the baseline's {frozen.dims}")
    for name in ("limit_pct", "limit_us", "weight", "cache", "operating_point"):
        now, then = getattr(case, name), getattr(frozen, name)
        if now != then:
            raise case.refusal(f"{name} is {now!r} now", f"the baseline's {then!r}")


def fresh_session_seed() -> int:
    """Return a seed that nothing in the session can predict."""
    return secrets.randbits(63)


#: Blocks whose seeds differ in these last bits alone have the same weights.
WEIGHT_BITS = 31


def derive(session_seed: int, nodeid: str, purpose: str) -> int:
    """Return the seed of one purpose of one case (63 bits of a SHA-256)."""
    digest = hashlib.sha256(f"{session_seed}:{nodeid}:{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def drawn_so_far(device: str) -> bytes:
    """Return the states of torch's global generators, which tell whether a call drew from them."""
    import torch

    states = [torch.default_generator.get_state()]
    if device == "cuda":
        states.append(torch.cuda.get_rng_state())
    return b"".join(state.numpy().tobytes() for state in states)


def seed_everything(seed: int) -> None:
    """Seed random, torch, and numpy where it is loaded."""
    import torch

    random.seed(seed)
    # torch.manual_seed does the same, but imports torch's compiler first: seconds in every process.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
