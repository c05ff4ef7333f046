"""The state of a campaign: a fold over its ledger."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed

#: For a state whose evidence nobody reads.
NOWHERE = Layout(Path())


@dataclass(slots=True)
class Round:
    """A round with its attempts; `last_event` is its last one's place in the ledger, from 1."""

    number: int
    attempts: dict[int, Attempt] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    last_event: int = 0

    @property
    def version(self) -> int:
        """Its version in the iteration memory; 0 is the baseline."""
        return self.number - 1

    @property
    def last(self) -> Attempt:
        """The latest attempt with a verdict; the latest of all where no attempt came so far.

        A kill can leave a later one in the ledger without its evidence.
        """
        decided = [number for number, attempt in self.attempts.items() if attempt.decided]
        return self.attempts[max(decided or self.attempts)]

    @property
    def verdict(self) -> ledger.Decided | None:
        """The latest verdict, None before the first."""
        return self.last.decided if self.attempts else None

    @property
    def is_open(self) -> bool:
        """Whether another attempt may follow; round 1 stays open until it is a baseline."""
        verdict = self.verdict
        if verdict is None or self.number == 1:
            return verdict is None or verdict.decision is not Decision.BASELINE
        return verdict.decision.leaves_open

    @property
    def is_kept(self) -> bool:
        """Whether its latest verdict keeps its version; the baseline's does."""
        return self.verdict is not None and self.verdict.decision.keeps

    def failed_checks(self, besides: Mapping[str, str] | None = None) -> int:
        """Return how many versions failed their checks: the first failure and the failed repairs.

        A version that was run again unchanged counts once; `besides` is one that does not count.
        """
        decided = [attempt.decided for attempt in self.attempts.values() if attempt.decided]
        failed = [verdict.kernel for verdict in decided if verdict.decision is Decision.REPAIR]
        different = [kernel for i, kernel in enumerate(failed) if kernel not in failed[:i]]
        return sum(kernel != besides for kernel in different)


