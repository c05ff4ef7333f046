"""The rules of a campaign in small (REQUIREMENTS C4, C10, D2, D4-D6, D8), apart from the product.

A kernel version is its files' bytes by path. Outcomes are what a round's cases showed; figures are
GB/s of four cases, two in each of two classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Version = dict[str, bytes]
KEEPS = {"BASELINE", "ACCEPTED", "ACCEPTED_WITH_NOTE"}
OPEN = {"REPAIR", "INCOMPLETE"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the cases of a run show: factors on the incumbent's rates, and what goes wrong."""

    decision: str
    factors: tuple[float, ...] = (1.0,) * 4
    again: tuple[float, ...] = ()
    is_regression: bool = False
    check: str = "PASS"
    finding: str = ""
    unmeasured: bool = False
    missing: bool = False
    interrupted: bool = False
    touched: bool = False
    benefit: bool = False
    domain: tuple[str, ...] = ()


OUTCOMES = {
    "faster": Outcome("ACCEPTED", (1.1, 1.1, 1.1, 1.1)),
    "one class faster": Outcome("ACCEPTED", (1.1, 1.1, 1.0, 1.0)),
    "a case slower": Outcome("ACCEPTED_WITH_NOTE", (1.1, 1.1, 1.1, 0.97)),
    "confirmed": Outcome("ACCEPTED", (1.015,) * 4, again=(1.015, 1.016, 1.014)),
    "unconfirmed": Outcome("INCONCLUSIVE", (1.015,) * 4, again=(1.001, 1.0, 1.002)),
    "slower": Outcome("ROLLED_BACK", (0.96,) * 4, is_regression=True),
    "much slower": Outcome("ROLLED_BACK", (0.8,) * 4, is_regression=True),
    "a case beyond the gate": Outcome("ROLLED_BACK", (1.2, 1.2, 1.2, 0.93)),
    "within the noise": Outcome("ROLLED_BACK", (0.99,) * 4),
    "equal": Outcome("ROLLED_BACK"),
    "equal with a benefit": Outcome("ACCEPTED_WITH_NOTE", benefit=True),
    "split": Outcome("SPLIT", (1.1, 1.1, 0.97, 0.97)),
    "wrong": Outcome("REPAIR", check="FAIL"),
    "crashed": Outcome("REPAIR", check="ERROR"),
    "wrong when captured": Outcome("REPAIR", check="FAIL", finding="empty-capture"),
    "cheating": Outcome("REJECTED_OVERFIT", (1.1,) * 4, finding="stale-result"),
    "unmeasured": Outcome("ROLLED_BACK", (1.1,) * 4, unmeasured=True),
    "a case missing": Outcome("INCOMPLETE", (1.1,) * 4, missing=True),
    "interrupted": Outcome("INCOMPLETE", (1.1,) * 4, interrupted=True),
    "kernel edited meanwhile": Outcome("INCOMPLETE", (1.1,) * 4, touched=True),
}
MAX_REPAIRS, MAX_REGRESSIONS = 3, 5


@dataclass(frozen=True, slots=True)
class Attempt:
    """A decided run of a round."""

    round: int
    number: int
    decision: str
    kernel: Version
    rates: tuple[float, ...]


