"""The paired rule: statements about intervals over fresh processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_kopt.decide.classes import Standing
from pytest_kopt.decide.gates import after_regression
from pytest_kopt.decide.inference import (
    ALONE_LEVEL,
    FINAL_LOOK,
    GATE_LEVEL,
    KNOWN_BIAS_PCT,
    LOOKS,
    SHAPE_LEVEL,
    Estimate,
    holm_rejects,
    log_ratio,
    percent,
)
from pytest_kopt.decide.noise import Noise, Prior, excess_of, mean_of
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import (
    Aggregate,
    ConfigClass,
    Decision,
    KnownNoise,
    Same,
    Shape,
    Verdict,
)
from pytest_kopt.figures import changed, changed_within
from pytest_kopt.schema.classes import NO_CLASSES, Classes
from pytest_kopt.schema.metrics import Metric, geomean
from pytest_kopt.schema.profile import Better, Scalar

Status = Literal["improved", "unchanged", "regressed"]


def _slower_by(pct: float) -> float:
    """Return the log-ratio of a version that takes so many percent longer.

    That is log(incumbent / candidate) = -log(1 + x) of the times.
    """
    return -log_ratio(pct)


_BIAS = _slower_by(KNOWN_BIAS_PCT)


@dataclass(frozen=True, slots=True)
class PairedCase:
    """One case, identified by `name`: log(incumbent / candidate) of one metric, one a replica.

    `placebo` are those of the incumbent against its own copy, from the same replicas. The shape
    gate guards the `core` cases. `values` are the candidate's and the incumbent's metric, for
    display. A case that is the `same` in both versions was not compared.
    """

    name: str
    label: str
    dims: Mapping[str, Scalar]
    ratios: tuple[float, ...]
    placebo: tuple[float, ...] = ()
    device: str | None = None
    core: bool = True
    values: tuple[float, float] | None = None
    same: Same | None = None

    @property
    def level(self) -> float:
        """The one-sided level of its bounds."""
        return SHAPE_LEVEL if len(self.ratios) <= FINAL_LOOK else ALONE_LEVEL

    @property
    def is_timed(self) -> bool:
        """Whether the change concerns it, so that there is anything to scatter."""
        return any(self.ratios) or any(self.placebo)


@dataclass(frozen=True, slots=True)
class PairedEvidence:
    """Everything a paired verdict is made from.

    Cases have as many replicas each, but for those that were measured alone when nothing else was
    open; `is_last` says that there will be no more.

    With `gate` "no-regression" the question is only whether a case got slower (the PR gate). With
    a target among the `classes` that class has to improve, not the aggregate. `noise` is what was
    known before of the scatter between processes.
    """

    metric: str
    cases: tuple[PairedCase, ...]
    gate: Literal["improve", "no-regression"] = "improve"
    flags: tuple[str, ...] = field(default=())
    classes: Classes = NO_CLASSES
    noise: Noise | None = None
    better: Better = "higher"
    is_last: bool = False

    @property
    def at_end(self) -> bool:
        """Whether there is a verdict now, whatever is open."""
        return self.is_last or self.replicas == FINAL_LOOK

    @property
    def speed(self) -> str:
        """What a positive change improves, in words."""
        return Metric(self.metric, self.better).speed

    @property
    def replicas(self) -> int:
        """The number of fresh processes so far that measured every case."""
        return min(len(case.ratios) for case in self.cases)

    def level_of(self, case: PairedCase) -> float:
        """Return the one-sided level at which a case has to be clear of the shape gate."""
        return min(case.level, GATE_LEVEL) if self.gate == "no-regression" else case.level

    @property
    def excess(self) -> float:
        """How many times its prior today's variance is, all cases together; at least 1."""
        return excess_of(
            (case.ratios, case.placebo, prior)
            for case in self.cases
            if (prior := self.prior([case]))
        )

    def prior(self, cases: Sequence[PairedCase]) -> Prior | None:
        """Return what was known before of the scatter of these cases' mean.

        A case that is not timed adds nothing to it.
        """
        timed = [case.name for case in cases if case.is_timed]
        if self.noise is None or not timed:
            return None
        return self.noise.prior(timed).times((len(timed) / len(cases)) ** 2)


