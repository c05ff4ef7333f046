"""Where a campaign stands and what is next, from ledger, tree and evidence."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_kopt.campaign import hypothesis, running
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import lineage
from pytest_kopt.campaign.history import counters, stops
from pytest_kopt.campaign.history.memory import unmasked_rounds, version_of
from pytest_kopt.campaign.history.stops import Stop
from pytest_kopt.campaign.kernel import files_of
from pytest_kopt.campaign.state import Round, chain_breaks
from pytest_kopt.cases.details import place_of
from pytest_kopt.decide.verdict import Decision, NextAction, Verdict
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
        return elsewhere(campaign.best.session()) if campaign.state.incumbent else ""
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


@dataclass(frozen=True, slots=True)
class InTheWay:
    """What keeps a round from running, None where nothing does.

    `obstacle` is for a person to mend, `harness` says which edits to undo (the arguments of
    `restore_harness`). The rest is the author's: a `broken` kernel that does not parse or import,
    and one that is the `same` code as the last accepted.
    """

    obstacle: str | None = None
    harness: Mapping[str, Any] = field(default_factory=dict)
    broken: str | None = None
    same: str | None = None


def next_action(campaign: Campaign, found: InTheWay, ends: Sequence[Stop], way: str) -> NextAction:
    """Return what is next as a word with its arguments; `way` brings one to where rounds run."""
    if stops.holding(ends):
        final, last = final_command(campaign), campaign.state.last_final
        is_best = last is not None and last.best == campaign.state.incumbent_round
        if not final or (last and is_best and last.decision is not Decision.INCOMPLETE):
            return NextAction(action="stop")
        return NextAction(action="run_final", arguments={"command": f"{way}{final}"})
    if found.obstacle:
        return NextAction(action="mend", arguments={"obstacle": found.obstacle})
    if found.harness:
        return NextAction(action="restore_harness", arguments=dict(found.harness))
    state, number = campaign.state, campaign.state.next_round
    arguments = {
        "round": number,
        "command": f"{way}{round_command(campaign)}",
        "kernel": campaign.manifest.kernel_source,
    }
    if discarding := discard_command(campaign):
        arguments["discard"] = discarding
    if found.broken:
        file, line = place_of(found.broken) or (None, None)
        arguments["error"] = {"text": found.broken, "file": file, "line": line}
        return NextAction(action="mend_kernel", arguments=arguments)
    if state.has_begun(number):
        return _going_on(campaign, state.rounds[number], found, arguments)
    if state.baseline is None:
        return NextAction(action="run_baseline", arguments=arguments)
    if not found.same and lineage.edited(campaign.root, campaign.manifest, state):
        return NextAction(action="run_round", arguments=arguments)
    return NextAction(action="change_kernel", arguments=arguments)


def _going_on(
    campaign: Campaign, item: Round, found: InTheWay, arguments: dict[str, Any]
) -> NextAction:
    decided = item.verdict
    if found.same:
        return NextAction(action="change_kernel", arguments=arguments)
    if decided is None or decided.decision is not Decision.REPAIR:
        return NextAction(action="rerun", arguments=arguments)
    if campaign.candidate().hashes != decided.kernel:
        return NextAction(action="run_round", arguments=arguments)
    if item.number > 1:
        left = campaign.policy().max_repairs - (item.failed_checks() - 1)
        arguments["repairs_left"] = left
    return NextAction(action="repair", arguments=arguments)


def round_command(campaign: Campaign) -> str:
    return f"pytest --kopt-campaign {campaign.name} --kopt-round {campaign.state.next_round}"


def final_command(campaign: Campaign) -> str | None:
    """Return the command of the final comparison, None where it would be refused."""
    best = campaign.state.incumbent_round
    if best is None or best == 1 or campaign.state.ended == "abandoned":
        return None
    return f"pytest --kopt-campaign {campaign.name} --kopt-round final"


def discard_command(campaign: Campaign) -> str | None:
    """Return the command that ends the open round, None where none is open after the baseline."""
    number = campaign.state.next_round
    is_open = number > 1 and campaign.state.has_begun(number)
    return f"kopt discard {campaign.name}" if is_open else None


#: The sentence of an action that a round's command follows.
_SENTENCES = {
    "run_baseline": "measure the baseline",
    "run_round": "measure the edited kernel",
    "change_kernel": "change the kernel (one hypothesis), then",
}


def sentence(
    action: NextAction, campaign: Campaign, found: InTheWay, ends: Sequence[Stop], way: str
) -> str:
    word, arguments = action.action, action.arguments
    if word in ("stop", "run_final"):
        return "; ".join(["nothing", *going_on_lines(campaign, ends, way)])
    if "obstacle" in arguments:
        return f"mend what is in the way: {arguments['obstacle']}"
    if "error" in arguments:
        return f"mend the kernel: {arguments['error']['text']}"
    if found.same and "discard" in arguments:
        return f"change the kernel: {found.same}"
    last = campaign.state.rounds.get(campaign.state.next_round, Round(1)).verdict
    step = last.next_step if last else "run the round again"
    return f"{_SENTENCES.get(word, step)}: {arguments['command']}"


def going_on_lines(campaign: Campaign, found: Sequence[Stop], way: str = "") -> Iterator[str]:
    """Yield what is left to do where the campaign has ended, and how to go on all the same.

    `way` is what brings one to where it runs.
    """
    final = final_command(campaign)
    if final:
        yield f"the campaign ends here; its best against the baseline: {way}{final}"
    else:
        yield "the campaign ends here"
    yield from (f"to go on: {stop.go_on}" for stop in found if stop.holds)
