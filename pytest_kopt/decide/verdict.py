"""The verdict: the decision with its evidence, and the exit code it asks for."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import Field

from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.inference import Confidence, HighEnd, LowEnd
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.models import Document, optional
from pytest_kopt.roofline import Roofline

#: Which cases decide: the representative ones, or all.
Level = Literal["quick", "full"]
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
    "wait",
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

    metric: str = Field(description="name and unit of the metric")
    better: Literal["higher", "lower"] = Field(
        default="higher",
        description="which values of the metric are better; change_pct is of speed",
    )
    candidate: float | None = optional("value of the candidate, in the metric's unit")
    incumbent: float | None = optional("value of the current best, in the metric's unit")
    change_pct: float | None = optional(
        "change of speed in percent, paired unless compare is stored; positive is better"
    )
    low_pct: LowEnd = None
    high_pct: HighEnd = None
    confidence: Confidence = None


class ConfigClass(Document):
    """The cases of a config class together: the geometric mean of the aggregate's metric."""

    name: str = Field(description="values of the dims that its cases have in common, as text")
    dims: dict[str, Any] = Field(description="what its cases have in common")
    cases: int = Field(description="number of its cases")
    candidate: float | None = optional("geometric mean of the candidate, in the metric's unit")
    incumbent: float | None = optional("geometric mean of the current best, in the metric's unit")
    change_pct: float | None = optional("change of speed in percent; positive is better")
    low_pct: LowEnd = None
    high_pct: HighEnd = None
    confidence: Confidence = None
    status: Literal["improved", "unchanged", "regressed"] = Field(
        default="unchanged", description="whether the class gained or lost beyond the noise"
    )


class RaceCandidate(Document):
    """A candidate of a race; the first place is the one that the round is about."""

    name: str = Field(description="the folder or ref; several where they hold the same files")
    place: int = Field(description="place in the race, from 1")
    decision: Decision = Field(description="decision about this candidate")
    reason: str = Field(description="the reason for the decision, as text")
    change_pct: float | None = optional("over the incumbent, in the race; the first's in the round")
    low_pct: LowEnd = None
    high_pct: HighEnd = None
    kernel: dict[str, str] = Field(default={}, description="SHA-256 of its files")


class KnownNoise(Document):
    """The known variance between processes; weighed with today's."""

    sd_pct: float = Field(description="standard deviation of a process's aggregate")
    freedom: float = Field(description="degrees of freedom that it counts for")
    source: str = Field(
        description="origin of the prior: earlier rounds, a calibration, or a default"
    )
    excess: float = Field(
        description="factor by which the variance was raised, as today's processes vary more"
    )


class Replicas(Document):
    """How often both versions were loaded and timed."""

    processes: int = Field(
        description="times in a process of their own, or in one for each version, on each device"
    )
    host_busy_pct: float | None = optional(
        "share of its processor time that the host was busy meanwhile, by all that ran, in percent"
    )


class KernelTime(Document):
    """GPU time of all kernels of a step as profiled; it decides nothing."""

    hottest: str | None = optional("the first case's longest kernel")
    candidate_us: float = Field(
        description="GPU time of a step of the candidate in microseconds, geometric mean over cases"
    )


class NextAction(Document):
    """The next step: a word from a published list, with its arguments."""

    action: ActionWord = Field(description="the action; docs/what-next.md explains each")
    arguments: dict[str, Any] = Field(
        default={}, description="the arguments of the action, for example the number of the round"
    )


class EndToEnd(Document):
    """The figure of a whole program's run with both versions, in the unit that it printed."""

    command: str = Field(description="the e2e_command of the manifest")
    candidate: float = Field(description="median of its runs")
    incumbent: float = Field(description="median of the runs of the current best")
    change_pct: float = Field(description="change of speed in percent; positive is better")
    low_pct: float = Field(description="lower end of the interval of change_pct, in percent")
    high_pct: float = Field(description="upper end of the interval of change_pct, in percent")
    confidence: float = Field(description="confidence level of the interval, 0 to 1")
    runs: int = Field(description="of each version, without a first one that is not counted")


class NamedFinding(Document):
    """The finding of a check; docs/findings.md says what each name means."""

    check: str = Field(description="its name: stale-result")
    message: str = Field(description="the observation, as text")
    where: str = Field(default="", description="file and line, or a case")
    advice: str = Field(default="", description="the change that ends the finding")
    bucket: str = Field(
        default="", description="kind of the gain that the finding shows: W1, W2 or W3"
    )
    rejects: bool = Field(description="whether it refuses the candidate; any other is a note")
    details: tuple[str, ...] = Field(default=(), description="each thing that the message counts")


