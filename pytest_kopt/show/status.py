"""The page on where a campaign stands and what is next, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_kopt.campaign.history.counters import Review
from pytest_kopt.campaign.history.stops import Stop
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.figures import changed, changed_within, figure
from pytest_kopt.show import standing


def lines(document: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{document['campaign']}: {document['op']} ({document['backend']}) on {document['gpu']}, "
        f"branch {document['branch']}"
    )
    yield f"kernel: {', '.join(document['kernel'])}"
    yield f"runs in {document['root']}"
    for item in document["rounds"]:
        tries = f", attempt {item['attempts']}" if item["attempts"] > 1 else ""
        tries += ", quick" if item["level"] == "quick" else ""
        change = f" {changed(item['change_pct'])}" if item["change_pct"] is not None else ""
        mark = " <- incumbent" if item["round"] == document["incumbent_round"] else ""
        yield f"  round {item['round']}{tries}: {item['decision']}{change}{mark}"
        yield f"      {item['reason'].splitlines()[0]}"
        yield from (f"      {text}" for text in _story(item["notes"]))
    if document["same_code"]:
        yield f"of the last round {document['same_code']}"
    if document["final"]:
        yield from _final_text(document["final"])
    yield from (f"the chain is broken: {text}" for text in document["chain_breaks"])
    if document["quick"]["shapes"]:
        since = document["quick"]["frozen_since_round"]
        how = f"frozen since round {since}" if since else "edit manifest.yaml before the first"
        yield f"quick rounds measure {', '.join(document['quick']['shapes'])} ({how})"
    if document["masked"]:
        yield f"masked, not shown: {', '.join(document['masked'])} (v0 is round 1)"
    if document["unapplied"]:
        yield (
            f"round {document['unapplied']} is decided but not carried out: the next session "
            "does that"
        )
    if document["edited"]:
        what = ": the next round measures it"
        if document["next_action"]["action"] == "change_kernel":
            what = ", but runs the same code, which no round measures"
        yield (
            f"in the tree, {', '.join(document['edited'])} is not as round "
            f"{document['incumbent_round']} had it{what}"
        )
    if document["measured_elsewhere"]:
        yield (
            f"the last accepted round was measured on {document['measured_elsewhere']}: paired "
            "rounds still hold, as both versions are measured here; stored ones do not"
        )
    if document["integration"]:
        yield document["integration"]
    yield from _counter_text(document)
    yield from standing.review_lines(
        Review(**document["stagnation"]) if document["stagnation"] else None,
        document["campaign"],
    )
    yield from standing.termination_lines(
        [
            Stop(**{key: text for key, text in stop.items() if key != "title"})
            for stop in document["termination_check"]
        ]
    )
    yield "allowed next:"
    yield from (f"  {command}" for command in document["allowed"])
    yield f"next: {document['next']}"


def _story(notes: dict[str, Any]) -> Iterator[str]:
    """Yield what a round tried and what it taught, as far as its author said."""
    tried = notes.get("change") or notes.get("hypothesis") or notes.get("summary")
    learned = notes.get("lesson") or notes.get("root_cause") or notes.get("key_finding")
    if tried:
        yield f"tried: {str(tried).splitlines()[0]}"
    if learned:
        yield f"learned: {str(learned).splitlines()[0]}"


def _final_text(found: Mapping[str, Any]) -> Iterator[str]:
    total = found["aggregate"] or {}
    change = changed_within(*(total.get(name) for name in ("change_pct", "low_pct", "high_pct")))
    yield f"final: round {found['best']} against the baseline: {found['decision']} {change}"
    yield from (f"    {line}" for line in found["reason"].splitlines()[:1])


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