@dataclass(slots=True)
class CampaignState:
    """Everything the ledger tells; `masked` are versions of the iteration memory.

    `restores` are the versions that were put into the tree, `restoring` one that is not there yet.
    `waits` are all waits for an idle GPU in vain, each with the last decided attempt before it:
    (round, attempt). `no_idle_gpu` is the last one while nothing was measured since.
    """

    rounds: dict[int, Round] = field(default_factory=dict)
    finals: list[ledger.Final] = field(default_factory=list)
    manifest_changes: dict[str, Any] = field(default_factory=dict)
    policy_changes: dict[str, Any] = field(default_factory=dict)
    ended: Literal["stopped", "abandoned"] | None = None
    restores: list[ledger.Restoring] = field(default_factory=list)
    restoring: ledger.Restoring | None = None
    waits: list[tuple[ledger.NoIdleGpu, tuple[int, int]]] = field(default_factory=list)
    no_idle_gpu: ledger.NoIdleGpu | None = None
    masked: set[int] = field(default_factory=set)
    events: int = 0

    def decided(self) -> Iterator[tuple[Round, Attempt, ledger.Decided]]:
        """Yield the attempts that have a verdict, oldest first, with their rounds."""
        for _, round in sorted(self.rounds.items()):
            for _, attempt in sorted(round.attempts.items()):
                if attempt.decided:
                    yield round, attempt, attempt.decided

    @property
    def baseline(self) -> Round | None:
        """Round 1, once it is decided."""
        first = self.rounds.get(1)
        return first if first and not first.is_open else None

    @property
    def incumbent(self) -> Attempt | None:
        """The last accepted attempt."""
        number = self.incumbent_round
        return self.rounds[number].last if number else None

    @property
    def incumbent_round(self) -> int | None:
        return self.incumbent_as_of(max(self.rounds, default=0))

    @property
    def last_final(self) -> ledger.Final | None:
        return self.finals[-1] if self.finals else None

    @property
    def next_round(self) -> int:
        """The open round, else the last one's successor."""
        if not self.rounds:
            return 1
        last = self.rounds[max(self.rounds)]
        return last.number if last.is_open else last.number + 1

    def has_begun(self, number: int) -> bool:
        """Say whether a round was run; its notes may come before."""
        return number in self.rounds and bool(self.rounds[number].attempts)

    @property
    def pending(self) -> Attempt | None:
        """A decided attempt whose decision was not carried out, None when all are.

        The last round's comes first: its version lies in the tree.
        """
        for round in reversed(self.rounds.values()):
            for attempt in round.attempts.values():
                decided = attempt.decided
                waits = decided is not None and not decided.decision.leaves_open
                if waits and not attempt.settled and not (round.number == 1 and round.is_open):
                    return attempt
        return None

    @property
    def first_quick_round(self) -> int | None:
        """The first round over the representative cases, which are frozen since then."""
        quick = (decided.round for _, _, decided in self.decided() if decided.level == "quick")
        return next(quick, None)

    def incumbent_as_of(self, number: int) -> int | None:
        """Return the last accepted round up to and including `number`."""
        numbers = (round.number for round in self.kept_rounds())
        return max((accepted for accepted in numbers if accepted <= number), default=None)

    def judged_rounds(self) -> list[Round]:
        """Return the rounds that have a verdict in their order, an open one among them."""
        return [round for _, round in sorted(self.rounds.items()) if round.verdict]

    def decided_rounds(self) -> list[Round]:
        """Return the closed rounds in their order."""
        return [round for round in self.judged_rounds() if not round.is_open]

    def kept_rounds(self) -> list[Round]:
        """Return the baseline and the accepted rounds in their order."""
        return [round for round in self.decided_rounds() if round.is_kept]

    def unmasked_rounds(self) -> list[Round]:
        return [round for round in self.decided_rounds() if round.version not in self.masked]

    def half(self, seed: int) -> list[int]:
        """Return about half of the unmasked versions, by a seed: never v0, nor the best one."""
        best = self.incumbent_round or 1
        free = [round.version for round in self.unmasked_rounds() if round.number not in (1, best)]
        return sorted(random.Random(seed).sample(free, (len(free) + 1) // 2))

    def check_round(self, named: int | str) -> int:
        """Return the number that `named` (or "next") stands for; BadInput if it may not run."""
        following = self.next_round
        number = following if named == "next" else int(named)
        if number == following:
            return number
        what, legal = f"would skip round {following}", f"{following} (or next)"
        if self.baseline is None:
            what, legal = "has no baseline yet", "1, the baseline"
        elif number < following:
            decided = self.rounds[number].verdict
            what = "is already decided" + (f" ({decided.decision})" if decided else "")
        raise BadInput(f"round {number} {what}", where="--kopt-round", legal=legal)


def chain_breaks(state: CampaignState, noise_pct: float) -> list[str]:
    """Name the accepted rounds whose primary metric fell by more than the noise."""
    verdicts = {round.number: round.verdict for round in state.kept_rounds()}
    changes = {n: v.aggregate.change_pct for n, v in verdicts.items() if v and v.aggregate}
    return [
        f"round {number} was accepted although it fell: {changed(change)}"
        for number, change in changes.items()
        if change is not None and change < -noise_pct - 1e-9
    ]


def fold(events: Iterable[ledger.AnyEvent], layout: Layout = NOWHERE) -> CampaignState:
    """Return the state after these events; `layout` is where the evidence lies that they name."""
    state = CampaignState()
    for event in events:
        state.events += 1
        if isinstance(event, ledger.Ended):
            state.ended = event.how
        elif isinstance(event, ledger.NoIdleGpu):
            decided = ((round.number, attempt.number) for round, attempt, _ in state.decided())
            state.waits.append((event, max(decided, default=(0, 0))))
            state.no_idle_gpu = event
        elif isinstance(event, ledger.KeysChanged):
            is_policy = event.event == "policy_changed"
            (state.policy_changes if is_policy else state.manifest_changes).update(event.values)
        elif isinstance(event, ledger.Final):
            state.finals.append(event)
            state.no_idle_gpu = None
        elif isinstance(event, ledger.Masking):
            change = state.masked.update if event.masked else state.masked.difference_update
            change(event.versions)
            for number in state.rounds.keys() & {version + 1 for version in event.versions}:
                state.rounds[number].last_event = state.events
        elif isinstance(event, ledger.Note):
            round = state.rounds.setdefault(event.round, Round(event.round))
            round.notes = round.notes.plus(event.notes)
            round.last_event = state.events
        elif isinstance(event, ledger.Restoring):
            state.restores.append(event)
            state.restoring = event
        elif isinstance(event, ledger.Restored):
            state.restoring = None
        elif isinstance(event, ledger.AttemptEvent):
            _fold_attempt(state, event, layout)
    return state


def _fold_attempt(state: CampaignState, event: ledger.AttemptEvent, layout: Layout) -> None:
    round = state.rounds.setdefault(event.round, Round(event.round))
    round.last_event = state.events
    begun = Attempt(layout, event.round, event.attempt, event.time)
    attempt = round.attempts.setdefault(event.attempt, begun)
    if isinstance(event, ledger.Opened):
        state.no_idle_gpu = None
    elif isinstance(event, ledger.Measured):
        attempt.hashes = event.evidence
    elif isinstance(event, ledger.Decided):
        attempt.decided = event
        round.notes = attempt.notes = round.notes.plus(event.notes)
    elif isinstance(event, ledger.Applied):
        attempt.applied = event
        attempt.settled = True
    elif isinstance(event, ledger.ApplyWaived):
        attempt.settled = True
