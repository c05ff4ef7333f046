"""The Final Report of a campaign: what was kept, how much of it is real, what to try next."""

from __future__ import annotations

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import attribution
from pytest_kopt.campaign.ledger import Audited, FinalReport
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.figures import changed
from pytest_kopt.honesty.transfer import credited_pct, decision
from pytest_kopt.knowledge import directions
from pytest_kopt.knowledge.routing import route

NEXT_DIRECTIONS = 3


def compose(campaign: Campaign) -> FinalReport:
    """Return the report on a campaign as it stands."""
    rounds = [item for item in campaign.state.decided_rounds() if item.number > 1]
    kept = [item for item in rounds if item.is_kept]
    lost = [item for item in rounds if not item.is_kept]
    failed = [
        item
        for item in lost
        if item.verdict is None or item.verdict.decision is not Decision.INCONCLUSIVE
    ]
    credits = attribution.accepted(campaign)
    s_real, w_real, headline = attribution.attribute(credits)
    return FinalReport(
        accepted=len(kept),
        rolled_back=len(lost),
        inconclusive=len(lost) - len(failed),
        effective=[_effective(item) for item in kept],
        ineffective=[_ineffective(item) for item in failed],
        audit=[
            Audited(
                round=item.round,
                bucket=item.claim.bucket,
                benchmark_pct=item.shown.change_pct,
                credited_pct=credited_pct(item.claim, item.shown),
                decision=decision(item.claim, item.shown),
            )
            for item in credits
        ],
        s_real_pct=s_real,
        w_real_pct=w_real,
        # What only the benchmark loop has is worth nothing to a step.
        r_real_pct=0.0,
        headline_pct=headline,
        next_directions=_next_directions(campaign, rounds),
    )


def _effective(item: Round) -> str:
    assert item.verdict is not None
    total = item.verdict.aggregate
    return f"round-{item.number}: {_tried(item)} ({changed(total.change_pct if total else None)})"


def _ineffective(item: Round) -> str:
    assert item.verdict is not None
    why = item.notes.root_cause or item.verdict.reason
    return f"round-{item.number}: {_tried(item)}: {why.splitlines()[0]}"


def _tried(item: Round) -> str:
    notes = item.notes
    tried = notes.change or notes.summary or notes.hypothesis or "not described"
    return tried.splitlines()[0]


def _next_directions(campaign: Campaign, rounds: list[Round]) -> list[str]:
    """Return what the last rounds' authors would try next, then what knowledge has untried."""
    own = [item.notes.next.splitlines()[0] for item in reversed(rounds) if item.notes.next]
    said = [str(value) for item in rounds for value in item.notes.given().values()]
    manifest = campaign.manifest
    found = route(
        manifest.target_op, manifest.target_gpu, manifest.target_backend, manifest.target_lang
    )
    pages = directions.read(found.root, found.directions)
    known = directions.untried(pages, said, NEXT_DIRECTIONS)
    suggested = [*own, *(f"{item.id} {item.title}: {item.change}" for item in known)]
    return list(dict.fromkeys(suggested))[:NEXT_DIRECTIONS]
