"""The verdict: the decision with its evidence, and the exit code it asks for."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import Field

from pytest_kopt.decide.operating_points import OperatingPoint, PointName
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.models import Document
from pytest_kopt.roofline import Roofline

#: Which cases decide: the representative ones, or all.
Level = Literal["quick", "full"]
#: How it is known that both versions run the same code.
Same = Literal["source", "machine"]


#: Of memory less than this apart nothing is said.
_SAME_MEMORY = 1.01
#: What can be next; docs/what-next.md says of each what it asks for.
ActionWord = Literal[
    "run_baseline",
    "change_kernel",
    "run_round",
    "repair",
    "rerun",
    "mend_kernel",
    "restore_harness",
    "mend",
    "run_final",
    "stop",
]


class Decision(str, Enum):
    """The decision about a round."""

    BASELINE = "BASELINE"
    ACCEPTED = "ACCEPTED"
    ACCEPTED_WITH_NOTE = "ACCEPTED_WITH_NOTE"
    ROLLED_BACK = "ROLLED_BACK"
    INCONCLUSIVE = "INCONCLUSIVE"
    SPLIT = "SPLIT"
    REPAIR = "REPAIR"
    REJECTED_OVERFIT = "REJECTED_OVERFIT"
    INCOMPLETE = "INCOMPLETE"

    def __str__(self) -> str:
        return self.value

    @property
    def keeps(self) -> bool:
        return self in (Decision.BASELINE, Decision.ACCEPTED, Decision.ACCEPTED_WITH_NOTE)

    @property
    def leaves_open(self) -> bool:
        """Whether the round goes on: nothing is kept, nothing is restored."""
        return self in (Decision.REPAIR, Decision.INCOMPLETE)

    @property
    def exit_code(self) -> ExitCode:
        if self.keeps:
            return ExitCode.OK
        return _EXIT.get(self, ExitCode.ROLLED_BACK)


_EXIT = {
    Decision.REPAIR: ExitCode.FAILED,
    Decision.INCOMPLETE: ExitCode.INCOMPLETE,
    Decision.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


class Aggregate(Document):
    """A figure of all cases, in the metric's unit; the interval is null when stored.

    It is their geometric mean, or their weighted time.
    """

    metric: str
    better: Literal["higher", "lower"] = Field(
        default="higher",
        description="which values of the metric are better; change_pct is of speed",
    )
    candidate: float | None = None
    incumbent: float | None = None
    change_pct: float | None = Field(default=None, description="positive is better")
    low_pct: float | None = None
    high_pct: float | None = None
    confidence: float | None = None


class Diagnosis(Document):
    """The fault of a case; the output with the first fault, or where it was raised."""

    text: str = Field(description="as the terminal shows it")
    output: str | None = Field(default=None, description="its name: out, grad of input 0")
    reason: str | None = None
    gate: str | None = None
    snr_db: float | None = None
    max_abs_error: float | None = None
    worst_index: list[int] | None = None
    worst_reference: float | None = Field(default=None, description="the reference there")
    worst_output: float | None = Field(default=None, description="what the kernel gave there")
    file: str | None = None
    line: int | None = None


class Memory(Document):
    """The most bytes that a call of a version holds, what is kept between calls among them."""

    candidate_bytes: int
    incumbent_bytes: int

    @property
    def ratio(self) -> float:
        """The larger over the smaller."""
        low, high = sorted((max(self.candidate_bytes, 1), max(self.incumbent_bytes, 1)))
        return high / low

    @property
    def differs(self) -> bool:
        """Whether the versions are further apart than allocators' rounding."""
        return self.ratio > _SAME_MEMORY

    @property
    def in_mib(self) -> str:
        """Both in words, the incumbent's first."""
        before, now = (f"{n / 2**20:.4g}" for n in (self.incumbent_bytes, self.candidate_bytes))
        return f"{before} -> {now} MiB"


class FirstCall(Document):
    """The time of the first call in a fresh process, in ms: compiling and tuning are in it."""

    candidate: float
    incumbent: float


