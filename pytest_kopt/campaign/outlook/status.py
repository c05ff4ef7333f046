"""The state of a campaign and the next action, from ledger, tree and evidence."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_kopt.campaign import prerequisites, running
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import worktrees
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.stops import Stop
from pytest_kopt.campaign.kernel import files_of
from pytest_kopt.campaign.outlook.status_model import (
    QuickLevel,
    RoundCounters,
    RoundStatus,
    Status,
)
from pytest_kopt.campaign.state import Round, chain_breaks
from pytest_kopt.cases.details import place_of
from pytest_kopt.decide.verdict import (
    ActionWord,
    Decision,
    NextAction,
    Verdict,
)
from pytest_kopt.devices.machine import elsewhere
from pytest_kopt.errors import BadInput, KernelError
from pytest_kopt.exit_codes import ExitCode

#: The sentence of an action that a round's command follows.
_SENTENCES = {
    "run_baseline": "measure the baseline",
    "run_round": "measure the edited kernel",
    "change_kernel": "change the kernel (one hypothesis), then",
}
#: What follows a decided final comparison.
AFTER_FINAL = {
    Decision.ACCEPTED: "the best version is faster than the baseline: merge its branch",
    Decision.ACCEPTED_WITH_NOTE: "the best version is faster, one case slower: look at that case, "
    "then merge the branch",
    Decision.INCONCLUSIVE: "kopt cannot show the gain of all accepted rounds together",
    Decision.SPLIT: "one class gained and another lost; nothing was rolled back. Fix: find the "
    "round with kopt bisect",
    Decision.ROLLED_BACK: "the best version is slower than the baseline; nothing was rolled back. "
    "Fix: find the round with kopt bisect",
}


def status(
    campaign: Campaign, here: Path | None = None, harness: Mapping[str, Any] | None = None
) -> Status:
    """Return where a campaign stands.

    `here` is the project root that the commands are for, the campaign's own by default. `harness`
    are the arguments of `restore_harness`, if the harness stands in the way of a round.
    """
    state, manifest, policy = campaign.state, campaign.manifest, campaign.policy()
    ends = stops.check(campaign.name, state, manifest, policy)
    outlook = _Outlook(campaign, ends, here or campaign.root, harness or {})
    action = outlook.next_action()
    regressions = stops.regressions_in_a_row(state, policy)
    decided = state.decided_rounds()
    planned = state.unmasked_rounds()
    begun = [round for round in state.rounds.values() if round.attempts]
    verdict, pending = _last_verdict(campaign), state.pending
    return Status(
        campaign=campaign.name,
        op=manifest.target_op,
        backend=manifest.target_backend,
        gpu=manifest.target_gpu,
        kernel=manifest.kernel_source,
        branch=manifest.git_branch,
        root=str(campaign.root),
        directory=str(campaign.layout.directory),
        allowed=list(outlook.allowed()),
        running=outlook.session,
        next_action=action,
        next=outlook.sentence(action),
        obstacle=outlook.obstacle or outlook.harness.get("obstacle"),
        nothing_to_measure=outlook.same,
        edited=worktrees.edited(campaign.root, manifest, state),
        measured_elsewhere=_measured_elsewhere(campaign),
        ended=state.ended,
        incumbent_round=state.incumbent_round,
        next_round=None if stops.holding(ends) else state.next_round,
        open=bool(begun and begun[-1].is_open),
        unapplied=pending.round if pending else None,
        final=state.last_final,
        chain_breaks=chain_breaks(state, policy.chain_noise_pct),
        counters=RoundCounters(
            accepted=len(state.kept_rounds()) - bool(state.baseline),
            rolled_back=len(decided) - len(state.kept_rounds()),
            by_decision=Counter(round.last.outcome().decision for round in decided),
            rollbacks_in_a_row=stops.rollbacks_in_a_row(planned),
            regressions_in_a_row=len(regressions),
            max_regressions=policy.max_regressions,
        ),
        recent_regressions=regressions[-stops.KEPT :],
        stagnation=stops.review(planned),
        termination_check=list(ends),
        quick=QuickLevel(
            shapes=manifest.representative_shapes or [], frozen_since_round=state.first_quick_round
        ),
        candidates=verdict.candidates if verdict else [],
        cases=verdict.shapes if verdict else [],
        masked=[f"v{version}" for version in sorted(state.masked)],
        rounds=[RoundStatus.of(round) for round in begun if round.version not in state.masked],
        same_code=verdict.same_code if verdict else "",
    )


def _last_verdict(campaign: Campaign) -> Verdict | None:
    """Return the last attempt's verdict, None where there is none, or no evidence of it."""
    judged = campaign.state.judged_rounds()
    with suppress(BadInput):  # a campaign may be shown without its evidence
        return judged[-1].last.verdict() if judged else None
    return None


