"""What a campaign asks for next: a published word with its arguments, and a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import lineage
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.stops import Stop
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.details import place_of
from pytest_kopt.decide.verdict import Decision, NextAction


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