class KernelChange(Document):
    """A GPU kernel that differs between the versions, and what it needs in each.

    By name: launches, blocks, threads, registers, stack and shared memory in bytes, occupancy in
    percent, size of the code, instructions of each kind. Empty for the version that lacks it.
    """

    case: str = Field(default="", description="label of the first case that launches it")
    kernel: str = Field(description="name of the GPU kernel")
    before: dict[str, float] = Field(
        default={}, description="figures of the current best's kernel, by name"
    )
    after: dict[str, float] = Field(
        default={}, description="figures of the candidate's kernel, by name"
    )


class Applied(Document):
    """The changes that the decision made to the repository."""

    git_commit: str | None = optional("hash of the commit that keeps the kernel; null: no commit")
    restored: list[str] = Field(
        default=[], description="kernel files that hold the current best again"
    )


class Verdict(Document):
    """verdict.json; `schema_version` grows when a field changes its meaning or goes."""

    schema_version: Literal[1] = Field(default=1, description="version of this format")
    campaign: str | None = optional("name of the campaign; null: a comparison without one")
    round: int | None = optional("number of the round; null: no round")
    attempt: int | None = optional("number of the attempt in the round, from 1; null: no round")
    base: str | None = optional(
        "commit, or path of an interpreter, that is the other side of a gate"
    )
    level: Level = Field(
        default="full", description="quick: the representative cases decided, full: all"
    )
    decision: Decision = Field(description="the decision; docs/verdicts.md explains each")
    outcome: str | None = optional(
        "of a gate: slower (decision ROLLED_BACK), may be slower, faster, …"
    )
    reason: str = Field(description="the reason for the decision, as text")
    next_step: str = Field(default="", description="the next step, as text")
    next_action: NextAction | None = optional("the next step, for programs")
    compare: Literal["paired", "stored", "none"] = Field(
        description="source of change_pct: pairs of one session, stored figures of two "
        "sessions, or none"
    )
    engine: str | None = optional("timing method: graph, events or wall")
    policy: str = Field(description="name of the policy")
    thresholds: dict[str, Any] = Field(default={}, description="the policy's keys and values")
    aggregate: Aggregate | None = optional(
        "the figure that decides: see the policy's decided_by; change_pct is paired"
    )
    weighted_time: Aggregate | None = optional(
        "ms of a call of each case times its weight, all cases together; null for one "
        "case, and where a time is not known"
    )
    secondary: list[Aggregate] = Field(
        default=[], description="further primary metrics, and each under skew for grouped GEMMs"
    )
    shapes: list[Shape] = Field(default=[], description="every case")
    classes: list[ConfigClass] = Field(
        default=[], description="by the columns that the manifest's classes names"
    )
    target_class: str | None = optional("the class that had to improve; null: the aggregate")
    remeasured_pct: list[float] = Field(
        default=[],
        description="change of each re-measurement: the aggregate's, or the target class's",
    )
    candidates: list[RaceCandidate] = Field(
        default=[], description="of a race (--kopt-candidates), by place"
    )
    noise: KnownNoise | None = optional("of a paired comparison")
    replicas: Replicas | None = optional("of a paired comparison")
    rooflines: list[Roofline] = Field(default=[], description="by case and direction")
    kernel_time: KernelTime | None = optional("of a profiled round, where a GPU ran kernels")
    e2e: EndToEnd | None = optional("of a final comparison with an e2e_command; it never judges")
    kernels: list[KernelChange] = Field(
        default=[], description="what changed in the machine code, where that is known"
    )
    removed: list[str] = Field(
        default=[],
        description="cases of the base that are gone, or changed with their tests: a gate refuses "
        "the change",
    )
    flags: list[str] = Field(default=[], description="those of findings are `check: message`")
    findings: list[NamedFinding] = Field(default=[], description="the flags that are findings")
    applied: Applied = Field(
        default=Applied(), description="changes that the decision made to the repository"
    )

    def saying(self, **evidence: Any) -> Verdict:
        """Return the same decision with more of what it rests on, by published key."""
        assert "decision" not in evidence, "the rules decide"
        return self.model_copy(update=evidence)

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