def _refusal(*checks: Callable[[], object]) -> str | None:
    """Return why the first of these checks refuses, None where none does."""
    try:
        for check in checks:
            check()
    except (BadInput, KernelError) as error:
        return str(error)
    return None


def _measured_elsewhere(campaign: Campaign) -> str:
    """Return which other machine measured the incumbent, "" where none did or it is not known."""
    with suppress(BadInput):  # named as an obstacle, or when a round needs it
        return elsewhere(campaign.best.session()) if campaign.state.incumbent else ""
    return ""


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


class _Outlook:
    """The actions that are allowed, and the reasons that keep a round from running."""

    def __init__(
        self, campaign: Campaign, ends: Sequence[Stop], here: Path, harness: Mapping[str, Any]
    ) -> None:
        """Find the first thing that keeps a round from running: each check needs those before it.

        `ends` are the Termination Check, `harness` the arguments of `restore_harness`: the edits to
        undo, empty where there are none.
        """
        state, policy = campaign.state, campaign.policy()
        self.campaign, self.ends, self.harness = campaign, ends, harness
        #: running.json, as `Status.running` has it.
        self.session = session = _session(campaign)
        #: A reason that a person has to deal with; None where there is none.
        self.obstacle = _refusal(
            campaign.check_ready,
            lambda: campaign.check_policy(policy),
            lambda: state.baseline and campaign.incumbent(),
        )
        ended = session["error"]["text"] if session and session["phase"] == running.ENDED else None
        #: Why the kernel does not parse or import.
        self.broken = None
        if not self.obstacle:
            self.broken = _refusal(lambda: prerequisites.check_parses(campaign)) or ended
        blocked = self.obstacle or harness or self.broken or state.pending or stops.holding(ends)
        benefit = state.rounds.get(state.next_round, Round(1)).notes.extra_benefit
        #: Why the kernel is the same code as the current best.
        self.same = None
        if not blocked:
            self.same = _refusal(lambda: prerequisites.check_differs(campaign, benefit))
        is_away = here.resolve() != campaign.root.resolve()
        #: The words that bring one to where rounds run, "" where one is there.
        self.way = f"cd {shlex.quote(str(campaign.root))} && " if is_away else ""

    @property
    def _other_session(self) -> dict[str, Any] | None:
        """The session of another process, None where none works on the campaign."""
        return self.session if running.is_anothers(self.session) else None

    @property
    def _round_command(self) -> str:
        number = self.campaign.state.next_round
        return f"{self.way}pytest --kopt-campaign {self.campaign.name} --kopt-round {number}"

    @property
    def _discard_command(self) -> str | None:
        """The command that ends the open round, None where none is open after the baseline."""
        number = self.campaign.state.next_round
        is_open = number > 1 and self.campaign.state.has_begun(number)
        return f"kopt discard {self.campaign.name}" if is_open else None

    def allowed(self) -> Iterator[str]:
        """Yield the commands that would not be refused now."""
        campaign, is_ready = self.campaign, not self.obstacle and not self.harness
        if self._other_session:
            yield from self._reading_commands()
            return
        if not stops.holding(self.ends) and is_ready and not self.broken and not self.same:
            yield self._round_command
        final = final_command(campaign)
        if final and is_ready:
            yield f"{self.way}{final}"
        if not self.obstacle and (discarding := self._discard_command):
            yield discarding
        yield from self._reading_commands()
        if not campaign.state.ended:
            yield f"kopt stop {campaign.name}"

    def _reading_commands(self) -> Iterator[str]:
        """Yield the commands that only read the campaign, and so wait for no session."""
        yield from (f"kopt {word} {self.campaign.name}" for word in ("advise", "report"))

    def next_action(self) -> NextAction:
        """Return what is next as a word with its arguments."""
        state, number = self.campaign.state, self.campaign.state.next_round
        if other := self._other_session:
            progress = {key: other.get(key) for key in ("pid", "phase")}
            return NextAction(action="wait", arguments=progress)
        if stops.holding(self.ends):
            final = _due_final(self.campaign)
            if final is None:
                return NextAction(action="stop")
            if not self.obstacle and not self.harness:
                return NextAction(action="run_final", arguments={"command": f"{self.way}{final}"})
        if self.obstacle:
            return NextAction(action="mend", arguments={"obstacle": self.obstacle})
        if self.harness:
            arguments = dict(self.harness)
            if "command" in arguments:
                arguments["command"] = self.way + arguments["command"]
            return NextAction(action="restore_harness", arguments=arguments)
        arguments = {
            "round": number,
            "command": self._round_command,
            "kernel": self.campaign.manifest.kernel_source,
        }
        if discarding := self._discard_command:
            arguments["discard"] = discarding
        if self.broken:
            file, line = place_of(self.broken) or (None, None)
            arguments["error"] = {"text": self.broken, "file": file, "line": line}
            return NextAction(action="mend_kernel", arguments=arguments)
        word = self._word()
        if word == "repair" and number > 1:
            failed = state.rounds[number].failed_checks() - 1
            arguments["repairs_left"] = self.campaign.policy().max_repairs - failed
        return NextAction(action=word, arguments=arguments)

    def _word(self) -> ActionWord:
        """Return what is next where nothing stands in the way of a round."""
        campaign, state = self.campaign, self.campaign.state
        if self.same:
            return "change_kernel"
        if state.has_begun(state.next_round):
            decided = state.rounds[state.next_round].verdict
            if decided is None or decided.decision is not Decision.REPAIR:
                return "rerun"
            return "repair" if campaign.candidate().hashes == decided.kernel else "run_round"
        if state.baseline is None:
            return "run_baseline"
        edited = worktrees.edited(campaign.root, campaign.manifest, state)
        return "run_round" if edited else "change_kernel"

    def sentence(self, action: NextAction) -> str:
        word, arguments = action.action, action.arguments
        if word == "wait":
            return f"wait until process {arguments['pid']} has ended this campaign's session"
        if word in ("stop", "run_final"):
            return "; ".join(going_on_lines(self.campaign, self.ends, self.way))
        if "obstacle" in arguments:
            return f"fix first: {arguments['obstacle']}"
        if "error" in arguments:
            return f"correct the kernel: {arguments['error']['text']}"
        if self.same and "discard" in arguments:
            return f"change the kernel: {self.same}"
        state = self.campaign.state
        last = state.rounds.get(state.next_round, Round(1)).verdict
        step = last.next_step if last else "run the round again"
        done = state.decided_rounds()[-1:] if word == "change_kernel" else []
        lost = [verdict for round in done if not round.is_kept and (verdict := round.verdict)]
        advice = "".join(f"{verdict.next_step}; " for verdict in lost)
        return f"{advice}{_SENTENCES.get(word, step)}: {arguments['command']}"


