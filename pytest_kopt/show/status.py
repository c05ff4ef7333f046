"""Where a campaign stands and what is next, from the ledger alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_kopt import policies
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.memory import version_of
from pytest_kopt.campaign.state import Round, chain_breaks
from pytest_kopt.show.words import percent

STATUS_VERSION = 1


def status(campaign: Campaign) -> dict[str, Any]:
    """Return the status as JSON-able data; the key names are part of the agents' contract."""
    state, manifest = campaign.state, campaign.manifest
    attempted = [_round(item) for item in state.rounds.values() if item.attempts]
    last = attempted[-1] if attempted else None
    rounds = [item for item in attempted if version_of(item["round"]) not in state.masked]
    pending = state.pending
    return {
        "schema_version": STATUS_VERSION,
        "campaign": campaign.name,
        "op": manifest.target_op,
        "backend": manifest.target_backend,
        "gpu": manifest.target_gpu,
        "kernel": manifest.kernel_source,
        "branch": manifest.git_branch,
        "ended": state.ended,
        "incumbent_round": state.incumbent_round,
        "next_round": None if state.ended else state.next_round,
        "open": bool(last and last["open"]),
        "unapplied": pending[0].number if pending else None,
        "final": campaign.state.finals[-1].model_dump(mode="json")
        if campaign.state.finals
        else None,
        "chain_breaks": chain_breaks(state, policies.load(manifest.policy).chain_noise_pct),
        "next": _next(campaign, last),
        "quick": _quick(campaign),
        "masked": [f"v{version}" for version in sorted(state.masked)],
        "rounds": rounds,
    }


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield the status as text."""
    yield (
        f"{document['campaign']}: {document['op']} ({document['backend']}) on {document['gpu']}, "
        f"branch {document['branch']}"
    )
    yield f"kernel: {', '.join(document['kernel'])}"
    for item in document["rounds"]:
        tries = f", attempt {item['attempts']}" if item["attempts"] > 1 else ""
        tries += ", quick" if item["level"] == "quick" else ""
        change = f" {percent(item['change_pct'])}" if item["change_pct"] is not None else ""
        mark = " <- incumbent" if item["round"] == document["incumbent_round"] else ""
        yield f"  round {item['round']}{tries}: {item['decision']}{change}{mark}"
        yield f"      {item['reason'].splitlines()[0]}"
    yield from (f"the chain is broken: {text}" for text in document["chain_breaks"])
    if document["quick"]["shapes"]:
        since = document["quick"]["frozen_since_round"]
        how = f"frozen since round {since}" if since else "to be edited in manifest.yaml until one"
        yield f"quick rounds measure {', '.join(document['quick']['shapes'])} ({how})"
    if document["masked"]:
        yield f"masked, not shown: {', '.join(document['masked'])} (v0 is round 1)"
    if document["unapplied"]:
        yield f"round {document['unapplied']} is decided but not carried out: the next run does it"
    yield f"next: {document['next']}"


def _quick(campaign: Campaign) -> dict[str, Any]:
    """Return the representative shapes and since when they cannot be changed."""
    return {
        "shapes": campaign.manifest.representative_shapes or [],
        "frozen_since_round": campaign.state.first_quick_round,
    }


def _round(item: Round) -> dict[str, Any]:
    decided = item.verdict
    total = decided.aggregate if decided else None
    return {
        "round": item.number,
        "attempts": len(item.attempts),
        "open": item.is_open,
        "level": decided.level if decided else item.last.level,
        "decision": str(decided.decision) if decided else "INCOMPLETE",
        "reason": decided.reason if decided else "the session was cut off",
        "next_step": decided.next_step if decided else "run the round again",
        "change_pct": total.change_pct if total else None,
        "flags": decided.flags if decided else [],
        "notes": item.notes.given(),
    }


def _next(campaign: Campaign, last: dict[str, Any] | None) -> str:
    if campaign.state.ended:
        return f"nothing: the campaign was {campaign.state.ended}"
    run = f"pytest --kopt-campaign {campaign.name} --kopt-round {campaign.state.next_round}"
    if last is None:
        return f"measure the baseline: {run}"
    if last["open"]:
        return f"{last['next_step']}: {run}"
    return f"change the kernel (one hypothesis), then: {run}"
