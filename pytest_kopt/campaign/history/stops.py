"""When a campaign ends: which conditions hold, and how a person can continue it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import Field

from pytest_kopt.campaign.history.counters import count
from pytest_kopt.campaign.ledger import Decided
from pytest_kopt.campaign.manifest import (
    EFFICIENCY,
    MOST_ITERATIONS,
    Manifest,
    PerformanceTarget,
    parse_target,
)
from pytest_kopt.campaign.state import CampaignState
from pytest_kopt.decide.policy import Policy
from pytest_kopt.errors import BadInput
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


class Stop(Document):
    """One condition of a Termination Check."""

    title: str = Field(description="its name and the key it stands for")
    name: str
    holds: bool
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
    regressions, limit = count(state, policy).regressions, policy.max_regressions
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
        legal = f"to go on, {'; and '.join(stop.go_on for stop in conditions)}"
        raise BadInput(what, where="--kopt-round", legal=legal)


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
        why = f"{efficiency.pct:.1f} % of the attainable rate, target {target}"
        return _stop("T1", target.is_reached_by(efficiency.pct), why, go_on)
    total = best.aggregate
    metric = total.metric if total else "not recorded"
    figure = target.in_its_unit(metric, total.candidate) if total and total.candidate else None
    if figure is None:
        return _stop("T1", False, f"UNKNOWN: target {target}, but the primary metric is {metric}")
    why = f"{metric} is {figure:.3f} {target.unit}, target {target}"
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
        f"{efficiency.pct:.1f} % of the attainable rate, asked for {target_pct:g} %",
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
