"""A replica: fresh processes on one device that hold both versions; blocks on command."""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pytest_kopt.cases.order import ALONE, CANDIDATE, UNEVEN, WAYS
from pytest_kopt.cases.protocol import HandOver, Leave, LoadVersions, Looks, Prepare
from pytest_kopt.cases.replies import (
    CannotLoad,
    CaseFinished,
    Collected,
    HandedOver,
    Loaded,
    Ready,
    why_ended,
)
from pytest_kopt.decide.case_verdict import Same
from pytest_kopt.devices.conditions import Steadily
from pytest_kopt.devices.states import BOOST, SUSTAINED
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.measure.engine import agreed
from pytest_kopt.paired.blocks import AT_LENGTH, Blocks
from pytest_kopt.paired.judge import Caught, Judge, Refused
from pytest_kopt.paired.samples import PAIRS, CaseQuads
from pytest_kopt.processes.child import Child, ChildDied, Children
from pytest_kopt.processes.sites import Place
from pytest_kopt.sameness.launch_recording import differences_later

_OTHER_ARMS = "other arms or directions than its case has"
ONE_PROCESS, TWO_PROCESSES = "one process", "two processes"
_Kind = TypeVar("_Kind")
#: Times a loaded case; returns what is still to be judged, and what gave the candidate away.
_Timing = Callable[..., tuple[list[Looks], list[Finding]]]
#: Makes the context of a phase, for the timeline.
During = Callable[..., AbstractContextManager[None]]


def untold(phase: str, process: str = "") -> AbstractContextManager[None]:
    """Put a phase down nowhere."""
    return nullcontext()


class Unloadable(Refused):
    """A process cannot hold these versions side by side, as they are made."""


