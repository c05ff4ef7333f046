"""The orders of a client to a worker, each as a type, and the replies that follow.

A worker is a process that runs kernel code. Its client is the process that started it: a session, a
comparison, the profiler. `Begin` comes first, and the worker collects; then each case begins with
one of the case orders, and what follows it is ended by `CaseFinished`:

```
Begin           Collected, before that a CollectError for each file that cannot be imported
CheckCase       FallbackRow, CaseStarted, Reports, CaseFinished
Profile         Profiled, CaseFinished
LoadVersions    Loaded or CannotLoad; CaseFinished unless they are there and differ
  Leave           CaseFinished
  Prepare         Ready
  Write           Written; the block of an arm's forward, then of its backward, is there
  Time            Timed
  HandOver        HandedOver, CaseFinished
TryNearby       any number of TriedShape and Reached, then Findings; or Loaded if the versions
                are the same, or CannotLoad; CaseFinished
LoadReference   Loaded or CannotLoad
  JudgeLooks      Findings, then Loaded
  Recompute       HandedOver, then Loaded
  SayReach        Loaded
  LoadAlone       Loaded or CannotLoad; then Prepare to HandOver as above, and Loaded
  Leave           CaseFinished
StopWorker      nothing: the worker ends
```

Every case sends CaseStarted and Reports. Confined ends the session at any time. An order out of its
turn ends the case that is under way, StopWorker the worker as well; between cases it is passed
over.

`processes/served.py` reads the orders that begin a case, and passes on what is sent within one.
`Kopt` in `fixture.py` branches on them: `running/timed_versions.py` carries out what follows
LoadVersions and TryNearby, `running/judge_orders.py` what follows LoadReference. The clients are in
`processes/` for CheckCase and Profile, in `paired/` for all others. `TURNS` of
`tests/test_protocol.py` plays every order in every state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.replies import Reply


class CaseServed(BaseException):
    """Leaves a test whose case was served; none that the test itself would catch."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Collect, as the session's own pytest would.

    `sys_path` and `argv` are the process's; `pytest_args` are the session's words. `from_manifest`
    are those that the campaign puts in front of them, `args` the node ids or paths that replace all
    that these name (None: nothing does). `hidden` are folders that kernel code may not read (None:
    the process is not confined). One that `is_watched` by a vendor's tool ends as an interpreter
    does, so that the tool can write what it saw. `copy` are a project's root and the copy of it in
    which the process runs.
    """

    orders: WorkerOrders
    sys_path: list[str]
    argv: list[str]
    pytest_args: list[str]
    from_manifest: list[str] = field(default_factory=list)
    args: list[str] | None = None
    hidden: list[str] | None = None
    is_watched: bool = False
    copy: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class OfCase:
    """The use of a case; pytest takes down fixtures that the one `following` does not need."""

    nodeid: str
    following: str | None = None


@dataclass(frozen=True, slots=True)
class CheckCase(OfCase):
    """Check a case and, unless the worker times nothing, time it."""


@dataclass(frozen=True, slots=True)
class Profile(OfCase):
    """Profile the steps of a case; with `marked_steps`, run those between a tool's marks."""

    marked_steps: int = 0


@dataclass(frozen=True, slots=True)
class LoadVersions(OfCase):
    """Load the worker's arms but for those that are `out`, on content of the `seed`."""

    seed: int = 0
    out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TryNearby(OfCase):
    """Try the versions at shapes near the case's own, drawn under a `secret`."""

    secret: int = 0


@dataclass(frozen=True, slots=True)
class LoadReference(OfCase):
    """Load a case of the current best, to judge what other workers' timed calls gave."""


class WithinCase:
    """An order that follows the one of a case; between cases it is passed over."""

    __slots__ = ()


class WithinVersions(WithinCase):
    """An order that follows LoadVersions."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Leave(WithinCase):
    """Go on no further with this case."""


@dataclass(frozen=True, slots=True)
class Prepare(WithinVersions):
    """Make the arms ready to be timed: the device is the replica's.

    `sets` is the number of a block's input sets on the CPU; the second is that of uneven groups.
    With an `engine`, one that all workers of a replica can use, that one times.
    """

    sets: Sequence[int]
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep these calls of the block before, its forward and backward, at a place of its arm's."""

    place: int
    calls: Sequence[int]


@dataclass(frozen=True, slots=True)
class Write(WithinVersions):
    """Write the content of an arm's next block, which follows from its seed.

    `way` is 0 for its forward, then 1 for its backward, of the same seed. On the CPU the next
    forward's order says which calls to `keep`, and a block has its first `calls` calls alone (0:
    all). On a GPU a look alone has new content: one round of the calls, of which one is kept. A
    graph's calls run `times` times, 0: once, by its own clock. With `seconds` blocks follow one
    another for so long, and their mean is the time.
    """

    arm: str
    seed: int
    way: int = 0
    is_look: bool = False
    keep: Keep | None = None
    calls: int = 0
    times: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Time(WithinVersions):
    """Run the calls of the next direction."""


@dataclass(frozen=True, slots=True)
class HandOver(WithinVersions):
    """Hand over what was looked at: of large results, elements drawn under the secret.

    The case is over then.
    """

    secret: int
    keep: Keep | None = None


@dataclass(frozen=True, slots=True)
class Looks:
    """The inspected calls in a replica of a case, whose seed is `seed`: arm and seed of `blocks`.

    `looks` are what their process handed over; of large results it is elements that were drawn
    under a `secret`. Blocks went round `sets` sets of inputs; the second number is that of uneven
    groups. `seen` is what the memory of that process held when the blocks were over.
    `confirms` says that another process recomputed them, as far as they were handed over.
    """

    nodeid: str
    seed: int
    blocks: Sequence[tuple[str, int]]
    secret: int
    looks: Sequence[Mapping[str, Any]]
    sets: Sequence[int]
    seen: Sequence[Mapping[str, Any]] = ()
    confirms: bool = False


@dataclass(frozen=True, slots=True)
class JudgeLooks(WithinCase):
    """Judge what another worker handed over."""

    looks: Looks


@dataclass(frozen=True, slots=True)
class Recompute(WithinCase):
    """Call the function here on what another worker's was called on, and hand that over."""

    looks: Looks


@dataclass(frozen=True, slots=True)
class SayReach(WithinCase):
    """Say, in a worker without the candidate, whether the change reaches the case."""


@dataclass(frozen=True, slots=True)
class LoadAlone(WithinCase):
    """Load the current best as an arm, in this worker without the candidate, to be timed.

    The content is of the `seed` that the other workers' LoadVersions has.
    """

    seed: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End."""


CaseOrder = CheckCase | Profile | LoadVersions | TryNearby | LoadReference
_Comparing = Leave | Prepare | Write | Time | HandOver
Order = Begin | CaseOrder | _Comparing | JudgeLooks | Recompute | SayReach | LoadAlone | StopWorker


class Client(Protocol):
    """The worker's side of the talk, for what runs a case.

    `order` is the one that the case is run for; files for the client lie in `scratch`.
    """

    scratch: Path

    @property
    def order(self) -> CaseOrder: ...

    def send(self, reply: Reply) -> None: ...

    def receive(self) -> Order:
        """Wait for the next order, `StopWorker` where the client is gone."""
