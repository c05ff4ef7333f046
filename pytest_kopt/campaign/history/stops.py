"""The conditions that end a campaign, the counters behind them, and how a person continues.

A candidate counts as a regression if it is right and measurably slower than the current best. Every
other end of an attempt resets the count: a kept round, a tie (INCONCLUSIVE, or slower by no more
than the noise), a SPLIT. So do a case beyond the regression limit, a roll-back without usable
metrics, failed repairs, and an attempt that measured nothing (INCOMPLETE).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile

from pydantic import Field

from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.ledger import Decided
from pytest_kopt.campaign.manifest import (
    EFFICIENCY,
    MOST_ITERATIONS,
    Manifest,
    PerformanceTarget,
    parse_target,
)
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import in_unit, thousandths
from pytest_kopt.models import Document
from pytest_kopt.roofline import TARGET_PCT, Efficiency

REGRESSIONS, NO_IDLE_GPU = "regressions in a row", "no idle GPU"
#: The conditions in the order in which a Termination Check lists them, and what they stand for.
TITLES = {
    "T1": "performance_target",
    "T2": "hardware efficiency",
    "T3": "max_iterations reached",
    "T4": "user requested stop",
    REGRESSIONS: "",
    NO_IDLE_GPU: "",
}
_NO_ROOFLINE = Efficiency(None, "UNKNOWN: no roofline (see `kopt calibrate --ceilings`)")
_RUN_AGAIN = "such a session ends with exit code 10 and decides nothing; run it again"
#: How many of the last regressions are shown with their fields.
KEPT = 5
#: How many new directions a review has to come up with.
NEW_DIRECTIONS = 3
_REVIEW_AFTER = 2
#: What the n-th roll-back in a row asks for, from the second on; the last one stays.
_LADDER = (
    "list what the last rounds disproved, and classify the bottleneck again",
    "profile the current best again with --kopt-profile, one level deeper",
    "read the instructions of the hot loop, and what they wait for",
    "compare the kernel with the best public one for this operator, line by line",
)


class Stop(Document):
    """One condition of a Termination Check."""

    title: str = Field(description="its name and the key it stands for")
    name: str = Field(description="name of the condition")
    holds: bool = Field(description="whether the condition ends the campaign")
    why: str = Field(description="why it holds or does not")
    go_on: str = Field(description="how to go on where it holds")


def _stop(name: str, holds: bool, why: str, go_on: str = "") -> Stop:
    title = f"{name} {TITLES[name]}".rstrip()
    return Stop(title=title, name=name, holds=holds, why=why, go_on=go_on)


def check(name: str, state: CampaignState, manifest: Manifest, policy: Policy) -> tuple[Stop, ...]:
    """Return the Termination Check of a campaign of that name, every condition once.

    T1 and T2 look at what the last accepted round recorded. That no GPU was idle ends a session and
    no campaign: it holds at no time, and is told until something is measured.
    """
    best = state.incumbent.decided if state.incumbent else None
    waited = state.no_idle_gpu
    anew = f"`kopt init NEW --from {name}` starts over from the best version"
    target = parse_target(manifest.performance_target) if manifest.performance_target else None
    regressions, limit = len(regressions_in_a_row(state, policy)), policy.max_regressions
    review = (
        f"review the directions (`kopt advise {name}`), then give --kopt-policy a policy file with "
        f"a higher max_regressions; or {anew}"
    )
    return (
        _target(target, best),
        _hardware(target, best),
        _iterations(state, manifest.max_iterations, anew),
        _stop("T4", state.ended is not None, state.ended or "", anew),
        _stop(REGRESSIONS, regressions >= limit, f"{regressions} of {limit}, measured", review),
        _stop(NO_IDLE_GPU, False, f"{waited}; run it again" if waited else _RUN_AGAIN),
    )


def holding(stops: Sequence[Stop]) -> dict[str, str]:
    return {stop.name: stop.why for stop in stops if stop.holds}


def refuse_another_round(stops: Sequence[Stop]) -> None:
    """Raise BadInput when a condition holds: what it is, and how to go on."""
    conditions = [stop for stop in stops if stop.holds]
    if conditions:
        what = f"no further round: {'; '.join(f'{stop.title} ({stop.why})' for stop in conditions)}"
        fix = f"to go on, {'; and '.join(stop.go_on for stop in conditions)}"
        raise BadInput(what, where="--kopt-round", fix=fix)


def lines(conditions: Mapping[str, str], reasons: Mapping[str, str] | None = None) -> list[str]:
    """Return the Termination Check as text; `others` say why the rest does not hold."""
    reasons = {NO_IDLE_GPU: _RUN_AGAIN, **(reasons or {})}
    texts = []
    for name, words in TITLES.items():
        why = conditions.get(name) or reasons.get(name)
        mark = "✅" if name in conditions else "no"
        texts.append(f"- {f'{name} {words}'.rstrip()}: {mark}{f' ({why})' if why else ''}")
    return [*texts, f"-> Satisfied condition(s): {', '.join(conditions) or 'none'}"]


def _target(target: PerformanceTarget | None, best: Decided | None) -> Stop:
    if target is None:
        return _stop("T1", False, "no performance_target is set")
    go_on = "set a higher performance_target, or null, in manifest.yaml"
    if best is None:
        return _stop("T1", False, f"target {target}; nothing is measured yet")
    if target.is_efficiency:
        efficiency = best.efficiency or _NO_ROOFLINE
        if efficiency.pct is None:
            return _stop("T1", False, f"target {target}; {efficiency.why}")
        why = f"{in_unit(efficiency.pct, '%')} of the attainable rate, target {target}"
        return _stop("T1", target.is_reached_by(efficiency.pct), why, go_on)
    total = best.aggregate
    metric = total.metric if total else "not recorded"
    figure = target.in_its_unit(metric, total.candidate) if total and total.candidate else None
    if figure is None:
        return _stop("T1", False, f"UNKNOWN: target {target}, but the primary metric is {metric}")
    why = f"{metric} is {thousandths(figure)} {target.unit}, target {target}"
    return _stop("T1", target.is_reached_by(figure), why, go_on)


def _hardware(target: PerformanceTarget | None, best: Decided | None) -> Stop:
    """Judge by 90 %, or by more where the performance target asks for more."""
    target_pct = max(TARGET_PCT, target.number if target and target.is_efficiency else 0.0)
    if best is None:
        return _stop("T2", False, "nothing is measured yet")
    efficiency = best.efficiency or _NO_ROOFLINE
    if efficiency.pct is None:
        return _stop("T2", False, efficiency.why)
    more = max(95, math.floor(efficiency.pct) + 1)
    return _stop(
        "T2",
        efficiency.reaches(target_pct),
        f"{in_unit(efficiency.pct, '%')} of the attainable rate, asked for {target_pct:g} %",
        f"ask for more in manifest.yaml: performance_target '>{more}{EFFICIENCY}'",
    )


def _iterations(state: CampaignState, limit: int | None, anew: str) -> Stop:
    if limit is None:
        return _stop("T3", False, "no max_iterations is set")
    more = f"raise max_iterations in manifest.yaml (at most {MOST_ITERATIONS})"
    # The baseline is no iteration.
    rounds = max(state.next_round - 2, 0)
    why = f"{rounds} of {limit} rounds after the baseline"
    return _stop("T3", rounds >= limit, why, more if limit < MOST_ITERATIONS else anew)


class Regression(Document):
    """One measured regression; figures are in the metric's unit, GPU kernel times in microseconds.

    `snapshot` is the candidate's directory below the campaign's, `points` what the round's author
    or else the verdict says of it. None where something was not measured.
    """

    round: int = Field(description="number of the round")
    attempt: int = Field(description="number of the attempt")
    time: str = Field(description="time of the decision")
    incumbent_round: int = Field(description="round of the version that was the current best")
    incumbent_commit: str | None = Field(description="commit of that version")
    snapshot: str = Field(
        description="folder of the candidate's files, below the campaign's folder"
    )
    hypothesis: str | None = Field(description="hypothesis or change of the notes")
    files: list[str] = Field(description="kernel files that differ between the versions")
    metric: str | None = Field(description="name and unit of the metric")
    incumbent: float | None = Field(description="value of the current best, in the metric's unit")
    candidate: float | None = Field(description="value of the candidate, in the metric's unit")
    incumbent_kernel_us: float | None = Field(
        description="GPU kernel time of the current best, in microseconds"
    )
    candidate_kernel_us: float | None = Field(
        description="GPU kernel time of the candidate, in microseconds"
    )
    change_pct: float = Field(description="change of speed in percent, negative")
    points: str = Field(description="root cause of the notes, or the verdict's reason")


def regressions_in_a_row(
    state: CampaignState, policy: Policy, until: tuple[int, int] | None = None
) -> list[Regression]:
    """Return the last regressions, oldest first; as of the attempt `until`, (round, attempt)."""
    row: list[Regression] = []
    best: tuple[Attempt, Decided] | None = None
    for round, attempt, decided in state.decided():
        if until and (round.number, attempt.number) > until:
            break
        change = regression_pct(decided, policy)
        if change is not None and best is not None:
            row.append(_regression(round, decided, *best, change))
        elif decided.decision is not Decision.REPAIR:
            row.clear()
        if decided.decision.keeps:
            best = attempt, decided
    return row


def regression_pct(decided: Decided, policy: Policy) -> float | None:
    """Return by how many percent an attempt is shown to be slower (negative), None if it is not.

    A paired interval measures its own noise; without one the policy's noise counts.
    """
    if decided.decision is not Decision.ROLLED_BACK:
        return None
    total = decided.aggregate
    if total is None or total.change_pct is None:
        return None
    if total.high_pct is not None:
        return total.change_pct if total.high_pct < 0 else None
    return total.change_pct if policy.below(total.change_pct, -policy.noise_pct) else None


def _regression(
    round: Round, decided: Decided, best: Attempt, before: Decided, change: float
) -> Regression:
    notes, total = round.notes, decided.aggregate
    now_us, before_us = (
        version.kernel_time.candidate_us if version.kernel_time else None
        for version in (decided, before)
    )
    files = {*decided.kernel, *before.kernel}
    return Regression(
        round=decided.round,
        attempt=decided.attempt,
        time=decided.time,
        incumbent_round=before.round,
        incumbent_commit=best.applied.git_commit if best.applied else None,
        snapshot=f"rounds/round-{round.number}/artifacts/attempt-{decided.attempt}/kernel_snapshot",
        hypothesis=notes.hypothesis or notes.change or notes.summary,
        files=sorted(f for f in files if decided.kernel.get(f) != before.kernel.get(f)),
        **{name: getattr(total, name, None) for name in ("metric", "incumbent", "candidate")},
        incumbent_kernel_us=before_us,
        candidate_kernel_us=now_us,
        change_pct=change,
        points=notes.root_cause or decided.reason,
    )


class Review(Document):
    """The stagnation review that is due: after how many roll-backs, and what it starts with."""

    rollbacks_in_a_row: int = Field(description="number of rounds in a row that kept nothing")
    action: str = Field(description="the first step of the review")


def rollbacks_in_a_row(rounds: Sequence[Round]) -> int:
    """Return how many of the last of these decided rounds kept nothing."""
    return len(list(takewhile(lambda candidate: not candidate.is_kept, reversed(rounds))))


def review(rounds: Sequence[Round]) -> Review | None:
    """Return the review that these decided rounds ask for, None before the second roll-back."""
    count = rollbacks_in_a_row(rounds)
    if count < _REVIEW_AFTER:
        return None
    action = _LADDER[min(count - _REVIEW_AFTER, len(_LADDER) - 1)]
    return Review(rollbacks_in_a_row=count, action=action)
