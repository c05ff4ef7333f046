"""Where a campaign stands and what is next, from ledger, tree and evidence."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_kopt.campaign import hypothesis, running
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import lineage
from pytest_kopt.campaign.history import counters, stops
from pytest_kopt.campaign.history.memory import unmasked_rounds, version_of
from pytest_kopt.campaign.history.stops import Stop
from pytest_kopt.campaign.kernel import files_of
from pytest_kopt.campaign.outlook.next_action import (
    InTheWay,
    discard_command,
    final_command,
    next_action,
    round_command,
    sentence,
)
from pytest_kopt.campaign.state import Round, chain_breaks
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.devices.machine import elsewhere
from pytest_kopt.errors import BadInput, KernelError
from pytest_kopt.exit_codes import ExitCode

STATUS_VERSION = 1


def status(
    campaign: Campaign, here: Path | None = None, harness: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the status as JSON-able data; the key names are part of the agents' contract.

    `here` is the project root that the commands are for, the campaign's own by default; `harness`
    are the arguments of `restore_harness`, where the harness stands in the way of a round.
    """
    away = here is not None and here.resolve() != campaign.root.resolve()
    way = f"cd {shlex.quote(str(campaign.root))} && " if away else ""
    obstacle = _refusal(_check_state, campaign)
    state, manifest = campaign.state, campaign.manifest
    policy = campaign.policy()
    counted = counters.count(state, policy)
    ends = stops.check(campaign.name, state, manifest, policy)
    looked_at = unmasked_rounds(state)
    review = counters.review(looked_at)
    attempted = [_round(item) for item in state.rounds.values() if item.attempts]
    rounds = [item for item in attempted if version_of(item["round"]) not in state.masked]
    pending = state.pending
    session = _session(campaign)
    refused = session["error"]["text"] if session and session["phase"] == running.ENDED else None
    broken = None if obstacle else _refusal(hypothesis.check_parses, campaign) or refused
    clear = not (obstacle or harness or broken or pending or stops.holding(ends))
    same = _refusal(_check_measurable, campaign) if clear else None
    found = InTheWay(obstacle, harness or {}, broken, same)
    verdict, decided = _last_verdict(campaign), state.decided_rounds()
    action = next_action(campaign, found, ends, way)
    return {
        "schema_version": STATUS_VERSION,
        "campaign": campaign.name,
        "op": manifest.target_op,
        "backend": manifest.target_backend,
        "gpu": manifest.target_gpu,
        "kernel": manifest.kernel_source,
        "branch": manifest.git_branch,
        "root": str(campaign.root),
        "directory": str(campaign.layout.directory),
        "obstacle": obstacle or (harness or {}).get("obstacle"),
        "nothing_to_measure": same,
        "edited": lineage.edited(campaign.root, manifest, state),
        "measured_elsewhere": _measured_elsewhere(campaign),
        "ended": state.ended,
        "incumbent_round": state.incumbent_round,
        "next_round": None if stops.holding(ends) else state.next_round,
        "open": bool(attempted and attempted[-1]["open"]),
        "unapplied": pending[0].number if pending else None,
        "final": state.last_final.model_dump(mode="json") if state.last_final else None,
        "chain_breaks": chain_breaks(state, policy.chain_noise_pct),
        "counters": {
            "accepted": len(state.kept_rounds()) - bool(state.baseline),
            "rolled_back": len(decided) - len(state.kept_rounds()),
            "by_decision": dict(
                Counter(str(each.verdict.decision) for each in decided if each.verdict)
            ),
            "rollbacks_in_a_row": counters.rollbacks_in_a_row(looked_at),
            "regressions_in_a_row": counted.regressions,
            "max_regressions": policy.max_regressions,
        },
        "recent_regressions": [asdict(item) for item in counted.recent],
        "stagnation": asdict(review) if review else None,
        "termination_check": [{"title": stop.title, **asdict(stop)} for stop in ends],
        "integration": _integration(campaign),
        "allowed": list(_allowed(campaign, ends, found, way)),
        "running": session,
        "next_action": action.model_dump(mode="json"),
        "next": sentence(action, campaign, found, ends, way),
        "quick": {
            "shapes": manifest.representative_shapes or [],
            "frozen_since_round": state.first_quick_round,
        },
        "candidates": [raced.model_dump(mode="json") for raced in verdict.candidates]
        if verdict
        else [],
        "cases": [shape.model_dump(mode="json") for shape in verdict.shapes] if verdict else [],
        "masked": [f"v{version}" for version in sorted(state.masked)],
        "rounds": rounds,
        "same_code": verdict.same_code if verdict else "",
    }


