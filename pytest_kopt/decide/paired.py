"""The paired rule: a list of rules on what a look at fresh processes shows."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pytest_kopt.decide.case_verdict import evidence_for, refuted
from pytest_kopt.decide.claims import Statement
from pytest_kopt.decide.conclusion import NO_FACTS, Answer, VersionFacts, settled
from pytest_kopt.decide.grounds import ANOTHER, GO_ON, RESTORED, after_regression
from pytest_kopt.decide.inference import (
    FINAL_LOOK,
    GATE_LEVEL,
    LOOKS,
    SHAPE_LEVEL,
    Estimate,
    log_ratio,
    percent,
)
from pytest_kopt.decide.look import Look, slower_by
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.series import Series, SeriesTable
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import at_level, changed, within

#: No more processes are started for a change of less: rounds of the same code differ by up to a
#: third of it (docs/paired.md).
WORTH_PCT = 0.1
#: What the rules say, and the look at which they do.
_Judged: TypeAlias = "tuple[Look, Answer]"


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision (None: more replicates), and the reason that a look gives for it, "" for none."""

    then: Decision | None
    reason: Callable[[Look], str]
    next_step: Callable[[Look], str] | str = ""


def decide(table: SeriesTable, policy: Policy, facts: VersionFacts = NO_FACTS) -> Verdict | None:
    """Return the verdict at this interim look, None where more replicates are due.

    `RULES` has the order, and the folder's docstring the reasons for it. No metric may regress, at
    least one has to improve, and what would be kept has to be kept under skew too. The facts come
    last.
    """
    level = LOOKS[table.replicates]
    declared, uneven = (
        [Look(table, cases, policy, level) for cases in table.by_metric(kind)]
        for kind in ("declared", "under skew")
    )
    judged = _by_metrics(declared, facts)
    if judged and uneven:
        judged = _under_skew(*judged, _by_metrics(uneven, facts))
    if judged is None:
        return None
    look, answer = judged
    others = [other for other in (*declared, *uneven) if other is not look]
    return look.verdict(settled(answer, facts), others)


def _under_skew(look: Look, answer: Answer, skewed: _Judged | None) -> _Judged | None:
    """Return the answer on the declared cases by what other draws of the group sizes show.

    A gain that is not shown there takes more replicates; one that is mostly lost there is noted.
    """
    if not answer.decision.keeps:
        return look, answer
    if skewed is None:
        return None
    uneven, (decision, reason, step) = skewed
    if decision is Decision.ACCEPTED:
        if uneven.total.mean >= 0.5 * look.total.mean or look.total.mean <= 0:
            return look, answer
        decision = Decision.ACCEPTED_WITH_NOTE
    if decision.keeps:
        step = answer.next_step
    elif decision is not Decision.INCOMPLETE:
        step = "a gain has to be there whatever the groups' sizes are"
    # A split by classes is told of the declared cases only.
    decision = Decision.ROLLED_BACK if decision is Decision.SPLIT else decision
    return look, Answer(decision, f"{answer.reason}; with other group sizes: {reason}", step)


def _by_metrics(looks: Sequence[Look], facts: VersionFacts) -> _Judged | None:
    """Judge by all primary metrics; each rule asks all of them before the next one is asked.

    If no metric is shown to improve, a stated benefit is enough if all are equal within the noise.
    One of memory has to be there where memory is measured.
    """
    judged = _by_rules(looks)
    benefit = facts.extra_benefit.strip()
    if not benefit or (judged and judged[1].decision is not Decision.INCONCLUSIVE):
        return judged
    first = looks[0]
    taken = [case.memory for case in first.cases]
    known = evidence_for(benefit, taken)
    if not known:
        return judged and (
            judged[0],
            judged[1]._replace(reason=f"{judged[1].reason}; {refuted(taken)}"),
        )
    if all(map(_is_equal, looks)):
        slower = f"; {slower}" if (slower := _slower(first)) else ""
        return first, Answer(
            Decision.ACCEPTED_WITH_NOTE,
            f"{first.goal_name} is equal within {first.policy.noise_pct:g} %: "
            f"{_within(first.goal, first.level)}{slower}; kept for its extra benefit ({known}): "
            f"{benefit}",
            GO_ON,
        )
    # No gain is in sight, but further processes may still show that the two are equal.
    return judged if first.table.is_at_end else None


def _by_rules(looks: Sequence[Look]) -> _Judged | None:
    """Return the answer of the first rule that has a reason, None where that is for more looks."""
    for rules, look in itertools.product(RULES, looks):
        for rule in rules:
            if reason := rule.reason(look):
                step = rule.next_step if isinstance(rule.next_step, str) else rule.next_step(look)
                return (look, Answer(rule.then, reason, step)) if rule.then else None
    raise AssertionError("the last rule always has a reason")


