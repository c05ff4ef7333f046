"""The end of an open round: a verdict that rolls it back, with nothing measured."""

from __future__ import annotations

from pytest_kopt.campaign.attempt import Evidence
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.recording import record_attempt
from pytest_kopt.clock import now
from pytest_kopt.decide.hard_gates import uncompared
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput


def discard(campaign: Campaign) -> int:
    """Decide the open round and return its number; BadInput where none is open, and for round 1."""
    number = campaign.state.next_round
    if campaign.state.baseline is None or not campaign.state.has_begun(number):
        raise BadInput("no round after the baseline is open", where=campaign.name)
    last = campaign.state.rounds[number].last
    before = last.decided
    after = f" after {before.decision}: {before.reason}" if before else ""
    record_attempt(
        campaign,
        number,
        started=now(),
        level=last.level,
        evidence=Evidence(campaign.candidate(), (), None, {"started": now(), "discarded": True}),
        verdict=uncompared(
            campaign.policy(),
            Decision.ROLLED_BACK,
            f"discarded by its author{after}",
            "the incumbent is back; go on with the next round",
        ).model_copy(update={"level": last.level}),
    )
    return number
