"""The blocks of a case's arms in one replica: in which order they run, and which are looked at."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO, UNEVEN
from pytest_kopt.honesty.watching.clock import Span
from pytest_kopt.processes.child import Child, ChildDied

#: The comparison, the A/A control, the comparison with the group sizes of a grouped GEMM drawn
#: anew, by their names in pairs.csv, and the incumbent beside the candidate against itself alone.
#: In a race each candidate's comparison has its name.
Kind = str
PAIRS: dict[Kind, tuple[str, str]] = {
    "candidate": (CANDIDATE, INCUMBENT),
    "placebo": (PLACEBO, INCUMBENT),
    "uneven": (UNEVEN[CANDIDATE], UNEVEN[INCUMBENT]),
    "alone": (INCUMBENT, ALONE),
}
#: Arms that nobody looks into: what they run was accepted before.
TRUSTED = frozenset({INCUMBENT, PLACEBO, ALONE, UNEVEN[INCUMBENT]})
#: So many blocks of an arm are looked at.
_LOOKS = 2
#: So many quads compare two arms, and more on a GPU whose blocks take less than so many ms each:
#: there a clock that steps between two blocks is what scatters. The mean of more than so many cases
#: is sharp without.
_QUADS, _MORE_QUADS, _SHORT_MS, _FEW_CASES = 3, 6, 12.0, 8
#: Block times in ms: forward, and backward where the case has one.
Times = tuple[float, float | None]
Quad = list[tuple[str, Times]]


def time_of(times: Times, way: str) -> float:
    forward, backward = times
    if way == "forward" or backward is None:
        return forward
    return backward if way == "backward" else forward + backward


class Blocks:
    """Blocks of the arms of a case, in the processes that hold them; some are looked at.

    Which ones, and what content they meet, is not told before: on the CPU, not before they are
    over, and each of an arm's blocks is as likely as any other.
    """

    def __init__(
        self, arms: Mapping[str, Child], order: random.Random, kind: str, cases: int
    ) -> None:
        """Take a case's arms on a device of a kind; `cases` are measured like it."""
        self.arms = arms
        self._order = order
        self._is_gpu = kind != "cpu"
        self._are_few = cases <= _FEW_CASES
        named = {arm for pair in PAIRS.values() for arm in pair}
        self._raced = [arm for arm in arms if arm not in named]
        self._count = _QUADS
        #: By arm, the blocks that a GPU is told to look at as they begin.
        self._chosen: dict[str, list[int]] = {}
        self._runs = dict.fromkeys(arms, 0)
        #: The places of what processes are to keep of their last blocks.
        self._keeping: dict[Child, int] = {}
        self._seeds: dict[tuple[str, int], int] = {}
        self.spans: list[tuple[str, Span]] = []

    @property
    def looked_at(self) -> list[tuple[str, int]]:
        """Arm and seed of the blocks so far whose results are to be judged."""
        return [(arm, seed) for (arm, _), seed in self._seeds.items() if arm not in TRUSTED]

    def warm_up(self) -> None:
        """Run each arm once, which does not count; on a GPU choose how many are to come."""
        for arm in self.arms:
            self.run(arm, self._order.getrandbits(62))
        if self._is_gpu:
            shortest = min(span.inside for _, span in self.spans)
            # A race only chooses who is compared.
            if shortest < _SHORT_MS and self._are_few and not self._raced:
                self._count = _MORE_QUADS
            runs = range(1, 1 + 2 * self._count)
            self._chosen = {arm: self._order.sample(runs, _LOOKS) for arm in self.arms}
        self.spans.clear()

    def quads(self) -> dict[Kind, list[Quad]]:
        """Compare the arms, each pair as often; in a race all of them in one lap."""
        pairs = {kind: pair for kind, pair in PAIRS.items() if self.arms.keys() >= {*pair}}
        pairs |= {name: (name, INCUMBENT) for name in self._raced}
        found: dict[Kind, list[Quad]] = {kind: [] for kind in pairs}
        for number in range(self._count):
            for kinds in self._laps([*pairs], number):
                ran = self._lap({arm for kind in kinds for arm in pairs[kind]})
                for kind in kinds:
                    found[kind].append([block for block in ran if block[0] in pairs[kind]])
        return found

    def _laps(self, kinds: list[Kind], number: int) -> list[list[Kind]]:
        """Return which kinds share blocks: those of a race; the incumbent alone, and the control.

        On a GPU it is compared less often, as it is asked for in percent.
        """
        if self._raced:
            return [kinds]
        shared = "placebo" if "placebo" in kinds else "candidate"
        more = ["alone"] if "alone" in kinds and number < _QUADS else []
        return [[kind, *(more if kind == shared else ())] for kind in kinds if kind != "alone"]

    def _lap(self, arms: Collection[str]) -> Quad:
        """Run arms in a drawn order and back: what drifts meets all alike, and so does content.

        The incumbent alone comes first and last: the others are next to each other.
        """
        there = self._order.sample(sorted(arms), len(arms))
        there.sort(key=lambda arm: arm != ALONE)
        halves = (there, self._order.getrandbits(62)), (there[::-1], self._order.getrandbits(62))
        return [(arm, self.run(arm, seed)) for half, seed in halves for arm in half]

    def run(self, arm: str, seed: int) -> Times:
        number, self._runs[arm] = self._runs[arm], self._runs[arm] + 1
        child, before = self.arms[arm], number in self._chosen.get(arm, ())
        if before:
            # The arm before this one has left results of the content that both meet, in memory that
            # this one's may lie in.
            seed = self._order.getrandbits(62)
        keeps = self.keeps(child)
        child.tell("block", arm=arm, seed=seed, is_looked_at=before, keeps=keeps)
        message = child.receive()
        if message["kind"] != "time":
            raise ChildDied(f"sent {message['kind']} instead of a time")
        forward, backward = float(message["forward"]), message["backward"]
        times = forward, None if backward is None else float(backward)
        told = message["waited"], message["spent"], time_of(times, "step"), message["between"]
        self.spans.append((arm, Span(*map(float, told))))
        place = number if number < _LOOKS else self._order.randrange(number + 1)
        if before:
            self._seeds[arm, number] = seed
        elif not self._is_gpu and place < _LOOKS:
            self._seeds[arm, place] = seed
            self._keeping[child] = place
        return times

    def keeps(self, child: Child) -> int | None:
        """Return, once, the place of what a process is to keep of its last block."""
        return self._keeping.pop(child, None)
