"""What a worker sends its client, each reply as a type; `protocol.py` says to which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_kopt.honesty import nearby_shapes
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.profiling.kernel_table import CaseProfile


@dataclass(frozen=True, slots=True)
class Collected:
    """The node ids of what can be run."""

    ids: list[str]


@dataclass(frozen=True, slots=True)
class CollectError:
    """A failed report of the collection, as pytest serializes it."""

    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Confined:
    """Why the session ends: confinement refused something to others than the kernel."""

    why: str


@dataclass(frozen=True, slots=True)
class FallbackRow:
    """The row, as JSON, that a case gets if its worker never comes back."""

    result: str


@dataclass(frozen=True, slots=True)
class CaseStarted:
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
class Profiled:
    """What was seen of a case."""

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
class Loaded:
    """A case is loaded.

    `same` is how both versions are known to be one, by their source or by the machine code that
    they run; then the case is over. `reached` says whether the change concerns it. By arm, `memory`
    is the bytes that a call takes and `first_call_ms` the time of the first. `code` is what differs
    in the machine code, where that is asked.
    """

    same: Literal["source", "machine"] | None = None
    reached: bool = True
    memory: dict[str, int] = field(default_factory=dict)
    first_call_ms: dict[str, float] = field(default_factory=dict)
    code: MachineCode | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What times the arms here, on how many input sets, and why parts are in no graph."""

    engine: str
    sets: list[int]
    not_captured: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """By arm, forward and backward: the calls of a block, and where its results are said to lie."""

    calls: dict[str, list[int]]
    places: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Written:
    """The content of the block is there."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The calls of a direction are over; `ms` by this process's clock or the device's events."""

    ms: float


@dataclass(frozen=True, slots=True)
class Looked:
    """What a direction's calls gave was looked at."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What was looked at, as files and how to read them."""

    looks: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Findings:
    """What gave the candidate away; nothing did where it is empty."""

    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Verification:
    """What is plainly wrong in what was handed over, or why that cannot be judged."""

    findings: list[Finding]
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class TriedShape:
    """A shape, or other inputs, at which the versions were tried."""

    shape: nearby_shapes.Tried


@dataclass(frozen=True, slots=True)
class Reached:
    """How exact a version is at the declared shape, which draws so many elements."""

    version: str
    accuracy: dict[str, Accuracy]
    elements: float


_Session = Collected | CollectError | Confined | FallbackRow | CaseStarted | Report | CaseFinished
_Compared = CannotLoad | Loaded | Prepared | Ready | Written | Timed | Looked | HandedOver
_Judged = Findings | Verification | TriedShape | Reached
Reply = _Session | Profiled | _Compared | _Judged
