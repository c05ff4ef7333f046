"""A campaign as it stands, in text: after a verdict, for `kopt status`, and before a round."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_kopt.campaign import running, tips
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import worktrees
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.stops import NEW_DIRECTIONS, Review, Stop
from pytest_kopt.campaign.outlook.status import going_on_lines
from pytest_kopt.campaign.outlook.status_model import Status
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.profiling.kernel_table import CaseProfile
from pytest_kopt.roofline import Roofline
from pytest_kopt.show.rooflines import roofline_lines
from pytest_kopt.show.templates import rendered


@dataclass(frozen=True, slots=True)
class Closing:
    """The result of a finished trial for the terminal."""

    verdict: Verdict
    detail: str = ""
    profiles: tuple[CaseProfile, ...] = ()
    #: What the verdict means for the campaign.
    outlook: tuple[str, ...] = ()


def closing_lines(campaign: Campaign, policy: Policy) -> Iterator[str]:
    """Yield the Termination Check where a condition holds, else the review due between rounds."""
    state = campaign.state
    yield from _tree_lines(campaign)
    ends = stops.check(campaign.name, state, campaign.manifest, policy)
    if stops.holding(ends):
        yield from termination_lines(ends)
        yield from going_on_lines(campaign, ends)
    elif not state.has_begun(state.next_round):
        review = stops.review(state.unmasked_rounds())
        yield from review_lines(review, campaign.name, campaign.manifest.target_gpu)


def _tree_lines(campaign: Campaign) -> Iterator[str]:
    """Yield what of the tree, or of its build, is not the current best's after the last round."""
    # A round that has only notes has changed no file.
    rounds = (noted for noted in campaign.state.rounds.values() if noted.attempts)
    last = max(rounds, key=lambda candidate: candidate.last_event, default=None)
    if last is None:
        return
    repository, applied = campaign.committed_to, last.last.applied
    files = worktrees.uncommitted(campaign.root, repository, last) if repository else ()
    if files:
        names = " ".join(map(shlex.quote, files))
        yield (
            f"HEAD holds another version than the current best: {', '.join(files)} differ(s) from "
            f"it now. Fix: `git commit -m 'Back to the current best' -- {names}`"
        )
    if applied and applied.restored and (advice := campaign.foreign_build):
        yield advice


#: The line that says nothing of a campaign on a CPU.
_IDLE = f"- {stops.NO_IDLE_GPU}: no"


def termination_lines(ends: Sequence[Stop]) -> Iterator[str]:
    yield "Termination Check"
    rest = {stop.name: stop.why for stop in ends if not stop.holds}
    yield from stops.lines(stops.holding(ends), rest)


def review_lines(review: Review | None, name: str, gpu: str) -> Iterator[str]:
    """Yield the stagnation review that is due; nothing when none is.

    The pages name no directions for a CPU.
    """
    if review is None:
        return
    lost = review.rollbacks_in_a_row
    yield f"stagnation: {lost} rounds in a row were not kept; this does not end the campaign."
    yield f"First, {review.action}."
    names = "" if gpu == "cpu" else f": `kopt advise {name}` names untried ones"
    yield f"Then write down at least {NEW_DIRECTIONS} new directions{names}."


def status_lines(status: Status) -> list[str]:
    session = status.running
    ends = termination_lines(status.termination_check)
    text = rendered(
        "status.txt.j2",
        status=status,
        session=session if session and session["phase"] != running.ENDED else None,
        review=list(review_lines(status.stagnation, status.campaign, status.gpu)),
        termination=[line for line in ends if not (status.gpu == "cpu" and line.startswith(_IDLE))],
        lost={
            str(decision).replace("_", " ").lower(): count
            for decision, count in status.counters.by_decision.items()
            if not decision.keeps
        },
    )
    return text.rstrip("\n").split("\n")


def advice_lines(document: dict[str, Any]) -> list[str]:
    rooflines = [Roofline.model_validate(line) for line in document["rooflines"]]
    text = rendered(
        "advice.txt.j2",
        **document,
        roofline_table=[line for line in roofline_lines(rooflines) if line],
        cited=sorted({source for line in rooflines for source in line.sources}),
        enough=NEW_DIRECTIONS,
    )
    return text.rstrip("\n").split("\n")


def tip_lines(campaign: Campaign) -> Iterator[str]:
    """Yield the project's skill, where the tips lie, and each entry with its takeaway."""
    if campaign.manifest.project_skill:
        yield f"project skill: {campaign.manifest.project_skill}"
    path = tips.path_of(campaign.root, campaign.manifest)
    entries = tips.entries(path)
    if not entries:
        return
    yield f"tips: {path.relative_to(campaign.root)} ({len(entries)})"
    for entry in entries:
        yield f"  {entry.number}. {entry.title}: {entry.takeaway}"
