"""A look at the replicates: estimates by one metric, the claims about them, and their words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.claims import SeriesClaim, Statement, shown
from pytest_kopt.decide.classes import ClassStanding, Status
from pytest_kopt.decide.conclusion import Answer
from pytest_kopt.decide.inference import (
    GATE_LEVEL,
    KNOWN_BIAS_PCT,
    SHAPE_LEVEL,
    Estimate,
    log_ratio,
    percent,
)
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.series import (
    Series,
    SeriesTable,
    excess_of,
    prior_of,
    together,
    weighted_time,
)
from pytest_kopt.decide.verdict import Aggregate, ConfigClass, KnownNoise, Verdict
from pytest_kopt.schema.metrics import WEIGHTED_TIME, Metric, geomean


def slower_by(pct: float) -> float:
    """Return log(incumbent / candidate) of a version that takes `pct` percent longer."""
    return -log_ratio(pct)


@dataclass(frozen=True)
class Look:
    """The `cases` of one metric and kind at a look of a one-sided level, and what they show."""

    table: SeriesTable
    cases: Sequence[Series]
    policy: Policy
    level: float

    def claims(self) -> Iterator[SeriesClaim]:
        """Yield the claims that the rules read; each is shown or not."""
        level, noise, bias = self.level, self.policy.noise_pct, slower_by(KNOWN_BIAS_PCT)
        say = Statement
        for case in self.cases:
            name, of = case.name, self.of_case[case.name]
            limit = slower_by(case.limit(self.policy).time_pct)
            yield SeriesClaim(say.CASE_FASTER, name, of, 0.0, SHAPE_LEVEL)
            yield SeriesClaim(say.CASE_SLOWER, name, of, 0.0, level)
            yield SeriesClaim(say.CASE_BEYOND_LIMIT_ALONE, name, of, limit, SHAPE_LEVEL)
            if not case.is_guarded:
                continue
            yield SeriesClaim(say.CASE_WITHIN_LIMIT, name, of, limit, self.limit_level)
            yield SeriesClaim(say.CASE_BEYOND_LIMIT, name, of, limit, level)
            if other := self.at_other_point.get(name):
                yield SeriesClaim(say.CASE_BEYOND_LIMIT_ELSEWHERE, name, other, limit, SHAPE_LEVEL)
        for name, of in self.of_class.items():
            yield SeriesClaim(say.CLASS_FASTER, name, of, 0.0, SHAPE_LEVEL)
            yield SeriesClaim(say.CLASS_WORTH_A_PATH, name, of, -bias, SHAPE_LEVEL)
            yield SeriesClaim(say.CLASS_SLOWER, name, of, bias, level)
            yield SeriesClaim(say.CLASS_SLOWER_ALONE, name, of, bias, SHAPE_LEVEL)
            yield SeriesClaim(say.CLASS_WITHIN_NOISE, name, of, slower_by(noise), SHAPE_LEVEL)
        for name, of in self.aims.items():
            least = log_ratio(self.policy.minimum_gain_pct)
            yield SeriesClaim(say.FASTER, name, of, least, level)
            yield SeriesClaim(say.SLOWER, name, of, 0.0, level)
            yield SeriesClaim(say.NOT_SLOWER_THAN_NOISE, name, of, slower_by(noise), level)
            yield SeriesClaim(say.NOT_FASTER_THAN_NOISE, name, of, log_ratio(noise), level)
        for metric, of in self.totals[1:] if len(self.cases) > 1 else ():
            yield SeriesClaim(say.OTHER_FIGURE_SLOWER, metric.speed, of, 0.0, SHAPE_LEVEL)

    @cached_property
    def shown(self) -> Mapping[Statement, set[str]]:
        return shown(self.claims())

    @property
    def lost_elsewhere(self) -> set[str]:
        return self.shown[Statement.CASE_BEYOND_LIMIT_ELSEWHERE]

    @property
    def regressed(self) -> set[str]:
        """The cases that roll a round back."""
        return self.shown[Statement.CASE_BEYOND_LIMIT] | self.lost_elsewhere

    @cached_property
    def open_cases(self) -> set[str]:
        """The guarded cases that may be beyond their limits."""
        guarded = {case.name for case in self.cases if case.is_guarded}
        return guarded - self.shown[Statement.CASE_WITHIN_LIMIT]

    @cached_property
    def open_classes(self) -> set[str]:
        """The classes that may have lost; a single class is all cases, which say enough."""
        if len(self.of_class) < 2:
            return set()
        unclear = self.of_class.keys() - self.shown[Statement.CLASS_WITHIN_NOISE]
        return unclear | self.shown[Statement.CLASS_SLOWER_ALONE]

    @cached_property
    def standing(self) -> ClassStanding:
        return ClassStanding(
            {name: percent(of.mean) for name, of in self.of_class.items()},
            improved=self.shown[Statement.CLASS_FASTER],
            regressed=self.shown[Statement.CLASS_SLOWER],
            worthwhile=self.shown[Statement.CLASS_WORTH_A_PATH],
        )

    @cached_property
    def excess(self) -> float:
        return excess_of(self.cases)

    @cached_property
    def of_case(self) -> Mapping[str, Estimate]:
        return {case.name: together([case], self.excess) for case in self.cases}

    @cached_property
    def at_other_point(self) -> Mapping[str, Estimate]:
        """The estimates of cases at the operating point that does not decide."""
        metric = self.cases[0].metric
        found = (s for s in self.table.series if s.kind == "other point" and s.metric == metric)
        return {series.name: together([series]) for series in found}

    @cached_property
    def groups(self) -> Mapping[str, Sequence[Series]]:
        """The cases of each class."""
        by_name = {case.name: case for case in self.cases}
        groups = self.table.classes.group({name: case.dims for name, case in by_name.items()})
        return {name: [by_name[case] for case in of_class] for name, of_class in groups.items()}

    @cached_property
    def of_class(self) -> Mapping[str, Estimate]:
        return {name: together(cases, self.excess) for name, cases in self.groups.items()}

    @cached_property
    def target(self) -> str | None:
        """The target class; under skew no case of it may have group sizes."""
        target = self.table.target
        return target if target in self.groups else None

    @cached_property
    def totals(self) -> Sequence[tuple[Metric, Estimate]]:
        """The figures of all cases, as far as they are known; the one that decides comes first."""
        found = [(self.cases[0].metric, together(self.cases, self.excess))]
        if weighted := weighted_time(self.cases, self.excess):
            found.append((WEIGHTED_TIME, weighted))
        return found[::-1] if self.policy.decided_by == "weighted-time" else found

    @property
    def total(self) -> Estimate:
        return self.totals[0][1]

    @property
    def speed(self) -> str:
        return self.totals[0][0].speed

    @property
    def goal(self) -> Estimate:
        return self.of_class[self.target] if self.target else self.total

    @property
    def goal_name(self) -> str:
        return f"{self.cases[0].metric.speed} of {self.target!r}" if self.target else self.speed

    @property
    def aims(self) -> Mapping[str, Estimate]:
        """All cases, which may not fall, and what has to improve, by their names."""
        return {self.speed: self.total, self.goal_name: self.goal}

    @property
    def asks_less(self) -> bool:
        """Whether no case may be slower, and nothing has to be faster."""
        return self.table.gate == "no-regression"

    @property
    def is_harmless(self) -> bool:
        return self.asks_less and not self.open_cases

    @property
    def limit_level(self) -> float:
        """The one-sided level at which a case has to be clear of its regression limit."""
        return GATE_LEVEL if self.asks_less else SHAPE_LEVEL

    def worst_mean(self, name: str) -> float:
        """Return what a case changed by, at the operating point where it lost if it did."""
        mean = self.of_case[name].mean
        return min(mean, self.at_other_point[name].mean) if name in self.lost_elsewhere else mean

    def verdict(self, answer: Answer, others: Sequence[Look]) -> Verdict:
        """Return the document; the figures of all cases by `others` follow those of this look."""
        deciding, *further = (total for look in (self, *others) for total in look._totals())
        weighted = dict(self.totals).get(WEIGHTED_TIME) if len(self.cases) > 1 else None
        return Verdict(
            **answer._asdict(),
            compare="paired",
            policy=self.policy.name,
            aggregate=deciding,
            weighted_time=self._aggregate(WEIGHTED_TIME, weighted) if weighted else None,
            secondary=further,
            shapes=[self._shape(case) for case in self.cases],
            classes=[self._class(name) for name in self.groups],
            target_class=self.target,
            noise=self._known_noise(),
            flags=[*self.table.flags, *self._opposite_signs()],
        )

    def _opposite_signs(self) -> Iterator[str]:
        """Yield the cases that gain at one operating point and lose at the other."""
        for case in self.cases:
            other = self.at_other_point.get(case.name)
            text = case.points.opposite(self.of_case[case.name], other) if case.points else ""
            if text:
                yield f"{case.label}: {text}"

    def _totals(self) -> list[Aggregate]:
        """Return the figure of all cases that decides, and their geometric mean."""
        decides, mean = self.totals[0][0], self.cases[0].metric
        return [self._aggregate(*total) for total in self.totals if total[0] in (decides, mean)]

    def _aggregate(self, metric: Metric, estimate: Estimate) -> Aggregate:
        candidate, incumbent = _values(self.cases)
        if metric == WEIGHTED_TIME:
            incumbent = math.fsum(c.weight * ms for c in self.cases if (ms := c.incumbent_ms))
            candidate = incumbent * math.exp(-estimate.mean)
        kind = self.cases[0].kind
        return Aggregate(
            metric=metric.name if kind == "declared" else f"{metric.name} {kind}",
            better=metric.better,
            candidate=candidate,
            incumbent=incumbent,
            confidence=1 - 2 * self.level,
            **estimate.figures(self.level),
        )

    def _known_noise(self) -> KnownNoise | None:
        prior = prior_of(self.cases)
        if prior is None:
            return None
        return KnownNoise(
            sd_pct=percent(math.sqrt(prior.variance)),
            freedom=prior.freedom,
            source=prior.source,
            excess=self.excess,
        )

    def _shape(self, case: Series) -> Shape:
        estimate, other = self.of_case[case.name], self.at_other_point.get(case.name)
        status: Status = "unchanged"
        if case.name in self.regressed | self.shown[Statement.CASE_BEYOND_LIMIT_ALONE]:
            status = "regressed"
        elif case.name in self.shown[Statement.CASE_FASTER]:
            status = "improved"
        figures: dict[str, Any] = {} if case.same else estimate.figures(SHAPE_LEVEL)
        return Shape(
            label=case.label,
            dims=dict(case.dims),
            check="PASS",
            status=status,
            device=case.device,
            same=case.same,
            memory=case.memory,
            first_call_ms=case.first_call_ms,
            cache=case.cache,  # type: ignore[arg-type]
            **figures,
            **(case.points.document(estimate, other) if case.points else {}),
        )

    def _class(self, name: str) -> ConfigClass:
        """Return a class with the interval that it is judged by: the target's is the look's."""
        cases = self.groups[name]
        level = self.level if name == self.target else SHAPE_LEVEL
        candidate, incumbent = _values(cases)
        return ConfigClass(
            name=name,
            dims=self.table.classes.common(cases[0].dims),
            cases=len(cases),
            candidate=candidate,
            incumbent=incumbent,
            confidence=1 - 2 * level,
            status=self.standing.status(name),
            **self.of_class[name].figures(level),
        )


def _values(cases: Sequence[Series]) -> tuple[float | None, float | None]:
    """Return the geometric means of the candidate's and the incumbent's metric, where known."""
    values = [case.values for case in cases if case.values is not None]
    if len(values) < len(cases):
        return None, None
    return geomean(new for new, _ in values), geomean(old for _, old in values)
