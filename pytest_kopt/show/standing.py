"""Where a campaign stands and what is next, as text: after a verdict, and for `kopt status`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_kopt.campaign import running
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import lineage
from pytest_kopt.campaign.history import counters, stops
from pytest_kopt.campaign.history.counters import NEW_DIRECTIONS, Review
from pytest_kopt.campaign.history.memory import unmasked_rounds
from pytest_kopt.campaign.history.stops import Stop
from pytest_kopt.campaign.outlook.status import going_on_lines
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.figures import changed, changed_within, figure
from pytest_kopt.profiling.kernel_table import CaseProfile

#: What a round's notes are called, of which the first that its author wrote is shown.
_STORY = {
    "tried": ("change", "hypothesis", "summary"),
    "learned": ("lesson", "root_cause", "key_finding"),
}


@dataclass(frozen=True, slots=True)
class Closing:
    """What a finished trial hands to the terminal; `detail` is the output of a failed command."""

    verdict: Verdict
    detail: str = ""
    profiles: tuple[CaseProfile, ...] = ()
    #: What the verdict means for the campaign.
    outlook: tuple[str, ...] = ()


def closing_lines(campaign: Campaign, policy: Policy) -> Iterator[str]:
    """Yield the Termination Check where a condition holds, else the review due between rounds."""
    state = campaign.state
    yield from _uncommitted_lines(campaign)
    found = stops.check(campaign.name, state, campaign.manifest, policy)
    if stops.holding(found):
        yield from termination_lines(found)
        yield from going_on_lines(campaign, found)
    elif not state.has_begun(state.next_round):
        yield from review_lines(counters.review(unmasked_rounds(state)), campaign.name)


def _uncommitted_lines(campaign: Campaign) -> Iterator[str]:
    last = max(campaign.state.rounds.values(), key=lambda item: item.last_event, default=None)
    if last is None or campaign.repository is None or not campaign.manifest.git_commit:
        return
    files = lineage.uncommitted(campaign.root, campaign.repository, last)
    if files:
        names = " ".join(map(shlex.quote, files))
        yield (
            f"HEAD still holds the version that was rolled back: {', '.join(files)} differ(s) from "
            f"it now. Fix: git commit -m 'Back to the current best' -- {names}"
        )


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


def status_lines(document: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{document['campaign']}: {document['op']} ({document['backend']}) on {document['gpu']}, "
        f"branch {document['branch']}"
    )
    yield f"kernel: {', '.join(document['kernel'])}"
    yield f"runs in {document['root']}"
    session = document["running"]
    is_busy = session is not None and session["phase"] != running.ENDED
    if is_busy:
        part = f" {session['done']} of {session['total']}" if session["total"] else ""
        since = f" since {session['started']}" if session.get("started") else ""
        yield f"a session runs now (process {session['pid']}{since}): {session['phase']}{part}"
    for item in document["rounds"]:
        tries = f", attempt {item['attempts']}" if item["attempts"] > 1 else ""
        tries += ", quick" if item["level"] == "quick" else ""
        change = f" {changed(item['change_pct'])}" if item["change_pct"] is not None else ""
        mark = " <- incumbent" if item["round"] == document["incumbent_round"] else ""
        yield f"  round {item['round']}{tries}: {item['decision']}{change}{mark}"
        yield f"      {item['reason'].splitlines()[0]}"
        for what, keys in _STORY.items():
            if text := next(filter(None, map(item["notes"].get, keys)), None):
                yield f"      {what}: {str(text).splitlines()[0]}"
    if document["same_code"]:
        yield f"of the last round {document['same_code']}"
    if found := document["final"]:
        total = found["aggregate"] or {}
        change = changed_within(*map(total.get, ("change_pct", "low_pct", "high_pct")))
        yield f"final: round {found['best']} against the baseline: {found['decision']} {change}"
        yield from (f"    {line}" for line in found["reason"].splitlines()[:1])
    yield from (f"the chain is broken: {text}" for text in document["chain_breaks"])
    if document["quick"]["shapes"]:
        since = document["quick"]["frozen_since_round"]
        how = f"frozen since round {since}" if since else "edit manifest.yaml before the first"
        yield f"quick rounds measure {', '.join(document['quick']['shapes'])} ({how})"
    incumbent, elsewhere = document["incumbent_round"], document["measured_elsewhere"]
    what = ": the next round measures it"
    if document["next_action"]["action"] == "change_kernel":
        what = ", but runs the same code, which no round measures"
    masked, edited = (", ".join(document[key]) for key in ("masked", "edited"))
    said = {
        "masked": f"masked, not shown: {masked} (v0 is round 1)",
        "unapplied": f"round {document['unapplied']} is decided but not carried out: the next "
        "session does that",
        "edited": f"in the tree, {edited} is not as round {incumbent} had it{what}",
        "measured_elsewhere": f"the last accepted round was measured on {elsewhere}: paired rounds "
        "still hold, as both versions are measured here; stored ones do not",
        "integration": document["integration"],
    }
    yield from (text for key, text in said.items() if document[key])
    yield from _counter_text(document)
    review = Review(**document["stagnation"]) if document["stagnation"] else None
    yield from review_lines(review, document["campaign"])
    ends = [{k: v for k, v in s.items() if k != "title"} for s in document["termination_check"]]
    yield from termination_lines([Stop(**end) for end in ends])
    yield "allowed next:"
    yield from (f"  {command}" for command in document["allowed"])
    first = "let that session end; then: " if is_busy else ""
    yield f"next: {first}{document['next']}"


def _counter_text(document: dict[str, Any]) -> Iterator[str]:
    counters = document["counters"]
    lost = [
        f"{count} {name.replace('_', ' ').lower()}"
        for name, count in counters["by_decision"].items()
        if not Decision(name).keeps
    ]
    yield (
        f"rounds: {counters['accepted']} accepted, {', '.join(lost) or 'none rolled back'}; "
        f"roll-backs in a row: {counters['rollbacks_in_a_row']}; "
        f"measured regressions in a row: {counters['regressions_in_a_row']} of "
        f"{counters['max_regressions']}"
    )
    for item in document["recent_regressions"]:
        yield (
            f"  round {item['round']}: {item['metric']} {figure(item['incumbent'])} -> "
            f"{figure(item['candidate'])} ({changed(item['change_pct'])}): "
            f"{item['hypothesis'] or 'no hypothesis stated'}"
        )
