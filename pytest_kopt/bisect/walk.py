"""Which two versions of a history to compare next, and what the answers say; pure.

A version is a number: 0 is GOOD, the last one BAD. All are compared with GOOD, and the first slower
one with its predecessor as well, so that one mistaken comparison does not name a commit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

#: How many standard errors a bound lies off: a one-sided 0.13 %, for each of some ten comparisons.
ERRORS = 3.0
#: How many sessions two versions get until the answer is taken as it is.
SESSIONS = 4
#: Where BAD is not slower, so many parts of the history are looked at for a loss that a later or an
#: earlier gain hides.
PARTS = 8
#: Compares a pair; None where one of them cannot be measured.
Compare: TypeAlias = "Callable[[Pair], Change | None]"
Enough: TypeAlias = "Callable[[Change], bool]"


@dataclass(frozen=True, slots=True)
class Change:
    """How much faster a version is than another: a log-ratio and its standard error."""

    mean: float = 0.0
    error: float = 0.0

    @classmethod
    def pooled(cls, changes: Sequence[Change]) -> Change:
        """Return what several sessions (at least one) say together."""
        exact = [change for change in changes if change.error == 0]
        if exact:
            return exact[0]
        weights = [change.error**-2 for change in changes]
        total = math.fsum(weights)
        mean = math.fsum(w * c.mean for w, c in zip(weights, changes, strict=True)) / total
        return cls(mean, total**-0.5)

    def __sub__(self, other: Change) -> Change:
        return Change(self.mean - other.mean, math.hypot(self.error, other.error))

    @property
    def low(self) -> float:
        return self.mean - ERRORS * self.error

    @property
    def high(self) -> float:
        return self.mean + ERRORS * self.error


_SAME = Change()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two versions to compare: `version` with `base`."""

    base: int
    version: int


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first slower version, and the last one before; `confirmed` if compared directly."""

    version: int
    before: int
    confirmed: bool


class History:
    """The changes that are known of the versions 0 to `last`; `skipped` cannot be measured."""

    def __init__(self, last: int, compare: Compare) -> None:
        self.last = last
        self._compare = compare
        self.skipped: set[int] = set()
        self._changes: dict[Pair, list[Change]] = {}

    def change(self, version: int, base: int = 0) -> Change | None:
        """Return a version's change against a base, None where they were not compared."""
        if version == base:
            return Change()
        changes = self._changes.get(Pair(base, version))
        return Change.pooled(changes) if changes else None

    def first_slower(self) -> Culprit | None:
        """Return the first slower version, None where none is shown slower than an earlier one."""
        bad = self._measure(Pair(0, self.last), lambda c: c.high < 0 or c.mean >= -c.error)
        if bad is None:
            return None
        around = (0, self.last)
        if bad.high >= 0:
            hidden = self._hidden()
            if hidden is None:
                return None
            around = hidden
        while True:
            before, first, loss = self._narrowed(*around)
            pair = Pair(before, first)
            step = self._measure(pair, _clear(loss))
            if step is None or step.high < 0:
                return Culprit(first, before, confirmed=step is not None)
            # They do not agree with what both are against GOOD: so that is measured once more.
            again = [v for v in (before, first) if v and len(self._changes[Pair(0, v)]) < SESSIONS]
            if not again:
                return Culprit(first, before, confirmed=False)
            for version in again:
                self._once_more(Pair(0, version))

    def _hidden(self) -> tuple[int, int] | None:
        """Return two versions of which the later is slower, None where no part shows any."""
        parts = 1
        while parts < min(PARTS, self.last):
            parts *= 2
            for part in range(1, parts, 2):
                version = self.last * part // parts
                self._measure(Pair(0, version), lambda c: True)
                measured = [v for v in range(self.last + 1) if self.change(v) is not None]
                for place, later in enumerate(measured):
                    for earlier in reversed(measured[:place]):
                        if self._difference(later, earlier).high < 0:
                            return earlier, later
        return None

    def _narrowed(self, before: int, first: int) -> tuple[int, int, float]:
        """Return the closest pair, the loss in between of which half tells the sides apart."""
        start = before
        while True:
            loss = -self._difference(first, start).mean
            inner = [v for v in range(before + 1, first) if v not in self.skipped]
            if not inner:
                return before, first, loss
            middle = inner[len(inner) // 2]
            level = self._against_good(start)
            against_good = self._measure(Pair(0, middle), _clear(loss, level))
            if against_good is None:
                continue
            change = against_good - level
            if change.high < 0 or (change.low <= -loss / 2 and change.mean < -loss / 2):
                first = middle
            else:
                before = middle

    def _measure(self, pair: Pair, enough: Enough) -> Change | None:
        """Compare a pair until that is enough; None where one of them cannot be measured."""
        changes = self._changes.setdefault(pair, [])
        while not changes or (len(changes) < SESSIONS and not enough(Change.pooled(changes))):
            if self._once_more(pair) is None:
                break
        return Change.pooled(changes) if changes else None

    def _once_more(self, pair: Pair) -> Change | None:
        change = self._compare(pair)
        if change is None:
            if pair.base == 0:
                self.skipped.add(pair.version)
        else:
            self._changes.setdefault(pair, []).append(change)
        return change

    def _against_good(self, version: int) -> Change:
        change = self.change(version)
        assert change is not None
        return change

    def _difference(self, later: int, earlier: int) -> Change:
        return self._against_good(later) - self._against_good(earlier)


def _clear(loss: float, level: Change = _SAME) -> Enough:
    def enough(change: Change) -> bool:
        difference = change - level
        return difference.high < 0 or difference.low > -loss / 2

    return enough