@dataclass(slots=True)
class Model:
    """A campaign as the rules have it; `kernel` and `others` lie in the tree, `first` in git."""

    first: Version
    kernel: Version
    others: dict[str, bytes]
    max_iterations: int | None
    target: float | None
    in_git: bool
    attempts: list[Attempt] = field(default_factory=list)
    known_rounds: set[int] = field(default_factory=set)
    pending: Attempt | None = None
    regressions: int = 0
    ended: str | None = None
    benefits: set[int] = field(default_factory=set)
    harness: bytes | None = None
    committed: list[Attempt] = field(default_factory=list)

    @property
    def closed(self) -> list[Attempt]:
        """The attempts that ended their rounds, in order."""
        return [item for item in self.attempts if not self._leaves_open(item)]

    @property
    def kept(self) -> list[Attempt]:
        """The attempts whose candidate became the incumbent."""
        return [item for item in self.attempts if item.decision in KEEPS]

    @property
    def next_round(self) -> int:
        """C4: the open round, else the last one's successor."""
        return len(self.closed) + 1

    @property
    def rollbacks_in_a_row(self) -> int:
        """How many of the last closed rounds kept nothing."""
        kept = [item.decision in KEEPS for item in self.closed]
        return kept[::-1].index(True) if True in kept else len(kept)

    @property
    def stops(self) -> set[str]:
        """D8: the conditions that end the campaign."""
        best = self.kept[-1] if self.kept else None
        reached = best and self.target and geomean(best.rates) > self.target
        limit, done = self.max_iterations, max(len(self.closed) - 1, 0)
        found = {
            "T1": bool(reached),
            "T3": limit is not None and done >= limit,
            "T4": self.ended is not None,
            "regressions in a row": self.regressions >= MAX_REGRESSIONS,
        }
        return {name for name, holds in found.items() if holds}

    def rates(self, outcome: Outcome) -> tuple[float, ...]:
        """Return what a run with this outcome measures."""
        before = self.kept[-1].rates if self.kept else (100.0, 200.0, 300.0, 400.0)
        return tuple(
            round(rate * factor, 3) for rate, factor in zip(before, outcome.factors, strict=True)
        )

    def refusal(self, outcome: Outcome, kernel: Version) -> str:
        """Return why a round on these kernel files is refused before anything runs (E6), or ""."""
        if not self.kept:
            return "commit the kernel first" if self.in_git and kernel != self.first else ""
        if self.others["tests/test_a.py"] != self.harness:
            return "the harness is not the baseline's: tests/test_a.py was edited"
        claims = outcome.benefit or self.next_round in self.benefits
        last = self.kept[-1]
        same = kernel == last.kernel and not claims
        return f"the same code as round {last.round}: nothing to measure" if same else ""

    def is_settled(self, kernel: Version) -> bool:
        """Say whether a round needs no clock: these files are the incumbent's."""
        return bool(self.kept) and kernel == self.kept[-1].kernel

    def decide(self, outcome: Outcome, kernel: Version, kernel_changed: bool) -> str:
        """Return the decision on these files in the open or next round (D1, D2, D4, D6)."""
        number = self.next_round
        if kernel_changed or outcome.touched or outcome.interrupted:
            return "INCOMPLETE"
        if self.is_settled(kernel):
            return "ACCEPTED_WITH_NOTE"
        if outcome.missing:
            return "INCOMPLETE"
        if outcome.check != "PASS":
            failed: list[Version] = []
            for item in self.attempts:
                is_repair = item.round == number and item.decision == "REPAIR"
                if is_repair and item.kernel not in (kernel, *failed):
                    failed.append(item.kernel)
            is_last = number > 1 and len(failed) >= MAX_REPAIRS
            return "ROLLED_BACK" if is_last else "REPAIR"
        if number == 1:
            return "INCOMPLETE" if outcome.unmeasured else "BASELINE"
        benefits = outcome == OUTCOMES["equal"] and number in self.benefits
        decision = "ACCEPTED_WITH_NOTE" if benefits else outcome.decision
        failed_before = any(
            item.decision == "REPAIR" and item.kernel == kernel for item in self.attempts
        )
        return "REPAIR" if decision in KEEPS and failed_before else decision

    def record(self, attempt: Attempt, *, is_regression: bool) -> None:
        """Take over a decided attempt."""
        self.attempts.append(attempt)
        if is_regression:
            self.regressions += 1
        elif attempt.decision != "REPAIR":
            self.regressions = 0
        if attempt.decision == "BASELINE":
            self.harness = self.others["tests/test_a.py"]
        if not self._leaves_open(attempt):
            self.pending = attempt

    def after_settling(self, tree: Version) -> Version:
        """Return what a tree holds once the pending decision is carried out (C10).

        A file that the roll-back finds as the candidate had it becomes the incumbent's; one that
        somebody edited since stays: it is nobody's but the user's.
        """
        if self.pending is None or self.pending.decision in KEEPS:
            return tree
        candidate, incumbent = self.pending.kernel, self.kept[-1].kernel
        return without_none(
            {
                path: incumbent.get(path)
                if tree.get(path) == candidate.get(path)
                else tree.get(path)
                for path in {*tree, *candidate, *incumbent}
            }
        )

    def commit(self) -> None:
        """Take over that the pending decision was carried out: what is kept is committed (C9).

        A version with the bytes of the last commit makes no new one.
        """
        assert self.pending is not None
        before = self.committed[-1].kernel if self.committed else self.first
        if self.pending.decision.startswith("ACC") and self.pending.kernel != before:
            self.committed.append(self.pending)

    def _leaves_open(self, attempt: Attempt) -> bool:
        if attempt.round == 1:
            return attempt.decision != "BASELINE"
        return attempt.decision in OPEN


def geomean(rates: tuple[float, ...]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, rates)) / len(rates))


def without_none(files: Mapping[str, bytes | None]) -> Version:
    """Return the files that are there."""
    return {path: content for path, content in files.items() if content is not None}
