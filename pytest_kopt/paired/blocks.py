"""The blocks of a case's arms in one replica: their order, their clock, which are looked at."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain

from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO, UNEVEN, WEIGHT_BITS
from pytest_kopt.cases.protocol import Keep, Time, Write
from pytest_kopt.cases.replies import Timed, Written
from pytest_kopt.devices.vendor import LOCKED, Reading
from pytest_kopt.measure.engine import PAUSE_S
from pytest_kopt.paired.judge import SeenBlock, brought
from pytest_kopt.paired.samples import PAIRS, BlockTime, Kind, Quad
from pytest_kopt.processes.child import Child, ChildDied

#: Arms that nobody looks into: what they run was accepted before.
TRUSTED = frozenset({INCUMBENT, PLACEBO, ALONE, UNEVEN[INCUMBENT]})
#: Arms that meet what the candidate met, at most so many of its blocks ago.
_FOLLOWERS, _KEPT_SEEDS = (INCUMBENT, PLACEBO, ALONE), 2
#: Laps of blocks of one call, over all cases but at least two in each, and the calls of the block
#: in front of each.
_SINGLE_LAPS, _WARMING = 6, 3
#: Of more bytes an input is not brought from one process to another.
_MOST_BROUGHT = 1 << 28
#: So many blocks of an arm are looked at.
_LOOKS = 2
#: So many quads compare two arms, and more on a GPU whose blocks take less than so many ms each:
#: there a clock that steps between two blocks is what scatters. The mean of more than so many cases
#: is sharp without.
_QUADS, _MORE_QUADS, _SHORT_MS, _FEW_CASES = 3, 4, 12.0, 8
#: A block of a GPU is so many ms longer where the outside clock is asked: that scatters by up to
#: 0.4 ms on an H100, and so much has to be gained. No longer than the first of two bounds, where
#: the clock may fall under load, or the second.
_LEAST_MS, _LONGEST_MS, _GAINED_MS = 6.0, (40.0, 240.0), 0.6
#: So often that clock is asked, over all cases, there and back in each.
_ASKED = 8
#: Under load for so long, in s, a clock is a version's own: an H200's is there after 0.11 s. It
#: falls below so much of its highest if the version needs more power than the device may take.
_LEAD_S, _FALLEN = 0.2, 0.98
#: Turns of each version where the sustained point decides, and at the final comparison.
AT_LENGTH = 2
#: After that lead a turn is timed for so long, in several blocks. Half of that is off by up to 6 %
#: on an H200, whose power is corrected every 0.9 s.
_TIMED_S, _PARTS = 0.6, 6


def _together(blocks: Sequence[BlockTime]) -> BlockTime:
    """Return blocks that followed one another as one, with its mean clock and power."""

    def mean(figures: Iterable[float | None]) -> float | None:
        known = [figure for figure in figures if figure is not None]
        return statistics.fmean(known) if known else None

    return BlockTime(
        statistics.fmean(block.forward for block in blocks),
        mean(block.backward for block in blocks),
        math.fsum(block.counted for block in blocks),
        math.fsum(block.outside for block in blocks),
        math.fsum(block.passed for block in blocks),
        mean(block.mhz for block in blocks),
        mean(block.watts for block in blocks),
    )


def _spent_ms(child: Child, still: ExitStack | None = None) -> float | None:
    """Return the processor time of a process, which may stand `still`; None where nobody tells it.

    A process that has a clock and does not let it be read ends: no other clock is its own.
    """
    if (process := child.inspected) is None:
        return None
    try:
        if still is not None:
            still.enter_context(process.stopped())
        return process.cpu_ms()
    except OSError as error:
        child.kill()
        raise ChildDied(f"the processor time of its process cannot be read: {error}") from None


class Blocks:
    """Blocks of the arms of a case, in the processes that hold them; some are looked at.

    On the CPU which ones are is drawn when they are over. Each of an arm's blocks and each call of
    it is as likely as any other. On a GPU they are blocks of their own, in a round that is drawn.

    On the CPU a block's time is the CPU time of its process between its start and its end, as the
    system tells it here. The time since the process's block before comes with it. Its own clock
    counts for nothing. On a GPU the device's events say the time.
    """

    def __init__(
        self,
        arms: Mapping[str, Child],
        order: random.Random,
        kind: str,
        cases: int,
        calls: Mapping[str, Sequence[int]],
        places: Mapping[str, Sequence[int]] | None = None,
        glance: Callable[[], Reading] = Reading,
    ) -> None:
        """Take a case's arms on a device of a kind; `cases` are measured like it.

        A block of an arm is `calls` calls of its forward, and then of its backward if any. The
        places of their results are in `places` in its process (None: its memory is not read).
        `glance` reads the device's state.
        """
        self.arms = arms
        self._calls = calls
        self._places = places
        self._order = order
        self._is_gpu = kind != "cpu"
        self._cases = cases
        named = {arm for pair in PAIRS.values() for arm in pair}
        self._raced = [arm for arm in arms if arm not in named]
        self._count = _QUADS
        self._runs = dict.fromkeys(arms, 0)
        #: What the first block of each arm took, in ms.
        self._warm_ms: dict[str, float] = {}
        #: The places of what processes are to keep of their last blocks.
        self._keeping: dict[Child, Keep] = {}
        #: The seeds that trusted arms are still to meet.
        self._seeds = {arm: deque[int](maxlen=_KEPT_SEEDS) for arm in TRUSTED}
        #: The processor time of processes as their last blocks ended, in ms.
        self._spent_ms: dict[Child, float] = {}
        self._seen: dict[tuple[str, int], SeenBlock] = {}
        #: How many blocks of the candidate met content that was brought, by their calls.
        self._brought = Counter[int]()
        self._glance = glance
        #: Rounds of calls on content that none of them met before, on a GPU.
        self.looks: list[Quad] = []
        #: The highest clock of a block so far, in MHz.
        self.top_mhz = 0.0
        #: Whether the owner's setting held the clock in a block so far.
        self.is_locked = False

    @property
    def looked_at(self) -> list[SeenBlock]:
        """The blocks so far whose results are to be judged."""
        return [block for block in self._seen.values() if block.arm not in TRUSTED]

    def warm_up(self) -> None:
        """Run each arm once, which does not count; on a GPU choose how many are to come."""
        warm = {arm: self.run(arm, self._drawn()) for arm in self.arms}
        self._warm_ms = {arm: time.counted for arm, time in warm.items()}
        if self._is_gpu:
            shortest = min(self._warm_ms.values())
            # A race only chooses who is compared.
            if shortest < _SHORT_MS and self._cases <= _FEW_CASES and not self._raced:
                self._count = _MORE_QUADS

    def quads(self) -> dict[Kind, list[Quad]]:
        """Compare the arms, each pair as often, but for the incumbent alone on a GPU."""
        pairs = {kind: pair for kind, pair in PAIRS.items() if self.arms.keys() >= {*pair}}
        pairs |= {name: (name, INCUMBENT) for name in self._raced}
        quads: dict[Kind, list[Quad]] = {kind: [] for kind in pairs}
        looked_at = self._order.randrange(self._count) if self._is_gpu else None
        for number in range(self._count):
            if number == looked_at:
                self.looks.append(self._lap(self.arms.keys() - {PLACEBO, ALONE}, self._look))
            # What is said of it in percent takes fewer.
            compared = [kind for kind in pairs if kind != "alone" or number < _QUADS]
            with_incumbent = [kind for kind in compared if INCUMBENT in pairs[kind]]
            for kinds in (
                with_incumbent,
                [kind for kind in compared if kind not in with_incumbent],
            ):
                blocks = self._lap({arm for kind in kinds for arm in pairs[kind]})
                for kind in kinds:
                    quads[kind].append([block for block in blocks if block[0] in pairs[kind]])
        return quads

    def sustained(self, turns: int, *, has_control: bool = False) -> dict[Kind, list[Quad]] | None:
        """Compare versions, each at the clock that it gets where it alone keeps the device busy.

        Each has one turn, or two, there and back: the card is cooler at the first. None where no
        clock falls: what is measured with pauses holds there as well. With `has_control` the A/A
        control is measured so too.
        """
        kinds = [CANDIDATE, *([PLACEBO] if has_control else [])]
        arms = {arm for kind in kinds for arm in PAIRS[kind]}
        if turns > 1:
            if not self._is_limited():
                return None
            blocks = self._lap(arms, self._turn)
        else:
            seed, (first, second) = self._drawn(), self._order.sample(PAIRS[CANDIDATE], 2)
            # The load that shows that a clock falls is the lead of its version's turn.
            if not self._falls(first, seed):
                if not self._falls(second, seed):
                    return None
                first, second = second, first
            blocks = [(first, self._timed_turn(first, seed)), (second, self._turn(second, seed))]
        return {kind: [[block for block in blocks if block[0] in PAIRS[kind]]] for kind in kinds}

    def _turn(self, arm: str, seed: int) -> BlockTime:
        self.run(arm, seed, _LEAD_S)
        return self._timed_turn(arm, seed)

    def _timed_turn(self, arm: str, seed: int) -> BlockTime:
        return _together([self.run(arm, seed, _TIMED_S / _PARTS) for _ in range(_PARTS)])

    def _is_limited(self) -> bool:
        """Say whether the clock of a version falls under load, as far as the device tells."""
        return any(self._falls(arm, self._drawn()) for arm in (INCUMBENT, CANDIDATE))

    def _falls(self, arm: str, seed: int) -> bool:
        load = self.run(arm, seed, _LEAD_S)
        return not load.mhz or load.mhz < _FALLEN * self.top_mhz

    def _lap(
        self, arms: Collection[str], run: Callable[[str, int], BlockTime] | None = None
    ) -> Quad:
        """Run arms in a drawn order and back: what drifts meets all alike.

        The incumbent, with which the others are compared, runs between them; the incumbent alone
        first and last.
        """
        others = sorted({*arms} - {INCUMBENT, ALONE})
        there = self._order.sample(others, len(others))
        if INCUMBENT in arms:
            there.insert((len(others) + self._order.randrange(2)) // 2, INCUMBENT)
        there = [*([ALONE] if ALONE in arms else []), *there]
        run = run or self.run
        return [(arm, run(arm, self._seed_of(arm))) for arm in (*there, *there[::-1])]

    def _seed_of(self, arm: str) -> int:
        """Return the seed of an arm's next block: fresh, or for the incumbent one that was met.

        Integers of a case may say how much there is to do, so that both meet the same. The
        candidate meets it first: no other arm's answers, or content, lie there before.
        """
        if left := self._seeds.get(arm):
            return left.popleft()
        seed = self._drawn()
        if arm in TRUSTED:
            return seed
        for follower in (UNEVEN[INCUMBENT],) if arm in UNEVEN.values() else _FOLLOWERS:
            if arm not in self._raced[1:]:
                self._seeds[follower].append(seed)
        return seed

    def _drawn(self) -> int:
        return self._order.getrandbits(62)

    def singles(self, *, is_whole: bool = False, calls: int = 1) -> list[Quad]:
        """Compare the candidate and the incumbent by blocks of one call, on the CPU.

        With 0 `calls` they are as long as any: a process that writes input values cannot tell that
        others are brought. There is none where nothing can be.

        The incumbent is that of a process without the candidate, if there is one. A block of few
        calls with the same weights comes before each: a transform of these may be kept. The call
        has activations that the incumbent's process drew. They come when the block begins, from
        outside: what runs while its process writes others does not know them. If they are a call's
        `is_whole` content but for weights, it does not know their seed either.
        """
        old = ALONE if ALONE in self.arms else INCUMBENT
        if self.arms[old] is self.arms[CANDIDATE]:
            return []
        if not (can_bring := self._can_bring(old)) and not calls:
            return []

        def single(arm: str, seed: int) -> BlockTime:
            content = (old, seed) if can_bring else None
            if arm == CANDIDATE and content:
                self.run(old, seed, first=calls, content=content)
                seed = self._beside(seed) if is_whole else seed
            # Right before the call, for both: what ran between would leave them other caches.
            self.run(arm, self._beside(seed), first=_WARMING)
            return self.run(arm, seed, first=calls, content=content)

        laps = max(2, math.ceil(_SINGLE_LAPS / self._cases)) if calls else 2
        return [self._lap((CANDIDATE, old), single) for _ in range(laps)]

    def _beside(self, seed: int) -> int:
        """Draw another seed, of which blocks have the same weights."""
        return seed ^ (1 + self._order.getrandbits(WEIGHT_BITS - 1))

    def run(
        self,
        arm: str,
        seed: int,
        seconds: float = 0.0,
        first: int = 0,
        content: tuple[str, int] | None = None,
    ) -> BlockTime:
        """Run a block of an arm, on a GPU after a pause that keeps the clock at its top.

        With `seconds` the device is kept busy for that time, with forward and backward in turn. On
        the CPU the `first` calls of a block may run alone. The calls may meet the `content` of an
        arm and a seed that its process has just met.

        It is rule 3 of docs/honesty.md.
        """
        if self._is_gpu and not seconds:
            time.sleep(PAUSE_S)
        number, self._runs[arm] = self._runs[arm], self._runs[arm] + 1
        child = self.arms[arm]
        per_call, counted, around, waited = list[float](), 0.0, 0.0, 0.0
        block, place, keep = SeenBlock(arm, seed, content), None, self.keeps(child)
        each_s = seconds / len(self._calls[arm])
        for way, calls in enumerate(self._calls[arm]):
            calls = min(calls, first or calls)
            order = Write(arm, seed, way, keep=keep, calls=first and calls, seconds=each_s)
            child.send(order)
            child.expect(Written)
            # What its process computes after its clock was read is in no memory that is read.
            with ExitStack() as still:
                bring = partial(self._bring, content[0], arm, way, calls) if content else None
                ms, around_ms = self._timed(child, still, bring)
                if not self._is_gpu:
                    # Drawn now that it is over.
                    if way == 0:
                        place = self._place(number, block, first)
                    if place is not None:
                        places = None if self._places is None else self._places[arm][way]
                        block.see(child, places, self._order.randrange(calls))
            per_call.append(ms / calls)
            counted += ms
            around += around_ms
            waited += child.waited_ms
        if place is not None:
            self._seen[arm, place] = block
            self._keeping[child] = Keep(place, block.calls)
        outside = waited if self._is_gpu else around + counted
        backward = per_call[1] if per_call[1:] else None
        state = self._glance() if self._is_gpu else Reading()
        self.top_mhz = max(self.top_mhz, state.sm_mhz or 0.0)
        self.is_locked |= LOCKED in state.throttle
        figures = (counted, outside, waited, state.sm_mhz, state.power_w)
        return BlockTime(per_call[0], backward, *figures)

    def _place(self, number: int, block: SeenBlock, first: int) -> int | None:
        """Draw the place of a block among those that are looked at, None: it is not.

        Two more are for blocks whose content was brought: of the `first` call, and of all.
        """
        if block.content and block.arm not in TRUSTED:
            self._brought[first] += 1
            return None if self._order.randrange(self._brought[first]) else _LOOKS + first
        if block.content:
            return None
        place = number if number < _LOOKS else self._order.randrange(number + 1)
        return place if place < _LOOKS else None

    def _can_bring(self, arm: str) -> bool:
        """Say whether the activations of an arm can be brought, here to where they lie."""
        process = self.arms[arm].inspected
        if self._places is None or process is None:
            return False
        try:
            ways = [brought(process, place) for place in self._places[arm]]
            for address, size in chain(*ways):
                process.write(address, process.read(address, min(size, 1)))
        except OSError:
            return False
        return all(ways) and all(size <= _MOST_BROUGHT for _, size in chain(*ways))

    def _bring(self, content: str, arm: str, way: int, calls: int) -> None:
        """Write the activations that an arm has met into another's calls, or its own again.

        No process can take part in that but by ending. A process that is in the way ends.
        """
        assert self._places is not None
        source, target = self.arms[content], self.arms[arm]
        if source.inspected is None or target.inspected is None:
            return
        failing = source
        try:
            for call in range(calls):
                failing = source
                met = brought(source.inspected, self._places[content][way], call)
                values = [source.inspected.read(address, size) for address, size in met]
                failing = target
                places = brought(target.inspected, self._places[arm][way], call)
                if [size for _, size in met] != [size for _, size in places]:
                    raise OSError("they take other memory")
                for (address, _), content_of in zip(places, values, strict=True):
                    target.inspected.write(address, content_of)
        except OSError as error:
            failing.kill()
            raise ChildDied(f"input values cannot be brought: {error}") from None

    def _look(self, arm: str, seed: int) -> BlockTime:
        """Run an arm's calls once on content of its own, and have one of them kept."""
        time.sleep(PAUSE_S)
        child, per_call = self.arms[arm], list[float]()
        for way in range(len(self._calls[arm])):
            child.send(Write(arm, seed, way, is_look=True))
            child.expect(Written)
            per_call.append(self._timed(child, ExitStack())[0])
        self._seen[arm, len(self._seen)] = SeenBlock(arm, seed)
        return BlockTime(per_call[0], per_call[1] if per_call[1:] else None, 0.0, 0.0, 0.0)

    def _timed(
        self, child: Child, still: ExitStack, bring: Callable[[], None] | None = None
    ) -> tuple[float, float]:
        """Have a direction's calls run; return what counts as their time, and what is around it.

        Both in ms. On the CPU it is the processor time of the process and of what it started, as
        the system counts it: in the calls, and since the last ones. Others that compute there
        change nothing. The process stands `still` when they are over, and while what it works on is
        brought.
        """
        written_ms = child.waited_ms
        if self._is_gpu:
            child.send(Time())
            return child.expect(Timed).ms, 0.0
        siblings = {sibling for sibling in self.arms.values() if sibling is not child}
        with ExitStack() as others:
            # What another version leaves running would take time from this one.
            for sibling in siblings:
                if running := sibling.inspected:
                    with suppress(OSError):
                        others.enter_context(running.stopped())
            with ExitStack() as meanwhile:
                # It stands still.
                before = _spent_ms(child, meanwhile if bring else None)
                if bring:
                    bring()
                child.send(Time())
            child.expect(Timed)
            after = None if before is None else _spent_ms(child, still)
        since = self._spent_ms.pop(child, None)
        if before is None or after is None:
            return child.waited_ms, written_ms
        self._spent_ms[child] = after
        return after - before, written_ms if since is None else before - since

    def seen_outside(self, quads: Sequence[Quad], gain: float) -> tuple[float, ...]:
        """Return the candidate's gain by the clock of this process, as log-ratios.

        A graph's blocks differ in what passes around their events, so that each is run once and
        many times over: the difference is the calls' alone. `gain` is to be told, over all cases:
        longer where it is small, if the clock does not fall under load. `quads` are the case's.
        """
        step = {
            arm: statistics.fmean(
                time.of("step") for quad in quads for name, time in quad if name == arm
            )
            for arm in (CANDIDATE, INCUMBENT)
        }
        under_load_ms, longest_ms = _LONGEST_MS
        longer_ms = min(longest_ms, max(_LEAST_MS, _GAINED_MS / max(gain, 1e-4)))
        if longer_ms > under_load_ms and self._is_limited():
            longer_ms = under_load_ms

        def ratio(first: str, second: str) -> float:
            ms = {arm: self._outside_ms(arm, longer_ms) for arm in (first, second)}
            faster = ms[INCUMBENT] - ms[CANDIDATE]
            return math.log(step[INCUMBENT] / max(step[INCUMBENT] - faster, 1e-2 * step[CANDIDATE]))

        there_and_back = ((CANDIDATE, INCUMBENT), (INCUMBENT, CANDIDATE))
        times = math.ceil(_ASKED / 2 / self._cases)
        return tuple(ratio(*order) for order in there_and_back * times)

    def _outside_ms(self, arm: str, longer_ms: float) -> float:
        """Return the ms of a call, forward and backward, as they pass here."""
        times = 1 + math.ceil(longer_ms / max(self._warm_ms[arm], 1e-3))
        once, often = self._over(arm, 1), self._over(arm, times)
        return sum(
            (more - less) / ((times - 1) * calls)
            for less, more, calls in zip(once, often, self._calls[arm], strict=True)
        )

    def _over(self, arm: str, times: int) -> list[float]:
        """Return how many ms pass while an arm's forward, and its backward, is run many times."""
        child, seed, passed = self.arms[arm], self._order.getrandbits(62), list[float]()
        for way in range(len(self._calls[arm])):
            child.send(Write(arm, seed, way, times=times))
            child.expect(Written)
            self._timed(child, ExitStack())
            passed.append(child.waited_ms)
        return passed

    def keeps(self, child: Child) -> Keep | None:
        """Return, once, the place of what a process is to keep of its last block, and the calls."""
        return self._keeping.pop(child, None)
