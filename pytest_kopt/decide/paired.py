"""The paired rule: statements about intervals over fresh processes (D3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_kopt.decide.inference import (
    FINAL_LOOK,
    LOOKS,
    PLACEBO_LEVEL,
    SHAPE_LEVEL,
    Estimate,
    holm_rejects,
    log_ratio,
    percent,
)
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Aggregate, Decision, Shape, Verdict
from pytest_kopt.schema.profile import Scalar

Status = Literal["improved", "unchanged", "regressed"]


@dataclass(frozen=True, slots=True)
class PairedCase:
    """One case, identified by `name`: log(incumbent / candidate) of one metric, one a replica.

    `placebo` are those of the incumbent against its own copy, from the same replicas. The shape
    gate guards the `core` cases.
    """

    name: str
    label: str
    dims: Mapping[str, Scalar]
    ratios: tuple[float, ...]
    placebo: tuple[float, ...] = ()
    device: str | None = None
    core: bool = True


@dataclass(frozen=True, slots=True)
class PairedEvidence:
    """Everything a paired verdict is made from; all cases have the same number of replicas.

    `candidate` and `incumbent` are geometric means of the metric for display. With `gate`
    "no-regression" the question is only whether a case got slower (the PR gate).
    """

    metric: str
    cases: tuple[PairedCase, ...]
    candidate: float | None = None
    incumbent: float | None = None
    gate: Literal["improve", "no-regression"] = "improve"
    flags: tuple[str, ...] = field(default=())

    @property
    def replicas(self) -> int:
        """The number of fresh processes so far."""
        return len(self.cases[0].ratios)


def decide_paired(evidence: PairedEvidence, policy: Policy) -> Verdict | None:
    """Return the verdict at this look, None when more replicas are worth having.

    Asked at the numbers of replicas that `LOOKS` names; at the last one there is always a verdict.
    Accepted: the geomean's lower bound lies above the policy's minimum gain and no case's slowdown
    can reach the shape gate. Rolled back: the geomean's upper bound lies below zero, or a case is
    shown beyond the gate. Otherwise inconclusive. Where no regression is all that is asked, bounds
    of every case below the shape gate are enough, also for a change that is slower.
    """
    look = evidence.replicas
    level = LOOKS[look]
    judged = _judge(evidence, policy, level)
    unfit = _placebo_fails(evidence)
    if unfit:
        return judged.verdict(
            Decision.INCOMPLETE,
            unfit,
            "the machine is not fit to judge now: find what else runs on it, or wait, and run the "
            "round again",
        )
    decided = _decide(judged, evidence, policy)
    if decided is not None:
        return decided
    if look < FINAL_LOOK and not _is_futile(judged, evidence, policy):
        return None
    total = judged.total
    return judged.verdict(
        Decision.INCONCLUSIVE,
        f"after {look} processes {evidence.metric} changed by {percent(total.mean):+.3f} % "
        f"[{percent(total.lower(level)):+.3f}, {percent(total.upper(level)):+.3f}]: "
        + ("neither faster nor slower" if not judged.open_shapes else "not safe for every case"),
        "not shown to be slower; look for a larger effect",
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """A look's estimates: total, by case, and which cases are shown to be what."""

    evidence: PairedEvidence
    policy: Policy
    level: float
    total: Estimate
    shapes: Mapping[str, Estimate]
    regressed: frozenset[str]
    slower: frozenset[str]
    open_shapes: frozenset[str]

    def worst(self, keys: frozenset[str]) -> str:
        """Describe the slowest of some cases."""
        name = min(keys, key=lambda key: self.shapes[key].mean)
        label = next(case.label for case in self.evidence.cases if case.name == name)
        return f"case {label!r} is slower by {-percent(self.shapes[name].mean):.3f} %"

    def verdict(self, decision: Decision, reason: str, step: str) -> Verdict:
        """Build the verdict with this look's intervals."""
        evidence = self.evidence
        return Verdict(
            decision=decision,
            reason=reason,
            next_step=step,
            compare="paired",
            policy=self.policy.name,
            aggregate=Aggregate(
                metric=evidence.metric,
                candidate=evidence.candidate,
                incumbent=evidence.incumbent,
                change_pct=percent(self.total.mean),
                low_pct=percent(self.total.lower(self.level)),
                high_pct=percent(self.total.upper(self.level)),
                confidence=1 - 2 * self.level,
            ),
            shapes=[self._shape(case) for case in evidence.cases],
            flags=list(evidence.flags),
        )

    def _shape(self, case: PairedCase) -> Shape:
        found = self.shapes[case.name]
        low, high = found.lower(SHAPE_LEVEL), found.upper(SHAPE_LEVEL)
        status: Status = "improved" if low > 0 else "unchanged"
        if case.name in self.regressed:
            status = "regressed"
        return Shape(
            label=case.label,
            dims=dict(case.dims),
            check="PASS",
            change_pct=percent(found.mean),
            low_pct=percent(low),
            high_pct=percent(high),
            status=status,
            device=case.device,
        )