def _regression(look: Look) -> str:
    if not look.regressed:
        return ""
    case = _slowest(look, look.regressed)
    whose = "its" if case.has_own_limit else "the regression"
    limit = f"{whose} limit of {case.limit(look.policy)}"
    total = _within(look.total, look.level)
    return f"{_case(look, look.regressed)}, beyond {limit}; {look.speed} {total}"


def _after_regression(look: Look) -> str:
    return after_regression(some_gained=bool(look.shown[Statement.CASE_FASTER]))


def _fall(look: Look) -> str:
    """Say what fell. For no regression, cases clear of their limits are enough, else the end.

    Also a round about one class may not lower the whole, as the chain of rounds never falls.
    """
    if look.asks_less and (look.is_harmless or not look.table.is_at_end):
        return ""
    fell = (name for name in look.aims if name in look.shown[Statement.SLOWER])
    name = next(fell, "")
    return name and f"{name} fell: {_within(look.aims[name], look.level)}"


def _gain(look: Look) -> str:
    """Say why the version can be kept: for a gain, or because no case can be beyond its limit."""
    if look.open_cases or look.open_classes:
        return ""
    if look.is_harmless:
        limits = {str(case.limit(look.policy)) for case in look.cases}
        limit = limits.pop() if len(limits) == 1 else "its limit"
        return (
            f"no case is slower by {limit} or more, at {100 * (1 - GATE_LEVEL):g} %; {look.speed} "
            f"{_within(look.total, look.level)}"
        )
    is_shown = look.goal_name in look.shown[Statement.FASTER]
    return f"{look.goal_name} improved: {_within(look.goal, look.level)}" if is_shown else ""


def _gain_with_note(look: Look) -> str:
    """Say the same where a case is slower, or where the figure fell that does not decide."""
    slower, fallen = _slower(look), ""
    if slower and not look.is_harmless:
        slower += ", less than the regression limit"
    for metric, estimate in look.totals:
        if metric.speed in look.shown[Statement.OTHER_FIGURE_SLOWER]:
            fallen = f"but {metric.speed} fell: {_within(estimate, SHAPE_LEVEL)}"
    gain = _gain(look)
    return "; ".join(filter(None, (gain, fallen, slower))) if gain and (slower or fallen) else ""


def _after_note(look: Look) -> str:
    return f"{'' if look.is_harmless else f'{GO_ON}; '}look at the slower case"


def _dispute(look: Look) -> str:
    """Say what shows at the end against the current best, but not against its copy."""
    if _is_futile(look) or not look.table.is_at_end or _gain(look):
        return ""
    against_one = [replace(case, copy=_unbiased(case.copy)) for case in look.cases]
    one = replace(look, cases=against_one)
    lost = next(filter(None, (rule.reason(one) for rule in itertools.chain(*_LOSSES))), "")
    shown = lost or next(filter(None, (rule.reason(one) for rule in _GAINS)), "")
    # All cases may gain against both copies, and one may be beyond its limit against the other.
    gains = look.asks_less or look.goal_name in look.shown[Statement.FASTER]
    is_open = not lost and gains and (look.open_cases or look.open_classes)
    copy = f"which changed {look.goal_name} by {changed(percent(look.goal.copy))}"
    return shown and (
        f"{shown}; but not against the copy of the current best (A/A control), "
        f"{f'where {_open(look)}' if is_open else copy}"
    )


def _unbiased(copy: Sequence[float]) -> tuple[float, ...]:
    """Return log-ratios of the A/A control as if the copy never differed."""
    return tuple(ratio - statistics.fmean(copy) for ratio in copy)


def _suspense(look: Look) -> str:
    """Say that further replicates may show a gain or a loss."""
    is_clear = look.table.is_at_end or _is_futile(look) or _gain(look)
    return "" if is_clear else "more replicates are worth having"


def _nothing(look: Look) -> str:
    """Say why nothing is decided: a case or class that may have lost, or that nothing is clear."""
    goal = f"{look.goal_name} changed by {_at(look.goal, look.level)}"
    return f"after {look.table.replicates} replicates {goal}: {_open(look)}"