def decide_paired(evidence: PairedEvidence, policy: Policy) -> Verdict | None:
    """Return the verdict at this look, None when more replicas are worth having.

    Asked at the numbers of replicas that `LOOKS` names; at the last one there is always a verdict.
    Accepted: the lower bound of the geomean, or of the target class, lies above the policy's
    minimum gain, no case's slowdown can reach the shape gate, no class's the policy's noise, and no
    class seems to have lost. Rolled back: the geomean's upper bound lies below zero, a case is
    shown beyond the gate, or a class is shown slower (SPLIT where another gained). Otherwise
    inconclusive. Where no regression is all that is asked, bounds of every case below the shape
    gate are enough, also for a change that is slower. Raises BadInput for a class that there is
    none of.
    """
    look = evidence.replicas
    level = LOOKS[look]
    judged = _judge(evidence, policy, level)
    unfit = judged.placebo_fails()
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
    if not (evidence.at_end or _is_futile(judged, evidence, policy)):
        return None
    most = max(len(case.ratios) for case in evidence.cases)
    return judged.verdict(
        Decision.INCONCLUSIVE,
        f"after {most} processes {judged.goal_name} changed by {judged.shown(judged.goal)}: "
        f"{judged.why_open}",
        judged.step_when_open(),
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """A look's estimates: total, by case and class, and which are shown to be what.

    `regressed` holds the cases that roll a round back.
    """

    evidence: PairedEvidence
    policy: Policy
    level: float
    excess: float
    total: Estimate
    shapes: Mapping[str, Estimate]
    regressed: frozenset[str]
    slower: frozenset[str]
    open_shapes: frozenset[str]
    groups: Mapping[str, Sequence[PairedCase]]
    classes: Mapping[str, Estimate]
    standing: Standing
    open_classes: frozenset[str]
    target: str | None

    @property
    def goal(self) -> Estimate:
        """What has to improve: the target class, or the aggregate."""
        return self.classes[self.target] if self.target else self.total

    @property
    def goal_name(self) -> str:
        """How people call it."""
        metric = self.evidence.speed
        return f"{metric} of {self.target!r}" if self.target else metric

    def step_when_open(self) -> str:
        """Return what to do where nothing is decided; a case that is shown to lose is named."""
        lost = [
            case.label
            for case in self.evidence.cases
            if case.name in self.open_shapes and self.shapes[case.name].upper(case.level) < 0
        ]
        if lost:
            then = after_regression(some_gained=self.some_gained)
            return f"{', '.join(lost)} got slower: {then}"
        return "not shown to be slower; look for a larger effect"

    @property
    def some_gained(self) -> bool:
        """Whether a case's interval lies above zero."""
        return any(found.lower(SHAPE_LEVEL) > 0 for found in self.shapes.values())

    @property
    def why_open(self) -> str:
        """Why nothing is decided: a case or class that may have lost, or that nothing is clear."""
        levels = {case.name: self.evidence.level_of(case) for case in self.evidence.cases}
        for kind, names, found in (
            ("case", self.open_shapes, self.shapes),
            ("class", self.open_classes, self.classes),
        ):
            if names:
                at = levels if kind == "case" else dict.fromkeys(names, SHAPE_LEVEL)
                worst = min(names, key=lambda name: found[name].lower(at[name]))
                label = self._label(worst) if kind == "case" else worst
                shown = _shown(found[worst], at[worst])
                return f"{kind} {label!r} may have lost more than is allowed, {shown}"
        return "neither faster nor slower"

    def shown(self, found: Estimate) -> str:
        """Describe a change with its interval at this look."""
        return _shown(found, self.level)

    def worst(self, keys: frozenset[str]) -> str:
        """Describe the slowest of some cases."""
        name = min(keys, key=lambda key: self.shapes[key].mean)
        return f"case {self._label(name)!r} is slower: {changed(percent(self.shapes[name].mean))}"

    def _label(self, name: str) -> str:
        return next(case.label for case in self.evidence.cases if case.name == name)

    def placebo_fails(self) -> str:
        """Return why the machine is not fit: the incumbent differs from its own copy.

        It is judged at the level of the look: where the copy seems to have gained, so could a
        candidate.
        """
        cases = self.evidence.cases
        if not all(case.placebo for case in cases):
            return ""
        copies = [replace(case, ratios=case.placebo, placebo=case.ratios) for case in cases]
        found = _together(copies, self.evidence, self.excess)
        if found.lower(self.level) <= 0 <= found.upper(self.level):
            return ""
        return (
            f"the A/A control failed: the incumbent differs from its own copy by "
            f"{self.shown(found)}"
        )

    def verdict(self, decision: Decision, reason: str, step: str) -> Verdict:
        """Build the verdict with this look's intervals."""
        evidence = self.evidence
        candidate, incumbent = _values(evidence.cases)
        return Verdict(
            decision=decision,
            reason=reason,
            next_step=step,
            compare="paired",
            policy=self.policy.name,
            aggregate=Aggregate(
                metric=evidence.metric,
                better=evidence.better,
                candidate=candidate,
                incumbent=incumbent,
                change_pct=percent(self.total.mean),
                low_pct=percent(self.total.lower(self.level)),
                high_pct=percent(self.total.upper(self.level)),
                confidence=1 - 2 * self.level,
            ),
            shapes=[self._shape(case) for case in evidence.cases],
            classes=[self._class(name) for name in self.groups],
            target_class=self.target,
            noise=self._known_noise(),
            flags=list(evidence.flags),
        )

    def _known_noise(self) -> KnownNoise | None:
        prior = self.evidence.prior(self.evidence.cases)
        if prior is None:
            return None
        return KnownNoise(
            sd_pct=percent(math.sqrt(prior.variance)),
            freedom=prior.freedom,
            source=prior.source,
            excess=self.excess,
        )

    def _shape(self, case: PairedCase) -> Shape:
        found = self.shapes[case.name]
        low, high = found.lower(case.level), found.upper(case.level)
        status: Status = "improved" if low > 0 else "unchanged"
        if case.name in self.regressed or high < _slower_by(self.policy.shape_gate_pct):
            status = "regressed"
        bounds = None if case.same else [percent(value) for value in (found.mean, low, high)]
        change_pct, low_pct, high_pct = bounds or (None, None, None)
        return Shape(
            label=case.label,
            dims=dict(case.dims),
            check="PASS",
            change_pct=change_pct,
            low_pct=low_pct,
            high_pct=high_pct,
            status=status,
            device=case.device,
            same=case.same,
        )

    def _class(self, name: str) -> ConfigClass:
        """Return a class with the interval that it is judged by: the target's is the look's."""
        found, cases = self.classes[name], self.groups[name]
        level = self.level if name == self.target else SHAPE_LEVEL
        candidate, incumbent = _values(cases)
        return ConfigClass(
            name=name,
            dims=self.evidence.classes.common(cases[0].dims),
            cases=len(cases),
            candidate=candidate,
            incumbent=incumbent,
            change_pct=percent(found.mean),
            low_pct=percent(found.lower(level)),
            high_pct=percent(found.upper(level)),
            confidence=1 - 2 * level,
            status=self.standing.status(name),
        )


def _shown(found: Estimate, level: float) -> str:
    return changed_within(*map(percent, (found.mean, found.lower(level), found.upper(level))))


def _values(cases: Sequence[PairedCase]) -> tuple[float | None, float | None]:
    """Return the geometric means of the candidate's and the incumbent's metric, where known."""
    found = [case.values for case in cases if case.values is not None]
    if len(found) < len(cases):
        return None, None
    return geomean(new for new, _ in found), geomean(old for _, old in found)


def whole(evidence: PairedEvidence) -> Estimate:
    """Return the estimate that the geometric mean of all cases is judged by."""
    return _together(evidence.cases, evidence, evidence.excess)


def _together(cases: Sequence[PairedCase], evidence: PairedEvidence, excess: float) -> Estimate:
    """Return the estimate of the cases' geometric mean."""
    prior = evidence.prior(cases)
    common = min(len(case.ratios) for case in cases)
    control: Sequence[float] = ()
    if all(case.placebo for case in cases):
        control = mean_of([case.placebo[:common] for case in cases])
    ratios = mean_of([case.ratios[:common] for case in cases])
    return Estimate.of(ratios, control, prior and prior.times(excess))


def open_alone(evidences: Sequence[PairedEvidence], policy: Policy) -> frozenset[str]:
    """Return the cases that alone keep a look from a verdict, where all the rest is clear.

    None where every case is open, where a class is, or where more than cases is to be shown.
    """
    found: set[str] = set()
    for evidence in evidences:
        judged = _judge(evidence, policy, LOOKS[evidence.replicas])
        clear = replace(judged, open_shapes=frozenset())
        decided = None if judged.placebo_fails() else _decide(clear, evidence, policy)
        if decided is None or not decided.decision.keeps:
            return frozenset()
        found |= judged.open_shapes
    everything = {case.name for case in evidences[0].cases}
    return frozenset(found) if found < everything else frozenset()


def _judge(evidence: PairedEvidence, policy: Policy, level: float) -> _Judged:
    excess = evidence.excess
    shapes = {case.name: _together([case], evidence, excess) for case in evidence.cases}
    members = evidence.classes.group({case.name: case.dims for case in evidence.cases})
    by_name = {case.name: case for case in evidence.cases}
    groups = {name: [by_name[case] for case in found] for name, found in members.items()}
    classes = {name: _together(cases, evidence, excess) for name, cases in groups.items()}
    gate = _slower_by(policy.shape_gate_pct)
    core = {case.name for case in evidence.cases if case.core}
    beyond = {key: shapes[key].p_below(gate) for key in core}
    slower = {key: estimate.p_below(0.0) for key, estimate in shapes.items()}
    return _Judged(
        evidence,
        policy,
        level,
        excess,
        _together(evidence.cases, evidence, excess),
        shapes,
        regressed=frozenset(holm_rejects(beyond, level)),
        slower=frozenset(holm_rejects(slower, level)),
        open_shapes=frozenset(
            key for key in core if shapes[key].lower(evidence.level_of(by_name[key])) <= gate
        ),
        groups=groups,
        classes=classes,
        standing=_standing(classes, level),
        # A single class is all cases: what the aggregate says is enough.
        open_classes=_unsafe(classes, policy) if len(classes) > 1 else frozenset(),
        target=evidence.classes.target_among(groups),
    )


def _standing(classes: Mapping[str, Estimate], level: float) -> Standing:
    """Return how the classes stand: a gain lies above zero, a loss beyond the known bias.

    A gain is only told, at the level of a case's interval; a loss rolls back, at the look's. A
    path of its own is worth having for a class that gained more than the bias.
    """
    gains = {name: found.p_above(0.0) for name, found in classes.items()}
    clear = {name: found.p_above(-_BIAS) for name, found in classes.items()}
    losses = {name: found.p_below(_BIAS) for name, found in classes.items()}
    return Standing(
        {name: percent(found.mean) for name, found in classes.items()},
        improved=frozenset(holm_rejects(gains, SHAPE_LEVEL)),
        regressed=frozenset(holm_rejects(losses, level)),
        worthwhile=frozenset(holm_rejects(clear, SHAPE_LEVEL)),
    )


def _unsafe(classes: Mapping[str, Estimate], policy: Policy) -> frozenset[str]:
    """Return the classes that may have lost the policy's noise, or seem to have lost at all."""
    noise = _slower_by(policy.noise_pct)
    return frozenset(
        name
        for name, found in classes.items()
        if found.lower(SHAPE_LEVEL) <= noise or found.upper(SHAPE_LEVEL) < _BIAS
    )


def _decide(judged: _Judged, evidence: PairedEvidence, policy: Policy) -> Verdict | None:
    total, goal, level = judged.total, judged.goal, judged.level
    shown = judged.shown(total)
    if judged.standing.is_split:
        return judged.verdict(*judged.standing.split())
    if judged.regressed:
        return judged.verdict(
            Decision.ROLLED_BACK,
            f"{judged.worst(judged.regressed)}, beyond the gate of {policy.shape_gate_pct:g} %; "
            f"{evidence.speed} {shown}",
            after_regression(some_gained=judged.some_gained),
        )
    is_harmless = evidence.gate == "no-regression" and not judged.open_shapes
    # Also a round about one class may not lower the whole, as the chain of rounds never falls.
    for name, found in {evidence.speed: total, judged.goal_name: goal}.items():
        if found.upper(level) < 0 and not is_harmless:
            return judged.verdict(
                Decision.ROLLED_BACK,
                f"{name} fell: {judged.shown(found)}",
                "the incumbent stays; try another hypothesis",
            )
    if judged.standing.has_loss:
        return judged.verdict(*judged.standing.loss())
    if judged.open_shapes or judged.open_classes:
        return None
    if is_harmless:
        safe = (
            f"no case is slower by {policy.shape_gate_pct:g} % or more, at "
            f"{100 * (1 - GATE_LEVEL):g} %; {evidence.speed} {shown}"
        )
        if judged.slower:
            note = f"{safe}; {judged.worst(judged.slower)}"
            return judged.verdict(Decision.ACCEPTED_WITH_NOTE, note, "mind the slower case")
        return judged.verdict(Decision.ACCEPTED, safe, "")
    if goal.lower(level) <= log_ratio(policy.minimum_gain_pct):
        return None
    gain = f"{judged.goal_name} improved: {judged.shown(goal)}"
    if judged.slower:
        return judged.verdict(
            Decision.ACCEPTED_WITH_NOTE,
            f"{gain}; {judged.worst(judged.slower)}, less than the gate",
            "go on with the next round; mind the slower case",
        )
    return judged.verdict(Decision.ACCEPTED, gain, "go on with the next round")


def _is_futile(judged: _Judged, evidence: PairedEvidence, policy: Policy) -> bool:
    """Say whether even a mean one standard error away would decide nothing at the last look.

    Errors shrink with the square root of the processes and the level is laxer then.
    """
    if evidence.gate == "no-regression" or judged.open_shapes or judged.open_classes:
        return False
    goal = judged.goal
    shrink = (evidence.replicas / FINAL_LOOK) ** 0.5
    level = LOOKS[FINAL_LOOK]
    arms = 2 if evidence.cases[0].placebo else 1
    freedom = goal.freedom + arms * (FINAL_LOOK - evidence.replicas)
    better, worse = (
        Estimate(goal.mean + sign * goal.error, goal.error * shrink, freedom) for sign in (1, -1)
    )
    accepts = better.lower(level) > log_ratio(policy.minimum_gain_pct)
    return not accepts and worse.upper(level) >= 0


def decide_equal(evidence: PairedEvidence, policy: Policy, benefit: str) -> Verdict | None:
    """Return the verdict on a version that is equal in speed and has a benefit, None where not.

    Two one-sided tests at the look's level: the whole intervals of the aggregate and of the target
    class lie inside the policy's noise, and no case and no class may have lost, as for acceptance.
    Asked only where `decide_paired` decides nothing or says INCONCLUSIVE: nothing is shown slower.
    """
    judged = _judge(evidence, policy, LOOKS[evidence.replicas])
    low, high = _slower_by(policy.noise_pct), log_ratio(policy.noise_pct)
    both = (judged.total, judged.goal)
    inside = all(
        low < found.lower(judged.level) and found.upper(judged.level) < high for found in both
    )
    if not inside or judged.open_shapes or judged.open_classes:
        return None
    slower = f"; {judged.worst(judged.slower)}" if judged.slower else ""
    return judged.verdict(
        Decision.ACCEPTED_WITH_NOTE,
        f"{judged.goal_name} is equal within {policy.noise_pct:g} %: {judged.shown(judged.goal)}"
        f"{slower}; kept for its extra benefit: {benefit}",
        "go on with the next round",
    )


def decide_metrics(
    evidences: Sequence[PairedEvidence], policy: Policy, extra_benefit: str | None = None
) -> Verdict | None:
    """Judge several primary metrics at one look: none may regress, at least one must improve.

    Where none is shown to improve, a stated benefit is enough if all are equal within the noise.
    """
    found = _decide_metrics(evidences, policy)
    benefit = (extra_benefit or "").strip()
    if not benefit or (found and found.decision is not Decision.INCONCLUSIVE):
        return found
    equal = [decide_equal(evidence, policy, benefit) for evidence in evidences]
    kept = [verdict for verdict in equal if verdict is not None]
    if len(kept) == len(evidences):
        return _leading(kept[0], kept)
    # No gain is in sight, but further processes may still show that the two are equal.
    return found if evidences[0].at_end else None


def _decide_metrics(evidences: Sequence[PairedEvidence], policy: Policy) -> Verdict | None:
    verdicts = [decide_paired(evidence, policy) for evidence in evidences]
    decided = [verdict for verdict in verdicts if verdict is not None]
    for kind in (Decision.INCOMPLETE, Decision.SPLIT, Decision.ROLLED_BACK):
        found = [verdict for verdict in decided if verdict.decision is kind]
        if found:
            return found[0]
    if len(decided) < len(verdicts):
        return None
    kept = [verdict for verdict in decided if verdict.decision.keeps]
    return _leading(kept[0] if kept else decided[0], decided)


def _leading(lead: Verdict, verdicts: Sequence[Verdict]) -> Verdict:
    """Return a metric's verdict with what was found for the others."""
    others = [verdict.aggregate for verdict in verdicts if verdict is not lead]
    return lead.model_copy(update={"secondary": [total for total in others if total]})