class Shape(Document):
    """One case in the verdict."""

    label: str
    dims: dict[str, Any]
    check: Literal["PASS", "FAIL", "ERROR", "MISSING"]
    change_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    status: Literal["improved", "unchanged", "regressed", "failed"]
    device: str | None = None
    nodeid: str | None = None
    forward_ms: float | None = Field(
        default=None, description="the candidate's in the CSV, no pair"
    )
    backward_ms: float | None = Field(default=None, description="the candidate's in the CSV")
    memory: Memory | None = None
    first_call_ms: FirstCall | None = Field(
        default=None, description="of both versions; it never judges"
    )
    diagnosis: Diagnosis | None = Field(default=None, description="of a case that did not pass")
    same: Same | None = Field(
        default=None, description="both versions run the same code: not compared"
    )
    cache: Literal["cold", "warm"] | None = Field(
        default=None, description="where timed calls find their inputs"
    )
    operating_point: PointName | None = Field(
        default=None, description="the state of the GPU that change_pct is conditional on"
    )
    is_steady: bool | None = Field(
        default=None,
        description="whether the clock does not fall under load: one figure for both points",
    )
    points_differ: bool | None = Field(
        default=None, description="whether the changes differ by more than their intervals"
    )
    operating_points: list[OperatingPoint] = Field(
        default=[], description="those that were measured, the one that decides first"
    )


class ConfigClass(Document):
    """The cases of a config class together: the geometric mean of the aggregate's metric."""

    name: str
    dims: dict[str, Any] = Field(description="what its cases have in common")
    cases: int
    candidate: float | None = None
    incumbent: float | None = None
    change_pct: float | None = Field(default=None, description="positive is better")
    low_pct: float | None = None
    high_pct: float | None = None
    confidence: float | None = None
    status: Literal["improved", "unchanged", "regressed"] = "unchanged"


class RaceCandidate(Document):
    """A candidate of a race; the first place is the one that the round is about."""

    name: str = Field(description="the folder or ref; several where they hold the same files")
    place: int
    decision: Decision
    reason: str
    change_pct: float | None = Field(
        default=None, description="over the incumbent, in the race; the first's in the round"
    )
    low_pct: float | None = None
    high_pct: float | None = None
    kernel: dict[str, str] = Field(default={}, description="SHA-256 of its files")


class KnownNoise(Document):
    """The known variance between processes; weighed with today's."""

    sd_pct: float = Field(description="standard deviation of a process's aggregate")
    freedom: float = Field(description="degrees of freedom that it counts for")
    source: str
    excess: float = Field(
        description="factor by which the variance was raised, as today's processes vary more"
    )


class Replicas(Document):
    """How often both versions were loaded and timed."""

    processes: int = Field(
        description="times in a process of their own, or in one for each version, on each device"
    )
    reloads: int = Field(default=0, description="0; versions up to 0.1 also loaded anew there")


class KernelTime(Document):
    """GPU time of all kernels of a step as profiled: geometric means over cases, microseconds."""

    hottest: str | None = Field(default=None, description="the first case's longest kernel")
    candidate_us: float
    incumbent_us: float | None = None
    change_pct: float | None = Field(default=None, description="positive is better")
    pairs_pct: list[float] = Field(
        default=[], description="the change in each pair of processes, one a version"
    )


class NextAction(Document):
    """The next step: a word from a published list, with its arguments."""

    action: ActionWord
    arguments: dict[str, Any] = {}


class EndToEnd(Document):
    """The figure of a whole program's run with both versions, in the unit that it printed."""

    command: str
    candidate: float = Field(description="median of its runs")
    incumbent: float
    change_pct: float = Field(description="positive is better")
    low_pct: float
    high_pct: float
    confidence: float
    runs: int = Field(description="of each version, without a first one that is not counted")


class NamedFinding(Document):
    """The finding of a check; docs/findings.md says what each name means."""

    check: str = Field(description="its name: stale-result")
    message: str
    where: str = Field(default="", description="file and line, or a case")
    advice: str = ""
    bucket: str = ""
    rejects: bool = Field(description="whether it refuses the candidate; any other is a note")
    details: tuple[str, ...] = Field(default=(), description="each thing that the message counts")


class KernelChange(Document):
    """A GPU kernel that differs between the versions, and what it needs in each.

    By name: launches, blocks, threads, registers, stack and shared memory in bytes, occupancy in
    percent, size of the code, instructions of each kind. Empty for the version that lacks it.
    """

    case: str = Field(default="", description="label of the first case that launches it")
    kernel: str
    before: dict[str, float] = {}
    after: dict[str, float] = {}


