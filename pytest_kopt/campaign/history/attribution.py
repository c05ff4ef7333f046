"""How much of a campaign's accepted gains a real training step has, from its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.result import reuse_log_ratios
from pytest_kopt.cases.skew import DISTRIBUTIONS
from pytest_kopt.decide.skewed import UNDER_SKEW
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.honesty.finding import is_finding
from pytest_kopt.honesty.inflation import inflation
from pytest_kopt.honesty.transfer import (
    ACCEPT_ASTERISK,
    ACCEPT_REAL,
    Claim,
    Shown,
    caches_weights,
    credited_pct,
    decision,
)


@dataclass(frozen=True, slots=True)
class Credit:
    """An accepted round: its claim, its gain over its incumbent, and what was found."""

    round: int
    claim: Claim
    shown: Shown


def shown(campaign: Campaign, item: Round, verdict: Verdict) -> Shown:
    """Return what was found and measured in a round."""
    results = campaign.results(item.number)
    traces = {result.label: result.trace for result in results if result.evidence.training}
    before = campaign.state.incumbent_as_of(item.number - 1)
    old = [] if before is None else campaign.results(before)
    labels = [shape.label for shape in verdict.shapes]
    drawn = [result.evidence.groups for result in results if result.evidence.groups is not None]
    name = f"{verdict.aggregate.metric if verdict.aggregate else ''} {UNDER_SKEW}"
    gain = verdict.aggregate.change_pct if verdict.aggregate else None
    gap = (
        None if gain is None else inflation(reuse_log_ratios(results), reuse_log_ratios(old), gain)
    )
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
        inflation_pct=gap.gap_pct if gap and gap.is_inflated else None,
        new_weight_cache=caches_weights(traces.values())
        and not caches_weights(result.trace for result in old),
    )


def accepted(campaign: Campaign) -> list[Credit]:
    """Return the accepted rounds after the baseline, oldest first, with their claims."""
    found = []
    for item in campaign.state.kept_rounds()[1:]:
        verdict = campaign.verdict(item)
        if verdict is not None:
            found.append(Credit(item.number, item.notes.claim, shown(campaign, item, verdict)))
    return found


def attribute(rounds: Sequence[Credit]) -> tuple[float, float, float]:
    """Re-attribute the accepted rounds of a campaign: S_real, W_real and the headline, in percent.

    Gains compound as they did in the campaign, and each round is credited with what it added at
    its place in the chain, so that S_real (the K rounds) and W_real (W1, capped by quant time /
    step time) add up to the whole. The headline compounds what the rounds were accepted for.
    """
    total, headline, parts = 1.0, 1.0, {ACCEPT_REAL: 0.0, ACCEPT_ASTERISK: 0.0}
    for item in rounds:
        headline *= 1 + (item.shown.change_pct or 0.0) / 100
        credit = credited_pct(item.claim, item.shown) or 0.0
        if (verdict := decision(item.claim, item.shown)) in parts:
            parts[verdict] += total * credit
        total *= 1 + credit / 100
    return parts[ACCEPT_REAL], parts[ACCEPT_ASTERISK], (headline - 1) * 100