def _round(item: Round) -> dict[str, Any]:
    decided = item.verdict
    total = decided.aggregate if decided else None
    return {
        "round": item.number,
        "attempts": len(item.attempts),
        "open": item.is_open,
        "level": decided.level if decided else item.last.level,
        "decision": str(decided.decision if decided else Decision.INCOMPLETE),
        "reason": decided.reason if decided else "the session was cut off",
        "next_step": decided.next_step if decided else "run the round again",
        "change_pct": total.change_pct if total else None,
        "flags": decided.flags if decided else [],
        "notes": item.notes.given(),
    }


def _last_verdict(campaign: Campaign) -> Verdict | None:
    """Return the last attempt's verdict, None where there is none, or no evidence of it."""
    judged = [item for item in campaign.state.rounds.values() if item.verdict]
    with suppress(BadInput):  # a campaign may be shown without its evidence
        return campaign.verdict(judged[-1]) if judged else None
    return None


def _refusal(check: Callable[[Campaign], object], campaign: Campaign) -> str | None:
    """Return why a check refuses a campaign, None where it does not."""
    try:
        check(campaign)
    except (BadInput, KernelError) as error:
        return str(error)
    return None


def _check_state(campaign: Campaign) -> None:
    """Raise BadInput where the tree, or what is kept, is in no state for a round."""
    campaign.check_ready()
    campaign.check_policy(campaign.policy())
    if campaign.state.baseline:
        campaign.incumbent()


def _check_measurable(campaign: Campaign) -> None:
    """Raise BadInput where the kernel in the tree needs no round."""
    notes = campaign.state.rounds.get(campaign.state.next_round, Round(1)).notes
    hypothesis.check_differs(campaign, notes.extra_benefit)


def _integration(campaign: Campaign) -> str | None:
    """Return how a workspace stands with its upstream, None for a campaign without one."""
    state, upstream = campaign.state, campaign.manifest.upstream
    if upstream is None:
        return None
    if state.integrating:
        return (
            f"the integration of round {state.integrating.round} was cut off: `--kopt-round final` "
            f"in {campaign.home} first finishes or undoes it"
        )
    if state.integrated and state.is_integrated:
        commit = state.integrated.git_commit
        return f"integrated upstream{f' as commit {commit[:12]}' if commit else ', not committed'}"
    return (
        f"accepted rounds are provisional: only `--kopt-round final` in {campaign.home} accepts "
        "upstream"
    )


def _measured_elsewhere(campaign: Campaign) -> str:
    """Return which other machine measured the incumbent, "" where none did or it is not known."""
    with suppress(BadInput):  # named as an obstacle, or when a round needs it
        return elsewhere(campaign.incumbent_session()) if campaign.state.incumbent else ""
    return ""


def _allowed(campaign: Campaign, ends: Sequence[Stop], found: InTheWay, way: str) -> Iterator[str]:
    """Yield the commands that would not be refused now."""
    is_ready = not found.obstacle and not found.harness
    if not stops.holding(ends) and is_ready and not found.broken and not found.same:
        yield f"{way}{round_command(campaign)}"
    final = final_command(campaign)
    if final and is_ready:
        workspace = campaign.manifest.upstream is not None
        yield f"{f'cd {shlex.quote(str(campaign.home))} && ' if workspace else way}{final}"
    if not found.obstacle and (discarding := discard_command(campaign)):
        yield discarding
    yield from (f"kopt {word} {campaign.name}" for word in ("advise", "report"))
    if not campaign.state.ended:
        yield f"kopt stop {campaign.name}"


def _session(campaign: Campaign) -> dict[str, Any] | None:
    """Return how far the session is that works on the campaign, or how a kernel ended the last one.

    A kernel that did not import is told of until it is edited.
    """
    file = campaign.layout.running
    document = running.read(file)
    if document is None or running.is_live(document):
        return document
    if document.get("exit_code") != ExitCode.FAILED or not document.get("error"):
        return None
    sources = campaign.manifest.kernel_source
    files = [path for source in sources for path in files_of(campaign.root / source)]
    # A version that was copied back with its times is an edit, too.
    edited = max((path.stat().st_ctime for path in files), default=0.0)
    return None if file.stat().st_mtime < edited else document
