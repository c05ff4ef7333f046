"""What a verdict means for the campaign: whether it ends here, and which review is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import counters, stops
from pytest_kopt.campaign.history.counters import NEW_DIRECTIONS, Review
from pytest_kopt.campaign.history.memory import unmasked_rounds
from pytest_kopt.campaign.history.stops import Stop
from pytest_kopt.campaign.outlook.next_action import going_on_lines
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.profiling.table import CaseProfile


@dataclass(frozen=True, slots=True)
class Closing:
    """What a finished trial hands to the terminal.

    `detail` is the output of a failed command, `outlook` what the verdict means for the campaign.
    """

    verdict: Verdict
    detail: str = ""
    profiles: tuple[CaseProfile, ...] = ()
    outlook: tuple[str, ...] = ()


def lines(campaign: Campaign, policy: Policy) -> Iterator[str]:
    """Yield the Termination Check where a condition holds, else the review that is due.

    A round that is still open asks for no review.
    """
    state = campaign.state
    found = stops.check(campaign.name, state, campaign.manifest, policy)
    if stops.holding(found):
        yield from termination_lines(found)
        yield from going_on_lines(campaign, found)
    elif not state.has_begun(state.next_round):
        yield from review_lines(counters.review(unmasked_rounds(state)), campaign.name)


def termination_lines(found: Sequence[Stop]) -> Iterator[str]:
    yield "Termination Check"
    rest = {stop.name: stop.why for stop in found if not stop.holds}
    yield from stops.lines(stops.holding(found), rest)


def review_lines(review: Review | None, name: str) -> Iterator[str]:
    """Yield the stagnation review that is due; nothing when none is."""
    if review is None:
        return
    lost = review.rollbacks_in_a_row
    yield f"stagnation: {lost} rounds in a row were not kept; this does not end the campaign."
    yield f"now: {review.action}"
    yield f"at least {NEW_DIRECTIONS} new directions first: `kopt advise {name}` names untried ones"
