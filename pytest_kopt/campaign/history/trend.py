"""The gains of a campaign along the chain of its best versions, and the final report on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.ledger import Audited, Decided, FinalReport, PairedChange, Trend
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.state import CampaignState, Round
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import changed, ends
from pytest_kopt.honesty.transfer import ACCEPT_ASTERISK, ACCEPT_REAL, Claim
from pytest_kopt.knowledge import routing
from pytest_kopt.knowledge.routing import Direction
from pytest_kopt.schema.metrics import (
    COMBINED,
    Metric,
    aggregate,
    direction,
    rate_unit,
    value,
)
from pytest_kopt.schema.table import Table

NEXT_DIRECTIONS = 3


def figures(table: Table, metric: Metric | None = None) -> Trend:
    """Return a table's trend figures: geometric means and best single cases of PASS rows.

    For a schema without a rate, forward and combined are the primary `metric`.
    """
    unit = rate_unit(table.header)
    if unit is None:
        single = metric or Metric(table.metrics[0], direction(table.metrics[0], {}))
        average, peak = _average(table, single), _peak(table, single)
        return Trend(unit=single.name, forward_average=average, forward_peak=peak, combined=average)
    ways = ("Forward", "Backward", COMBINED)
    forward, backward, combined = (Metric(f"{way} {unit}", "higher") for way in ways)
    return Trend(
        unit=unit,
        forward_average=_average(table, forward),
        forward_peak=_peak(table, forward),
        backward_average=_average(table, backward),
        backward_peak=_peak(table, backward),
        combined=_average(table, combined),
    )


def _average(table: Table, metric: Metric) -> float | None:
    average = aggregate(table.rows, metric)
    return None if math.isnan(average) else average


def _peak(table: Table, metric: Metric) -> float | None:
    values = [value(row, metric) for row in table.passed]
    usable = [figure for figure in values if figure is not None and math.isfinite(figure)]
    best = max if metric.better == "higher" else min
    return best(usable) if usable else None


def chain_to(state: CampaignState, last: Decided) -> PairedChange | None:
    """Return the gain over round 1, a product of paired ones with this round as the last link.

    None where a link was not paired over all cases.
    """
    accepted = (round.verdict for round in state.kept_rounds() if 1 < round.number < last.round)
    links = [*filter(None, accepted), last]
    paired = [link.paired for link in links if link.paired and link.level == "full"]
    if len(paired) < len(links):
        return None

    def compounded(parts: Iterable[float]) -> float:
        return (math.prod(1 + part / 100 for part in parts) - 1) * 100

    backward = [change.backward_pct for change in paired if change.backward_pct is not None]
    return PairedChange(
        step_pct=compounded(change.step_pct for change in paired),
        forward_pct=compounded(change.forward_pct for change in paired),
        backward_pct=compounded(backward) if len(backward) == len(paired) else None,
    )


def chain_of_best(state: CampaignState) -> PairedChange | None:
    """Return the last accepted round's gain over round 1, None where a link was not paired."""
    best = state.incumbent
    return chain_to(state, best.decided) if best and best.decided else None


def over_baseline(verdicts: Iterable[Verdict | Decided]) -> Iterator[tuple[float | None, ...]]:
    """Yield each round's gain over round 1 in percent and the ends of its interval, None for none.

    It is the product of the aggregates' gains of the kept ones before and its. The interval is its
    own verdict's; one that is kept without a comparison adds nothing.
    """
    level = 1.0
    for verdict in verdicts:
        changes = ends(verdict.aggregate)
        gain, *bounds = (None if c is None else (level * (1 + c / 100) - 1) * 100 for c in changes)
        if verdict.decision is Decision.BASELINE:
            gain = 0.0
        if verdict.decision.keeps:
            gain = (level - 1) * 100 if gain is None else gain
            level = 1 + gain / 100
        yield (gain, *bounds)


def audited(round: int, claim: Claim, gain_pct: float | None) -> Audited:
    return Audited(
        round=round,
        bucket=claim.bucket,
        benchmark_pct=gain_pct,
        credited_pct=claim.credited_pct(gain_pct),
        decision=claim.decision,
    )


def attribute(rounds: Sequence[Audited]) -> tuple[float, float, float]:
    """Re-attribute the accepted rounds of a campaign: S_real, W_real and the headline, in percent.

    Gains compound as they did in the campaign, and each round is credited with what it added at its
    place in the chain. So S_real (the K rounds) and W_real (W1, capped by quant time / step time)
    add up to the whole. The headline compounds what the rounds were accepted for.
    """
    total, headline, parts = 1.0, 1.0, {ACCEPT_REAL: 0.0, ACCEPT_ASTERISK: 0.0}
    for accepted in rounds:
        headline *= 1 + (accepted.benchmark_pct or 0.0) / 100
        credit = accepted.credited_pct or 0.0
        if accepted.decision in parts:
            parts[accepted.decision] += total * credit
        total *= 1 + credit / 100
    return parts[ACCEPT_REAL], parts[ACCEPT_ASTERISK], (headline - 1) * 100


def compose(campaign: Campaign) -> FinalReport:
    rounds = [round for round in campaign.state.decided_rounds() if round.number > 1]
    accepted = [round for round in rounds if round.is_kept]
    lost = [round for round in rounds if not round.is_kept]
    failed = [round for round in lost if round.last.outcome().decision is not Decision.INCONCLUSIVE]
    audit = [
        audited(round.number, round.notes.claim, _gain(round.last.outcome())) for round in accepted
    ]
    s_real, w_real, headline = attribute(audit)
    return FinalReport(
        accepted=len(accepted),
        rolled_back=len(lost),
        inconclusive=len(lost) - len(failed),
        effective=[
            f"{_tried(round)} ({changed(_gain(round.last.outcome()))})" for round in accepted
        ],
        ineffective=[f"{_tried(round)}: {_why(round)}" for round in failed],
        audit=audit,
        s_real_pct=s_real,
        w_real_pct=w_real,
        # What only the benchmark loop has is worth nothing to a step.
        r_real_pct=0.0,
        headline_pct=headline,
        next_directions=_next_directions(campaign, rounds),
    )


def _gain(verdict: Verdict | Decided) -> float | None:
    return verdict.aggregate.change_pct if verdict.aggregate else None


def _why(round: Round) -> str:
    return (round.notes.root_cause or round.last.outcome().reason).splitlines()[0]


def _tried(round: Round) -> str:
    return f"round-{round.number}: {(round.notes.tried or 'not described').splitlines()[0]}"


def _next_directions(campaign: Campaign, rounds: list[Round]) -> list[str]:
    """Return what the last rounds' authors would try next, then what knowledge has untried."""
    texts = (round.notes.next or "" for round in reversed(rounds))
    planned = [line for text in texts for line in text.splitlines() if line.strip()]
    left = untried(route_of(campaign.manifest)[0], rounds, NEXT_DIRECTIONS)
    suggested = [*planned, *(f"{way.id} {way.title}: {way.change}" for way in left)]
    return list(dict.fromkeys(suggested))[:NEXT_DIRECTIONS]


def route_of(manifest: Manifest) -> tuple[list[str], list[str]]:
    target = (manifest.target_op, manifest.target_gpu)
    return routing.route(*target, manifest.target_backend, manifest.target_lang)


def untried(pages: Iterable[str], rounds: Iterable[Round], count: int) -> list[Direction]:
    """Return up to `count` directions of these pages that no note of these rounds names."""
    texts = (str(text) for round in rounds for text in round.notes.given().values())
    return routing.untried(pages, texts, count)