def _judge(evidence: PairedEvidence, policy: Policy, level: float) -> _Judged:
    shapes = {case.name: Estimate.of(case.ratios) for case in evidence.cases}
    means = [
        sum(case.ratios[i] for case in evidence.cases) / len(evidence.cases)
        for i in range(evidence.replicas)
    ]
    # A slowdown of x % of the time: log(incumbent / candidate) = -log(1 + x).
    gate = -log_ratio(policy.shape_gate_pct)
    core = {case.name for case in evidence.cases if case.core}
    beyond = {key: shapes[key].p_below(gate) for key in core}
    slower = {key: estimate.p_below(0.0) for key, estimate in shapes.items()}
    return _Judged(
        evidence,
        policy,
        level,
        Estimate.of(means),
        shapes,
        regressed=frozenset(holm_rejects(beyond, level)),
        slower=frozenset(holm_rejects(slower, level)),
        open_shapes=frozenset(key for key in core if shapes[key].lower(SHAPE_LEVEL) <= gate),
    )


def _decide(judged: _Judged, evidence: PairedEvidence, policy: Policy) -> Verdict | None:
    total, level = judged.total, judged.level
    shown = f"{percent(total.mean):+.3f} % [{percent(total.lower(level)):+.3f}, " + (
        f"{percent(total.upper(level)):+.3f}]"
    )
    if judged.regressed:
        return judged.verdict(
            Decision.ROLLED_BACK,
            f"{judged.worst(judged.regressed)}, beyond the gate of {policy.shape_gate_pct:g} %; "
            f"{evidence.metric} {shown}",
            "keep the gain for the cases that have it, or try another hypothesis",
        )
    is_harmless = evidence.gate == "no-regression" and not judged.open_shapes
    if total.upper(level) < 0 and not is_harmless:
        return judged.verdict(
            Decision.ROLLED_BACK,
            f"{evidence.metric} fell: {shown}",
            "the incumbent stays; try another hypothesis",
        )
    if judged.open_shapes:
        return None
    if is_harmless:
        safe = f"no case can be slower by {policy.shape_gate_pct:g} %; {evidence.metric} {shown}"
        if judged.slower:
            note = f"{safe}; {judged.worst(judged.slower)}"
            return judged.verdict(Decision.ACCEPTED_WITH_NOTE, note, "mind the slower case")
        return judged.verdict(Decision.ACCEPTED, safe, "")
    if total.lower(level) <= log_ratio(policy.minimum_gain_pct):
        return None
    if judged.slower:
        return judged.verdict(
            Decision.ACCEPTED_WITH_NOTE,
            f"{evidence.metric} improved: {shown}; {judged.worst(judged.slower)}, less than the "
            "gate",
            "go on with the next round; mind the slower case",
        )
    return judged.verdict(
        Decision.ACCEPTED, f"{evidence.metric} improved: {shown}", "go on with the next round"
    )


def _is_futile(judged: _Judged, evidence: PairedEvidence, policy: Policy) -> bool:
    """Say whether even a mean one standard error away would decide nothing at the last look.

    Errors shrink with the square root of the processes and the level is laxer then.
    """
    if evidence.gate == "no-regression" or judged.open_shapes:
        return False
    total = judged.total
    shrink = (evidence.replicas / FINAL_LOOK) ** 0.5
    level = LOOKS[FINAL_LOOK]
    better, worse = (
        Estimate(total.mean + sign * total.error, total.error * shrink, FINAL_LOOK - 1)
        for sign in (1, -1)
    )
    accepts = better.lower(level) > log_ratio(policy.minimum_gain_pct)
    return not accepts and worse.upper(level) >= 0


def _placebo_fails(evidence: PairedEvidence) -> str:
    """Return why the machine is not fit: the incumbent differs from its own copy."""
    if not all(case.placebo for case in evidence.cases):
        return ""
    means = [
        sum(case.placebo[i] for case in evidence.cases) / len(evidence.cases)
        for i in range(evidence.replicas)
    ]
    found = Estimate.of(means)
    low, high = found.lower(PLACEBO_LEVEL / 2), found.upper(PLACEBO_LEVEL / 2)
    if low <= 0 <= high:
        return ""
    return (
        f"the A/A control failed: the incumbent differs from its own copy by "
        f"{percent(found.mean):+.3f} % [{percent(low):+.3f}, {percent(high):+.3f}]"
    )


def decide_metrics(evidences: Sequence[PairedEvidence], policy: Policy) -> Verdict | None:
    """Judge several primary metrics at one look: none may regress, at least one must improve."""
    verdicts = [decide_paired(evidence, policy) for evidence in evidences]
    decided = [verdict for verdict in verdicts if verdict is not None]
    for kind in (Decision.INCOMPLETE, Decision.ROLLED_BACK):
        found = [verdict for verdict in decided if verdict.decision is kind]
        if found:
            return found[0]
    if len(decided) < len(verdicts):
        return None
    kept = [verdict for verdict in decided if verdict.decision.keeps]
    lead = kept[0] if kept else decided[0]
    others = [verdict.aggregate for verdict in decided if verdict is not lead]
    return lead.model_copy(update={"secondary": [total for total in others if total]})
