"""The result of a look at the replicas: intervals of the whole, of each case and of each class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.classes import ClassStanding, Status
from pytest_kopt.decide.hard_gates import after_regression
from pytest_kopt.decide.inference import (
    KNOWN_BIAS_PCT,
    SHAPE_LEVEL,
    Estimate,
    holm_rejects,
    log_ratio,
    percent,
)
from pytest_kopt.decide.paired_evidence import UNDER_SKEW, PairedCase, PairedEvidence
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Aggregate, ConfigClass, Decision, KnownNoise, Verdict
from pytest_kopt.figures import at_level, changed, changed_within
from pytest_kopt.schema.metrics import WEIGHTED_TIME, geomean


def slower_by(pct: float) -> float:
    """Return log(incumbent / candidate) of a version that takes `pct` percent longer."""
    return -log_ratio(pct)


_BIAS = slower_by(KNOWN_BIAS_PCT)


def judge_look(evidence: PairedEvidence, policy: Policy, level: float) -> JudgedLook:
    """Return the estimates of the replicas so far, judged at a one-sided level."""
    excess = evidence.excess
    shapes = {case.name: evidence.together([case], excess) for case in evidence.cases}
    members = evidence.classes.group({case.name: case.dims for case in evidence.cases})
    by_name = {case.name: case for case in evidence.cases}
    groups = {name: [by_name[case] for case in case_names] for name, case_names in members.items()}
    classes = {name: evidence.together(cases, excess) for name, cases in groups.items()}
    limits = {
        case.name: slower_by(case.limit(policy).time_pct)
        for case in evidence.cases
        if case.is_guarded
    }
    beyond = {key: shapes[key].p_below(limit) for key, limit in limits.items()}
    # No case may be shown to lose its limit at the operating point that does not decide.
    beyond_second = {
        key: second
        for key, limit in limits.items()
        if (second := by_name[key].second) and second.upper(SHAPE_LEVEL) < limit
    }
    slower = {key: estimate.p_below(0.0) for key, estimate in shapes.items()}
    return JudgedLook(
        evidence,
        policy,
        level,
        excess,
        evidence.together(evidence.cases, excess),
        evidence.weighted(excess),
        shapes,
        regressed=frozenset(holm_rejects(beyond, level)) | beyond_second.keys(),
        beyond_second=beyond_second,
        slower=frozenset(holm_rejects(slower, level)),
        open_shapes=frozenset(
            key for key, limit in limits.items() if shapes[key].lower(evidence.limit_level) <= limit
        ),
        groups=groups,
        classes=classes,
        standing=_standing(classes, level),
        # A single class is all cases: what the aggregate says is enough.
        open_classes=_unsafe(classes, policy) if len(classes) > 1 else frozenset(),
        target=evidence.classes.target_among(groups),
    )


@dataclass(frozen=True, slots=True)
class JudgedLook:
    """A look's estimates; `regressed` holds the cases that roll a round back.

    `beyond_second` are the estimates of those among them that lost at the operating point that does
    not decide.
    `weighted` is the estimate of the weighted time, None where a case's time is not known.
    """

    evidence: PairedEvidence
    policy: Policy
    level: float
    excess: float
    geomean: Estimate
    weighted: Estimate | None
    shapes: Mapping[str, Estimate]
    regressed: frozenset[str]
    beyond_second: Mapping[str, Estimate]
    slower: frozenset[str]
    open_shapes: frozenset[str]
    groups: Mapping[str, Sequence[PairedCase]]
    classes: Mapping[str, Estimate]
    standing: ClassStanding
    open_classes: frozenset[str]
    target: str | None

    @property
    def is_by_weight(self) -> bool:
        """Whether the weighted time decides."""
        return self.policy.decided_by == "weighted-time" and self.weighted is not None

    @property
    def total(self) -> Estimate:
        """The estimate of all cases that decides."""
        return self.weighted if self.is_by_weight and self.weighted else self.geomean

    @property
    def speed(self) -> str:
        return WEIGHTED_TIME.speed if self.is_by_weight else self.evidence.speed

    @property
    def goal(self) -> Estimate:
        return self.classes[self.target] if self.target else self.total

    @property
    def goal_name(self) -> str:
        return f"{self.evidence.speed} of {self.target!r}" if self.target else self.speed

    @property
    def fallen(self) -> str:
        """The note that the figure of all cases fell, if it does not decide, or ""."""
        estimate, name = self.weighted, WEIGHTED_TIME.speed
        if self.is_by_weight:
            estimate, name = self.geomean, self.evidence.speed
        if len(self.shapes) < 2 or estimate is None or estimate.upper(SHAPE_LEVEL) >= 0:
            return ""
        return f"{name} fell: {_shown(estimate, SHAPE_LEVEL)}"

    def step_when_open(self) -> str:
        """Return what to do where nothing is decided; a case that is shown to lose is named."""
        lost = [
            case.label
            for case in self.evidence.cases
            if case.name in self.open_shapes and self.shapes[case.name].upper(SHAPE_LEVEL) < 0
        ]
        if lost:
            then = after_regression(some_gained=self.some_gained)
            return f"{', '.join(lost)} got slower: {then}"
        return "the change is too small to measure: try one with a larger effect"

    @property
    def some_gained(self) -> bool:
        return any(estimate.lower(SHAPE_LEVEL) > 0 for estimate in self.shapes.values())

    @property
    def why_open(self) -> str:
        """Why nothing is decided: a case or class that may have lost, or that nothing is clear."""
        if self.open_shapes:
            level = self.evidence.limit_level
            worst = min(self.open_shapes, key=lambda name: self.shapes[name].lower(level))
            case, interval = self._case(worst), _at(self.shapes[worst], level)
            limit = case.limit(self.policy)
            longer = f"{limit} more time ({changed(percent(slower_by(limit.time_pct)))})"
            return f"{longer} in case {case.label!r} cannot be excluded: {interval}"
        if self.open_classes:
            worst = min(self.open_classes, key=lambda name: self.classes[name].lower(SHAPE_LEVEL))
            interval = _at(self.classes[worst], SHAPE_LEVEL)
            return f"a loss in class {worst!r} cannot be excluded: {interval}"
        return "neither a gain nor a loss is shown"

    def shown(self, estimate: Estimate) -> str:
        return _shown(estimate, self.level)

    def shown_at(self, estimate: Estimate) -> str:
        """Return a change with its interval and the interval's confidence level."""
        return _at(estimate, self.level)

    def worst(self, keys: frozenset[str]) -> str:
        """Return how much slower the slowest of these cases is, "" for none."""
        if not keys:
            return ""
        name = self._slowest(keys)
        mean, case = self._worst_mean(name), self._case(name)
        where = ""
        if case.points and mean < self.shapes[name].mean:
            where = f" at the operating point {case.points.other}"
        return f"case {case.label!r} is slower: {changed(percent(mean))}{where}"

    @property
    def limits(self) -> str:
        """The regression limits in words: the policy's, or each case's own."""
        limits = {str(case.limit(self.policy)) for case in self.evidence.cases}
        return limits.pop() if len(limits) == 1 else "its limit"

    @property
    def limit_of_worst(self) -> str:
        """The limit of the slowest of the regressed cases, in words."""
        name = self._slowest(self.regressed)
        case = self._case(name)
        own = (case.limit_pct, case.limit_us) != (None, None)
        return f"{'its' if own else 'the regression'} limit of {case.limit(self.policy)}"

    def _slowest(self, keys: frozenset[str]) -> str:
        return min(keys, key=self._worst_mean)

    def _worst_mean(self, name: str) -> float:
        """Return what a case changed by, at the operating point where it lost if it did."""
        mean, second = self.shapes[name].mean, self.beyond_second.get(name)
        return min(mean, second.mean) if second else mean

    def _case(self, name: str) -> PairedCase:
        return next(case for case in self.evidence.cases if case.name == name)

    def verdict(self, decision: Decision, reason: str, step: str) -> Verdict:
        evidence = self.evidence
        mean, weighted = self._geomean(), self._weighted_time()
        return Verdict(
            decision=decision,
            reason=reason,
            next_step=step,
            compare="paired",
            policy=self.policy.name,
            aggregate=weighted if self.is_by_weight else mean,
            weighted_time=weighted if len(evidence.cases) > 1 else None,
            secondary=[mean] if self.is_by_weight else [],
            shapes=[self._shape(case) for case in evidence.cases],
            classes=[self._class(name) for name in self.groups],
            target_class=self.target,
            noise=self._known_noise(),
            flags=[*evidence.flags, *self._opposite_signs],
        )

    @property
    def _opposite_signs(self) -> list[str]:
        """The cases that gain at one operating point and lose at the other, with both changes."""
        return [
            f"{case.label}: {text}"
            for case in self.evidence.cases
            if case.points and (text := case.points.opposite(self.shapes[case.name]))
        ]

    def _named(self, metric: str) -> str:
        return f"{metric} {UNDER_SKEW}" if self.evidence.under_skew else metric

    def _geomean(self) -> Aggregate:
        candidate, incumbent = _values(self.evidence.cases)
        return Aggregate(
            metric=self._named(self.evidence.metric),
            better=self.evidence.better,
            candidate=candidate,
            incumbent=incumbent,
            confidence=1 - 2 * self.level,
            **self.geomean.figures(self.level),
        )

    def _weighted_time(self) -> Aggregate | None:
        if self.weighted is None:
            return None
        cases = self.evidence.cases
        before = math.fsum(case.weight * (case.incumbent_ms or 0.0) for case in cases)
        return Aggregate(
            metric=self._named(WEIGHTED_TIME.name),
            better=WEIGHTED_TIME.better,
            candidate=before * math.exp(-self.weighted.mean),
            incumbent=before,
            confidence=1 - 2 * self.level,
            **self.weighted.figures(self.level),
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
        estimate = self.shapes[case.name]
        status: Status = "improved" if estimate.lower(SHAPE_LEVEL) > 0 else "unchanged"
        gate = slower_by(case.limit(self.policy).time_pct)
        if case.name in self.regressed or estimate.upper(SHAPE_LEVEL) < gate:
            status = "regressed"
        shape = Shape(
            label=case.label,
            dims=dict(case.dims),
            check="PASS",
            status=status,
            device=case.device,
            same=case.same,
            memory=case.memory,
            first_call_ms=case.first_call_ms,
        )
        figures: dict[str, Any] = {} if case.same else estimate.figures(SHAPE_LEVEL)
        points = case.points.document(estimate) if case.points else {}
        return shape.model_copy(update={**figures, **points, "cache": case.cache})

    def _class(self, name: str) -> ConfigClass:
        """Return a class with the interval that it is judged by: the target's is the look's."""
        estimate, cases = self.classes[name], self.groups[name]
        level = self.level if name == self.target else SHAPE_LEVEL
        candidate, incumbent = _values(cases)
        return ConfigClass(
            name=name,
            dims=self.evidence.classes.common(cases[0].dims),
            cases=len(cases),
            candidate=candidate,
            incumbent=incumbent,
            confidence=1 - 2 * level,
            status=self.standing.status(name),
            **estimate.figures(level),
        )


def _standing(classes: Mapping[str, Estimate], level: float) -> ClassStanding:
    """Return how the classes stand: a gain lies above zero, a loss beyond the known bias.

    A gain is only told, at the level of a case's interval; a loss rolls back, at the look's. A
    path of its own is worth having for a class that gained more than the bias.
    """
    gains = {name: estimate.p_above(0.0) for name, estimate in classes.items()}
    clear = {name: estimate.p_above(-_BIAS) for name, estimate in classes.items()}
    losses = {name: estimate.p_below(_BIAS) for name, estimate in classes.items()}
    return ClassStanding(
        {name: percent(estimate.mean) for name, estimate in classes.items()},
        improved=frozenset(holm_rejects(gains, SHAPE_LEVEL)),
        regressed=frozenset(holm_rejects(losses, level)),
        worthwhile=frozenset(holm_rejects(clear, SHAPE_LEVEL)),
    )


def _unsafe(classes: Mapping[str, Estimate], policy: Policy) -> frozenset[str]:
    """Return the classes that may have lost the policy's noise, or seem to have lost at all."""
    noise = slower_by(policy.noise_pct)
    return frozenset(
        name
        for name, estimate in classes.items()
        if estimate.lower(SHAPE_LEVEL) <= noise or estimate.upper(SHAPE_LEVEL) < _BIAS
    )


def _shown(estimate: Estimate, level: float) -> str:
    return changed_within(*estimate.figures(level).values())


def _at(estimate: Estimate, level: float) -> str:
    return f"{_shown(estimate, level)} at {at_level(1 - 2 * level)}"


def _values(cases: Sequence[PairedCase]) -> tuple[float | None, float | None]:
    """Return the geometric means of the candidate's and the incumbent's metric, where known."""
    values = [case.values for case in cases if case.values is not None]
    if len(values) < len(cases):
        return None, None
    return geomean(new for new, _ in values), geomean(old for _, old in values)