class Applied(Document):
    """The changes that the decision made to the repository."""

    git_commit: str | None = None
    restored: list[str] = []


class Verdict(Document):
    """verdict.json; `schema_version` grows when a field changes its meaning or goes."""

    schema_version: Literal[1] = 1
    campaign: str | None = None
    round: int | None = None
    attempt: int | None = None
    base: str | None = Field(
        default=None,
        description="commit, or path of an interpreter, that is the other side of a gate",
    )
    level: Level = Field(
        default="full", description="quick: the representative cases decided, full: all"
    )
    decision: Decision
    outcome: str | None = Field(
        default=None,
        description="of a gate: slower (decision ROLLED_BACK), may be slower, faster, …",
    )
    reason: str
    next_step: str = ""
    next_action: NextAction | None = None
    compare: Literal["paired", "stored", "none"]
    engine: str | None = None
    policy: str
    thresholds: dict[str, Any] = Field(default={}, description="the policy's keys and values")
    aggregate: Aggregate | None = Field(
        default=None, description="the one that decides: see the policy's decided_by"
    )
    weighted_time: Aggregate | None = Field(
        default=None,
        description="ms of a call of each case times its weight, all cases together; null for one "
        "case, and where a time is not known",
    )
    secondary: list[Aggregate] = Field(
        default=[], description="further primary metrics, and each under skew for grouped GEMMs"
    )
    shapes: list[Shape] = []
    classes: list[ConfigClass] = Field(
        default=[], description="by the columns that the manifest's classes names"
    )
    target_class: str | None = Field(
        default=None, description="the class that had to improve; null: the aggregate"
    )
    remeasured_pct: list[float] = Field(
        default=[],
        description="change of each re-measurement: the aggregate's, or the target class's",
    )
    candidates: list[RaceCandidate] = Field(
        default=[], description="of a race (--kopt-candidates), by place"
    )
    noise: KnownNoise | None = Field(default=None, description="of a paired comparison")
    replicas: Replicas | None = Field(default=None, description="of a paired comparison")
    rooflines: list[Roofline] = Field(default=[], description="by case and direction")
    kernel_time: KernelTime | None = Field(
        default=None, description="of a round that was profiled or judged by it"
    )
    e2e: EndToEnd | None = Field(
        default=None, description="of a final comparison with an e2e_command; it never judges"
    )
    kernels: list[KernelChange] = Field(
        default=[], description="what changed in the machine code, where that is known"
    )
    removed: list[str] = Field(
        default=[], description="cases of the base whose absence makes a gate refuse the change"
    )
    flags: list[str] = Field(default=[], description="those of findings are `check: message`")
    findings: list[NamedFinding] = Field(default=[], description="the flags that are findings")
    applied: Applied = Applied()

    def action(self, number: int | None) -> NextAction:
        """Return what is next: nothing after a final, without a number, or a gate that passes."""
        arguments = {"round": number} if number else {}
        if self.decision is Decision.REPAIR:
            return NextAction(action="repair", arguments=arguments)
        if self.decision is Decision.INCOMPLETE:
            return NextAction(action="rerun", arguments=arguments)
        if number is None and (self.base is None or self.decision.keeps):
            return NextAction(action="stop")
        if self.base is not None and self.decision is Decision.INCONCLUSIVE:
            return NextAction(action="rerun")
        following = {"round": number + 1} if number else {}
        return NextAction(action="change_kernel", arguments=following)

    @property
    def exit_code(self) -> ExitCode:
        return self.decision.exit_code

    @property
    def totals(self) -> list[Aggregate]:
        """The figures of all cases, each once; the one that decides comes first."""
        totals = (self.aggregate, self.weighted_time, *self.secondary)
        return [*{total.metric: total for total in totals if total}.values()]

    @property
    def same_code(self) -> str:
        """How many of the cases there is nothing to compare in, "" for none."""
        same = sum(shape.same is not None for shape in self.shapes)
        text = (
            f"{same} of {len(self.shapes)} cases run the same code in both versions: not compared"
        )
        return text if same else ""
