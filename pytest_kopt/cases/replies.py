"""The replies of a worker to its client, each as a type; `protocol.py` says to which order.

A base class is a conversation: clients that take no part in it pass its replies over by that name.
A reply that may end a case has none, since every client acts on it.

A process that holds a candidate can say what it likes. The table names who else knows each field,
or what the field is used for where nobody does. Only what somebody else knows may credit a gain.

```
Collected.ids             the baseline: its cases have to be there
CollectError.data         nobody; the cases fail with it
Confined.why              nobody; the session ends with it
FallbackRow.result        nobody; the row of a case that fails
CaseStarted.nodeid        the client, which gave the order
CaseStarted.location      nobody; shown
Report.data               the judge checks timed results again, a comparison times again; nobody
                          knows what else the check passed, loaded and opened
CaseFinished.nodeid       the client, which gave the order
CaseFinished.leaving      nobody; another process goes on
Profiled.profile          nobody; shown
CannotLoad.reason         nobody; the versions are not held so
Loaded.same               the judge; of machine code on a GPU nobody
Loaded.reached            the judge
Loaded.memory             nobody; shown, and a stated benefit of memory is held against it
Loaded.first_call_ms      nobody; shown
Loaded.code               nobody; shown
Loaded.operating_point    the judge, which alone says it
Loaded.has_backward       the judge, which alone says it
Loaded.sets               the judge, which alone says it
Loaded.is_brought_whole   the judge, which alone says it
Ready.engine              the client on the CPU, nobody on a GPU
Ready.not_captured        nobody; shown
Ready.calls               the judge; on a GPU nobody knows the numbers
Ready.places              nobody; the results and inputs that lie there are judged, and no others;
                          input values are brought there
Timed.ms                  the system on the CPU, on a GPU the client's clock as a witness
HandedOver.looks          memory that the client reads on the CPU, where what is not read is wrong,
                          nobody on a GPU; the judge judges them beside its own
HandedOver.findings       nobody; they count against the candidate
Findings.findings         the judge, which says those of results; they count against the candidate
TriedShape.shape          nobody
Reached.version           the client, which gave the order
Reached.accuracy          nobody
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_kopt.honesty import nearby_shapes
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.profiling.kernel_table import CaseProfile


class OfSession:
    """A session or the profiler acts on it: it is about collection, rows or profiles."""

    __slots__ = ()


class OfComparison:
    """A comparison of versions acts on it."""

    __slots__ = ()


class OfBlocks(OfComparison):
    """A replica or the judge waits for it by its type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Collected(OfSession):
    """The node ids of what can be run."""

    ids: list[str]


@dataclass(frozen=True, slots=True)
class CollectError:
    """A failed report of the collection, as pytest serializes it."""

    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Confined(OfSession):
    """Why the session ends: confinement refused something to others than the kernel."""

    why: str


@dataclass(frozen=True, slots=True)
class FallbackRow(OfSession):
    """The row, as JSON, that a case gets if its worker never comes back."""

    result: str


@dataclass(frozen=True, slots=True)
class CaseStarted(OfSession):
    """A test begins; `location` is pytest's."""

    nodeid: str
    location: tuple[str, int | None, str]


@dataclass(frozen=True, slots=True)
class Report:
    """A test's report, as pytest serializes it."""

    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CaseFinished:
    """A case is over; a worker that is `leaving` runs no other."""

    nodeid: str
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Profiled(OfSession):
    """The profile of a case."""

    profile: CaseProfile


@dataclass(frozen=True, slots=True)
class CannotLoad:
    """Why a case's versions cannot be held by this worker."""

    reason: str


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Recordings of what the current best (`before`) and the candidate have a GPU do."""

    before: dict[str, Any]
    after: dict[str, Any]
    arch: str


@dataclass(frozen=True, slots=True)
class Loaded(OfComparison):
    """A case is loaded.

    `same` is how both versions are known to be one, by their source or by the machine code that
    they run; then the case is over. `reached` says whether the change concerns it. By arm, `memory`
    is the bytes that a call takes and `first_call_ms` the time of the first. `code` is what differs
    in the machine code, where that is asked.

    A judge says the rest. `operating_point` is the one that decides in the case. `sets` is the
    number of a block's input sets on the CPU; the second is that of uneven groups, if the case has
    them. On a GPU, where processes choose it, a number is 0. `is_brought_whole` says that a call's
    content but for weights is tensors that can be written into another process.
    """

    same: Literal["source", "machine"] | None = None
    reached: bool = True
    memory: dict[str, int] = field(default_factory=dict)
    first_call_ms: dict[str, float] = field(default_factory=dict)
    code: MachineCode | None = None
    operating_point: str | None = None
    has_backward: bool = False
    sets: list[int] = field(default_factory=list)
    is_brought_whole: bool = False


@dataclass(frozen=True, slots=True)
class Ready(OfBlocks):
    """The engine that times the arms here, and parts without a graph.

    By arm, forward and backward: the calls of a block, and where it says what lies where. `RESULTS`
    and `PLACES` of `cases/order.py` say what numbers lie there for each call.
    """

    engine: str
    not_captured: dict[str, str]
    calls: dict[str, list[int]]
    places: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Written(OfBlocks):
    """The content of the block is there."""


@dataclass(frozen=True, slots=True)
class Timed(OfBlocks):
    """The calls of a direction are over; `ms` by this process's clock or the device's events.

    The time of a look is that of one call.
    """

    ms: float


@dataclass(frozen=True, slots=True)
class HandedOver(OfBlocks):
    """The inspected results, as files and how to read them, and what gave the candidate away."""

    looks: list[dict[str, Any]]
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Findings(OfComparison):
    """The faults of the candidate near its shapes, or in results that were handed over."""

    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class TriedShape(OfComparison):
    """A shape, or other inputs, at which the versions were tried."""

    shape: nearby_shapes.Tried


@dataclass(frozen=True, slots=True)
class Reached(OfComparison):
    """The accuracy of a version at the declared shape, and how its results lie in memory."""

    version: str
    accuracy: dict[str, Accuracy]


_Session = Collected | CollectError | Confined | FallbackRow | CaseStarted | Report | CaseFinished
_Compared = CannotLoad | Loaded | Ready | Written | Timed | HandedOver
_OfVersions = Findings | TriedShape | Reached
Reply = _Session | Profiled | _Compared | _OfVersions


def why_ended(reply: Reply) -> str:
    """Return why a case cannot go on after a reply of its process, "" where it can."""
    match reply:
        case CannotLoad(reason):
            return reason
        case CollectError(data):
            return f"does not import: {_last_line(data.get('longrepr'))}"
        case Report(data):
            failed = data["outcome"] == "failed"
            return f"failed: {_last_line(data.get('longrepr'))}" if failed else ""
        case CaseFinished():
            return "the case never called kopt()"
        case OfSession() | OfComparison():
            return ""


def _last_line(longrepr: Any) -> str:
    crash = longrepr.get("reprcrash") if isinstance(longrepr, dict) else None
    text = str(crash["message"] if crash else longrepr).strip()
    return text.splitlines()[-1] if text else "no reason given"
