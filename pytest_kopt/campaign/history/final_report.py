"""The Final Report of a campaign: what was kept, how much of it is real, what to try next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.ledger import Audited, Decided, FinalReport
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.skew import DISTRIBUTIONS
from pytest_kopt.decide.interim_looks import UNDER_SKEW
from pytest_kopt.decide.verdict import Decision, Shape, Verdict
from pytest_kopt.figures import changed
from pytest_kopt.honesty.finding import is_finding
from pytest_kopt.honesty.transfer import (
    ACCEPT_ASTERISK,
    ACCEPT_REAL,
    Claim,
    Shown,
    caches_weights,
    credited_pct,
    decision,
)
from pytest_kopt.knowledge.routing import Direction, Route, route

NEXT_DIRECTIONS = 3


def shown(campaign: Campaign, item: Round, verdict: Verdict) -> Shown:
    results = item.last.results()
    traces = {result.label: result.trace for result in results if result.evidence.training}
    before = campaign.state.incumbent_as_of(item.number - 1)
    old = [] if before is None else campaign.state.rounds[before].last.results()
    labels = [shape.label for shape in verdict.shapes]
    drawn = [result.evidence.groups for result in results if result.evidence.groups is not None]
    name = f"{verdict.aggregate.metric if verdict.aggregate else ''} {UNDER_SKEW}"
    gain = _gain(verdict)
    return Shown(
        overfit=verdict.decision is Decision.REJECTED_OVERFIT,
        change_pct=gain,
        findings=tuple(flag for flag in verdict.flags if is_finding(flag, labels)),
        traces=traces or None,
        distributions=tuple(
            str(result.dims["distribution"]) for result in results if "distribution" in result.dims
        ),
        drawn=tuple(name for name in DISTRIBUTIONS if drawn and all(name in d for d in drawn)),
        skew_pct=next((t.change_pct for t in verdict.secondary if t.metric == name), None),
        new_weight_cache=caches_weights(traces.values())
        and not caches_weights(result.trace for result in old),
        saved_ms=_saved_ms(verdict),
    )


def _saved_ms(verdict: Verdict) -> float | None:
    """Return what one call of each compared case saves, in the passes that the metric covers."""
    metric = verdict.aggregate.metric if verdict.aggregate else ""
    passes = [name for name in ("Forward", "Backward") if metric.startswith(name)]
    saved = [
        sum(_times_ms(shape, passes)) * shape.change_pct / 100
        for shape in verdict.shapes
        if shape.change_pct is not None
    ]
    return sum(saved) if saved else None


def _times_ms(shape: Shape, passes: Sequence[str]) -> Iterator[float]:
    times = {"Forward": shape.forward_ms, "Backward": shape.backward_ms}
    for name in passes or times:
        yield times[name] or 0.0


def audited(round: int, claim: Claim, found: Shown) -> Audited:
    return Audited(
        round=round,
        bucket=claim.bucket,
        benchmark_pct=found.change_pct,
        credited_pct=credited_pct(claim, found),
        decision=decision(claim, found),
    )


def attribute(rounds: Sequence[Audited]) -> tuple[float, float, float]:
    """Re-attribute the accepted rounds of a campaign: S_real, W_real and the headline, in percent.

    Gains compound as they did in the campaign, and each round is credited with what it added at
    its place in the chain, so that S_real (the K rounds) and W_real (W1, capped by quant time /
    step time) add up to the whole. The headline compounds what the rounds were accepted for.
    """
    total, headline, parts = 1.0, 1.0, {ACCEPT_REAL: 0.0, ACCEPT_ASTERISK: 0.0}
    for item in rounds:
        headline *= 1 + (item.benchmark_pct or 0.0) / 100
        credit = item.credited_pct or 0.0
        if item.decision in parts:
            parts[item.decision] += total * credit
        total *= 1 + credit / 100
    return parts[ACCEPT_REAL], parts[ACCEPT_ASTERISK], (headline - 1) * 100


def compose(campaign: Campaign) -> FinalReport:
    rounds = [item for item in campaign.state.decided_rounds() if item.number > 1]
    kept = [item for item in rounds if item.is_kept]
    lost = [item for item in rounds if not item.is_kept]
    undecided = Decision.INCONCLUSIVE
    failed = [item for item in lost if not (item.verdict and item.verdict.decision is undecided)]
    audit = [
        audited(item.number, item.notes.claim, shown(campaign, item, item.last.verdict()))
        for item in kept
    ]
    s_real, w_real, headline = attribute(audit)
    return FinalReport(
        accepted=len(kept),
        rolled_back=len(lost),
        inconclusive=len(lost) - len(failed),
        effective=[f"{_tried(item)} ({changed(_gain(item.verdict))})" for item in kept],
        ineffective=[f"{_tried(item)}: {_why(item).splitlines()[0]}" for item in failed],
        audit=audit,
        s_real_pct=s_real,
        w_real_pct=w_real,
        # What only the benchmark loop has is worth nothing to a step.
        r_real_pct=0.0,
        headline_pct=headline,
        next_directions=_next_directions(campaign, rounds),
    )


def _gain(verdict: Verdict | Decided | None) -> float | None:
    return verdict.aggregate.change_pct if verdict and verdict.aggregate else None


def _why(item: Round) -> str:
    return item.notes.root_cause or (item.verdict.reason if item.verdict else "")


def _tried(item: Round) -> str:
    tried = item.notes.tried or "not described"
    return f"round-{item.number}: {tried.splitlines()[0]}"


def _next_directions(campaign: Campaign, rounds: list[Round]) -> list[str]:
    """Return what the last rounds' authors would try next, then what knowledge has untried."""
    own = [item.notes.next.splitlines()[0] for item in reversed(rounds) if item.notes.next]
    found = untried(route_of(campaign.manifest), rounds, NEXT_DIRECTIONS)
    suggested = [*own, *(f"{item.id} {item.title}: {item.change}" for item in found)]
    return list(dict.fromkeys(suggested))[:NEXT_DIRECTIONS]


def route_of(manifest: Manifest) -> Route:
    return route(
        manifest.target_op, manifest.target_gpu, manifest.target_backend, manifest.target_lang
    )


def untried(found: Route, rounds: Iterable[Round], count: int) -> list[Direction]:
    """Return up to `count` directions of a route that no note of these rounds names."""
    said = (str(value) for item in rounds for value in item.notes.given().values())
    return found.untried(said, count)