def _open(look: Look) -> str:
    """Name a case or a class that may have lost."""
    if look.open_cases:
        level = look.limit_level
        cases = (case for case in look.cases if case.name in look.open_cases)
        case = min(cases, key=lambda case: look.of_case[case.name].lower(level))
        limit = case.limit(look.policy)
        longer = f"{limit} more time ({changed(percent(slower_by(limit.time_pct)))})"
        interval = _at(look.of_case[case.name], level)
        return f"{longer} in case {case.label!r} cannot be excluded: {interval}"
    if look.open_classes:
        names = filter(look.open_classes.__contains__, look.of_class)
        name = min(names, key=lambda name: look.of_class[name].lower(SHAPE_LEVEL))
        interval = _at(look.of_class[name], SHAPE_LEVEL)
        return f"a loss in class {name!r} cannot be excluded: {interval}"
    return "neither a gain nor a loss is shown"


def _after_nothing(look: Look) -> str:
    """Return what to do where nothing is decided; a case that is shown to lose is named."""
    lost = [
        case.label
        for case in look.cases
        if case.name in look.open_cases and look.of_case[case.name].upper(SHAPE_LEVEL) < 0
    ]
    if lost:
        return f"{', '.join(lost)} got slower: {_after_regression(look)}"
    return "the change is too small to measure: try one with a larger effect"


_LOSSES = (
    [Rule(Decision.SPLIT, lambda one: one.standing.divergence, lambda one: one.standing.dispatch)],
    [
        Rule(Decision.ROLLED_BACK, _regression, _after_regression),
        Rule(Decision.ROLLED_BACK, _fall, f"{RESTORED}; {ANOTHER}"),
        Rule(
            Decision.ROLLED_BACK,
            lambda look: look.standing.loss,
            f"leave that class on the old path, or {ANOTHER}",
        ),
    ],
)
_GAINS = [
    Rule(Decision.ACCEPTED_WITH_NOTE, _gain_with_note, _after_note),
    Rule(Decision.ACCEPTED, _gain, lambda look: "" if look.is_harmless else GO_ON),
]
#: The rules in their order. Those in a list decide by the first metric that one has a reason for.
RULES: Sequence[Sequence[Rule]] = (
    *_LOSSES,
    [
        Rule(
            Decision.INCOMPLETE,
            _dispute,
            "the machine treats two copies of one version differently: end other processes "
            "(nvidia-smi, top), then run the round again",
        )
    ],
    [Rule(None, _suspense)],
    _GAINS,
    [Rule(Decision.INCONCLUSIVE, _nothing, _after_nothing)],
)


def _is_futile(look: Look) -> bool:
    """Say whether even a mean one standard error away is next to nothing, or decides nothing."""
    table, goal, level = look.table, look.goal, LOOKS[FINAL_LOOK]
    if look.asks_less or look.open_cases or look.open_classes:
        return False
    shrink = (table.replicates / FINAL_LOOK) ** 0.5
    arms = 2 if look.cases[0].copy else 1
    freedom = goal.freedom + arms * (FINAL_LOOK - table.replicates)
    better, worse = (
        Estimate(goal.mean + sign * goal.error, goal.error * shrink, freedom) for sign in (1, -1)
    )
    accepts = better.lower(level) > log_ratio(look.policy.minimum_gain_pct)
    is_gain = accepts and better.mean > log_ratio(WORTH_PCT)
    is_loss = worse.upper(level) < 0 and worse.mean < slower_by(WORTH_PCT)
    return not is_gain and not is_loss


def _is_equal(look: Look) -> bool:
    """Say whether it is equal in speed, and no case and no class may have lost.

    Two one-sided tests at the look's level: all cases, and the target, lie inside the policy's
    noise. Asked only where nothing is shown slower.
    """
    inside = (
        look.shown[Statement.NOT_SLOWER_THAN_NOISE] & look.shown[Statement.NOT_FASTER_THAN_NOISE]
    )
    return inside >= look.aims.keys() and not (look.open_cases or look.open_classes)


def _slower(look: Look) -> str:
    """Return the slowest of the cases that are shown to be slower, in words, "" for none."""
    return _case(look, look.shown[Statement.CASE_SLOWER])


def _case(look: Look, names: set[str]) -> str:
    """Return how much slower the slowest of these cases is, and at which point; "" for none."""
    if not names:
        return ""
    case = _slowest(look, names)
    mean, where = look.worst_mean(case.name), ""
    if case.points and mean < look.of_case[case.name].mean:
        where = f" at the operating point {case.points.other}"
    return f"case {case.label!r} is slower: {changed(percent(mean))}{where}"


def _slowest(look: Look, names: set[str]) -> Series:
    cases = (case for case in look.cases if case.name in names)
    return min(cases, key=lambda case: look.worst_mean(case.name))


def _within(estimate: Estimate, level: float) -> str:
    return within(estimate.figures(level))


def _at(estimate: Estimate, level: float) -> str:
    return f"{_within(estimate, level)} at {at_level(1 - 2 * level)}"