def final_command(campaign: Campaign) -> str | None:
    """Return the command of the final comparison, None where it would be refused."""
    best = campaign.state.incumbent_round
    if best is None or best == 1 or campaign.state.ended == "abandoned":
        return None
    # The final comparison takes the best version alone; an edit stays in the campaign's records.
    edited = worktrees.edited(campaign.root, campaign.manifest, campaign.state)
    first = f"kopt restore {campaign.name} {best} && " if edited else ""
    return f"{first}pytest --kopt-campaign {campaign.name} --kopt-round final"


def _due_final(campaign: Campaign) -> str | None:
    """Return the command of the final comparison, None where the best version has been in one."""
    last, best = campaign.state.last_final, campaign.state.incumbent_round
    is_done = last is not None and last.best == best and last.decision is not Decision.INCOMPLETE
    return None if is_done else final_command(campaign)


def going_on_lines(campaign: Campaign, ends: Sequence[Stop], way: str = "") -> Iterator[str]:
    """Yield what is left to do where the campaign has ended; `way` brings one there."""
    final, done = _due_final(campaign), campaign.state.last_final
    then = f"its best against the baseline: {way}{final}" if final else ""
    if done and not final:
        then = AFTER_FINAL.get(done.decision, "")
    yield "; ".join(filter(None, ["the campaign ends here", then]))
    yield from (f"to go on: {stop.go_on}" for stop in ends if stop.holds)