class Died(Refused):
    """A process ended; `case` ran in it, "" unless it held the candidate and no other version."""

    def __init__(self, why: str, how: str, case: str = "") -> None:
        super().__init__(why)
        self.how, self.case = how, case


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clock of a device in each case, as far as the replicates of a comparison saw it."""

    #: The highest one in MHz: a device that was loaded before does not have it at once.
    tops: dict[str, float] = field(default_factory=dict)
    #: The cases in which it does not fall under load: one figure holds at both operating points.
    steady: set[str] = field(default_factory=set)


class Runner(Children):
    """The processes of one replica; `how` tells whether one of them holds all versions."""

    def __init__(
        self,
        holding: Mapping[str, Child],
        place: Place,
        judge: Judge,
        alone: Child | None = None,
        out: Collection[str] = (),
        clocks: Clocks | None = None,
        during: During = untold,
    ) -> None:
        """Take over started processes by the arm that each was given, and what judges them.

        `alone` is the process that holds only the candidate, None where one holds all. `out` are
        arms that are not asked for; other code may add to them. All replicas share `clocks`.
        """
        super().__init__(dict.fromkeys(holding.values()))
        self._holding = dict(holding)
        self._alone = alone
        self._out = out
        self._clocks = clocks or Clocks()
        self._during = during
        self._judge = judge
        self._device, self._placement = place.device, place.site.placement
        self.how = ONE_PROCESS if alone is None else TWO_PROCESSES
        self._asked: str | None = None
        self._has_collected = False
        self.held_seconds = 0.0
        #: Of what blocks met, what the candidate is wrong for and the incumbent is not.
        self.tried: list[Tried] = []
        #: What was looked at in cases in which the candidate lost, and is still to be judged.
        self.postponed: list[Looks] = []

    @property
    def takes_company(self) -> bool:
        """Whether the incumbent alone can be timed next to both versions in one process."""
        return self.how == ONE_PROCESS and CANDIDATE in self._holding

    def load(self, nodeid: str) -> None:
        """Have the processes load a case, the first to be measured, while others are measured."""
        if self._asked is None:
            self._ask(nodeid)
            with suppress(Refused):  # It is told when the case is measured.
                self._judge.load(nodeid)

    def measure(
        self,
        ids: Sequence[str],
        order: random.Random,
        turns: int = 0,
        to_witness: float | None = None,
    ) -> dict[str, CaseQuads]:
        """Measure every case, one after the other, alone on the device.

        With `turns` of each version every case is measured under load, and nowhere else. The
        outside clock has to tell a gain `to_witness`, a log-ratio over all cases. The judge then
        times the incumbent alone as well, if one process holds both versions. Raises Refused when a
        process cannot hold its arms, Died when one dies, AllGpusBusy when a stranger does not leave
        the device, Caught when the candidate gave itself away.
        """
        has_company = to_witness is not None and self.takes_company
        timed = partial(
            self._timed, order=order, cases=len(ids), turns=turns, to_witness=to_witness
        )
        cases: dict[str, CaseQuads] = {}
        nodeid = None
        self.held_seconds, self.tried, self.postponed = 0.0, [], []
        try:
            if not self._has_collected:
                with self._during("start"):
                    for child in self.children:
                        _wait(child, Collected)
                self._has_collected = True
            # What it was told to load comes first, and is gone through even if it needs no clock.
            left = deque(dict.fromkeys([self._asked or ids[0], *ids]))
            while left:
                nodeid = left.popleft()
                cases[nodeid], looked_at = self._case(nodeid, timed, has_company)
                if left:
                    # Meanwhile this one is judged, and others may have the device.
                    self._ask(left[0])
                if self._loses(cases[nodeid]):
                    self.postponed += looked_at
                else:
                    with self._during("judge"):
                        for looks in looked_at:
                            self.tried += self._judge.tried_in(looks)
                if not cases[nodeid].same:
                    with self._during("settle"):
                        for child in self.children:
                            # A process that fails now has its results judged all the same.
                            _wait(child, CaseFinished)
            self._asked = None
        except ChildDied as death:
            is_candidates = self._alone is not None and self._alone.has_died
            why = f"a replica died: {death}"
            raise Died(why, str(death), nodeid or "" if is_candidates else "") from None
        return cases

    def _loses(self, case: CaseQuads) -> bool:
        """Say whether the candidate loses in a case whose results the judge can read later on."""
        is_timed = CANDIDATE in case.quads and case.ratio("step") < 0
        return is_timed and self._judge.folder is not None

    def _ask(self, nodeid: str) -> None:
        """Have a case loaded on content that comes nowhere else: answers could be passed."""
        self._asked, self._seed = nodeid, secrets.randbits(62)
        self._left_out = {*self._out}
        for child in self.children:
            child.send(LoadVersions(nodeid, seed=self._seed, out=(*self._left_out,)))

    def _case(
        self, nodeid: str, timed: _Timing, has_company: bool
    ) -> tuple[CaseQuads, list[Looks]]:
        """Measure one case; return it with what is still to be judged."""
        if nodeid != self._asked:
            self._ask(nodeid)
        with self._during("load"):
            self._judge.load(nodeid)
            case = self._load(nodeid)
            if case.same:
                return case, []
            # The candidate's process has the case as well, and no say in it.
            facts = self._judge.await_loaded(nodeid)
            case.operating_point = facts.operating_point or BOOST
            holding = self._holding
            if has_company:
                holding = {**holding, ALONE: self._judge.load_alone(self._seed)}
        device, placement = self._device, self._placement
        with ExitStack() as held:
            with self._during("wait for the device"):
                held.enter_context(placement.host.lock(device))
                placement.keep_strangers_off(device)
            since = time.time()
            with self._during("time"):
                looks, findings = timed(case, holding, facts)
            case.timed = (since, time.time())
        self.held_seconds += case.timed[1] - case.timed[0]
        if findings:
            raise Caught(findings)
        return case, looks

    def _load(self, nodeid: str) -> CaseQuads:
        """Wait until the case is loaded; it is the same where the change does not concern it."""
        loaded = CaseQuads(nodeid, "", device=self._device.uuid)
        reached, memory, first_call_ms = False, dict[str, int](), dict[str, float]()
        for child in self.children:
            reply = _wait(child, Loaded)
            if reply.same:
                _wait(child, CaseFinished)
                return self._same(nodeid, reply.same)
            if code := reply.code:
                loaded.kernels = differences_later(code.before, code.after, code.arch)
            reached |= reply.reached
            memory |= reply.memory
            first_call_ms |= reply.first_call_ms
        if not reached:
            for child in self.children:
                child.send(Leave())
            for child in self.children:
                _wait(child, CaseFinished)
            return self._same(nodeid, "source")
        loaded.memory, loaded.first_call_ms = memory, first_call_ms
        return loaded

    def _same(self, nodeid: str, how: Same) -> CaseQuads:
        """Return a case that is the same; Refused where it is not without the candidate."""
        # Machine code is recorded on a GPU only.
        is_code = how == "machine" and self._device.kind != "cpu"
        if not (is_code or self._judge.confirms_same(nodeid)):
            raise Refused(f"{nodeid}: the change reaches the case without the candidate")
        return CaseQuads(nodeid, "", same=how)

    def _timed(
        self,
        case: CaseQuads,
        holding: Mapping[str, Child],
        facts: Loaded,
        *,
        order: random.Random,
        cases: int,
        turns: int,
        to_witness: float | None,
    ) -> tuple[list[Looks], list[Finding]]:
        """Time the blocks of a loaded case, the device being this replica's alone.

        `holding` has the process of each arm; `facts` are the judge's of the case; `cases` are
        measured like it. Returns what was looked at in each process, and what gave the candidate
        away.
        """
        processes = [*dict.fromkeys(holding.values())]
        for child in processes:
            child.send(Prepare(facts.sets))
        ready = {child: _wait(child, Ready) for child in processes}
        case.not_captured = {
            direction: why
            for reply in ready.values()
            for direction, why in reply.not_captured.items()
        }
        common = agreed(reply.engine for reply in ready.values())
        for child in (child for child in processes if ready[child].engine != common):
            child.send(Prepare(facts.sets, common))
            ready[child] = _wait(child, Ready)
        # On the CPU no process that holds the candidate says what times it.
        is_gpu = self._device.kind != "cpu"
        engine = common if is_gpu else "wall+wall"
        ways = 1 + facts.has_backward
        arms, calls, places = dict[str, Child](), dict[str, list[int]](), dict[str, list[int]]()
        for child, reply in ready.items():
            held = {name for name, holder in holding.items() if holder is child} - self._left_out
            if len(facts.sets) > 1:
                held |= {UNEVEN[name] for name in held if name in UNEVEN}
            # A part that was left out would be in no time.
            parts = {(arm, ways) for arm in held}
            for numbers in (reply.calls, reply.places):
                if {(arm, len(of_arm)) for arm, of_arm in numbers.items()} != parts:
                    raise Refused(f"{case.nodeid}: a process says that it holds {_OTHER_ARMS}")
            arms |= dict.fromkeys(reply.calls, child)
            calls |= reply.calls
            places |= reply.places
        if not is_gpu:
            calls = {arm: [facts.sets[arm in UNEVEN.values()]] * ways for arm in arms}
        folder = None if is_gpu else self._judge.folder
        host, device = self._placement.host, self._device
        read_at, glance = places if folder else None, partial(host.glance, device)
        blocks = Blocks(arms, order, device.kind, cases, calls, read_at, glance)
        case.engine = "+".join(dict.fromkeys(engine.split("+")))
        empty = Looks(case.nodeid, self._seed, [], order.getrandbits(62), [], facts.sets)
        try:
            self._run(case, blocks, engine, turns, to_witness, facts)
            return self._hand_over(processes, blocks, empty, folder)
        except ChildDied:
            if folder is not None:
                self._have_memory_judged(blocks, empty, folder)
            raise

    def _run(
        self,
        case: CaseQuads,
        blocks: Blocks,
        engine: str,
        turns: int,
        to_witness: float | None,
        facts: Loaded,
    ) -> None:
        """Run the blocks of a case, whose directions an engine each times."""
        host, device = self._placement.host, self._device
        blocks.warm_up()
        blocks.top_mhz = max(blocks.top_mhz, self._clocks.tops.get(case.nodeid, 0.0))
        if not turns:
            steadily = Steadily(partial(host.read, device))
            for _ in steadily:
                case.quads = blocks.quads()
            case.conditions = steadily.conditions
            case.top_mhz, case.is_locked = blocks.top_mhz, blocks.is_locked
            case.looks = [[b for b in lap if b[0] in PAIRS[CANDIDATE]] for lap in blocks.looks]
            self._clocks.tops[case.nodeid] = blocks.top_mhz
        has_candidate = CANDIDATE in blocks.arms
        is_gpu = device.kind != "cpu"
        if has_candidate and to_witness is not None and not is_gpu:
            case.singles = blocks.singles(is_whole=facts.is_brought_whole)
            case.brought = blocks.singles(is_whole=facts.is_brought_whole, calls=0)
        decides = is_gpu and case.operating_point == SUSTAINED and has_candidate
        if (turns or decides) and case.nodeid not in self._clocks.steady:
            if quads := blocks.sustained(turns or AT_LENGTH, has_control=decides):
                case.sustained = quads
            else:
                self._clocks.steady.add(case.nodeid)
        case.is_steady = case.nodeid in self._clocks.steady
        is_replayed = {*engine.split("+")} == {"graph"} and has_candidate
        if is_replayed and to_witness is not None:
            case.outside = blocks.seen_outside(case.quads[CANDIDATE], to_witness)

    def _hand_over(
        self, processes: Sequence[Child], blocks: Blocks, empty: Looks, folder: Path | None
    ) -> tuple[list[Looks], list[Finding]]:
        """Return of each process its looked-at blocks, what it gave, and its memory in a folder.

        Findings that give the candidate away come with them.
        """
        for block in blocks.looked_at:
            block.see_later(blocks.arms[block.arm])
        for child in processes:
            child.send(HandOver(empty.secret, blocks.keeps(child)))
        looks, findings = list[Looks](), list[Finding]()
        for child in processes:
            handed_over = child.expect(HandedOver)
            findings += handed_over.findings
            if inspected := [b for b in blocks.looked_at if blocks.arms[b.arm] is child]:
                memory = [part for b in inspected if folder for part in b.documents(folder)]
                seeds = [(block.arm, block.seed) for block in inspected]
                given = [self._taken(child, look) for look in handed_over.looks]
                looks.append(replace(empty, blocks=seeds, looks=given, seen=memory))
        return looks, findings

    def _taken(self, child: Child, look: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a look whose file is out of its process's reach, and stays when that ends."""
        folder = self._judge.folder
        if folder is None or child.scratch is None:
            return look
        # The process says the file's name: where none is in its scratch, nothing can be judged.
        with suppress(OSError, ValueError):
            descriptor, name = tempfile.mkstemp(dir=folder)
            os.close(descriptor)
            os.replace(child.scratch / Path(str(look.get("file"))).name, name)
            return {**look, "file": name}
        return look

    def _have_memory_judged(self, blocks: Blocks, empty: Looks, folder: Path) -> None:
        """Have what memory held of timed calls judged where their process does not hand them over.

        It has learnt by then which calls are looked at: it could end where one is wrong, and be
        measured again for that.
        """
        looked_at = blocks.looked_at
        calls = [
            {"arm": block.arm, "seed": block.seed, "way": way, "number": number}
            for block in looked_at
            for way, number in zip(WAYS, block.calls, strict=False)
        ]
        looks = replace(
            empty,
            blocks=[(block.arm, block.seed) for block in looked_at],
            looks=calls,
            seen=[part for block in looked_at for part in block.documents(folder)],
        )
        # What nobody can judge decides nothing: the replica is measured again.
        with suppress(Refused):
            self.tried += self._judge.tried_in_memory(looks)


def _wait(child: Child, kind: type[_Kind]) -> _Kind:
    """Read replies up to one of this kind; a refusal or a failed case ends the replica."""
    while True:
        reply = child.receive()
        if isinstance(reply, kind):
            return reply
        if why := why_ended(reply):
            raise (Unloadable if isinstance(reply, CannotLoad) else Refused)(why)
