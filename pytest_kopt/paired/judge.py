"""The judge as its client has it: a process of the incumbent's, which judges what was looked at.

A finding counts only if a second process of the current best's gives right results for the same
inputs: otherwise the case differs from process to process. It accuses the candidate only if a fresh
process of the candidate's gives right results as well: otherwise the kernel is wrong for these
inputs wherever it runs.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, NUMBER, PLACES, RESULTS, WAYS
from pytest_kopt.cases.protocol import (
    JudgeLooks,
    Leave,
    LoadAlone,
    LoadReference,
    Looks,
    Recompute,
    SayReach,
)
from pytest_kopt.cases.replies import (
    CaseFinished,
    Findings,
    HandedOver,
    Loaded,
    why_ended,
)
from pytest_kopt.devices.processes import Inspected
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Outcome, Tried
from pytest_kopt.processes.child import Child, ChildDied, Children

_Reply = TypeVar("_Reply", HandedOver, Findings, Loaded, CaseFinished)
#: Of a larger result nothing is read, of a larger input a piece that begins at a multiple.
_MOST_BYTES, _PIECE, _STEP = 1 << 28, 1 << 18, 16
#: Of each byte another one.
_INVERTED = bytes(range(255, -1, -1))
#: A call has no more inputs than this.
_MOST_INPUTS = 1 << 16


#: What it finds in a result that the reference's gate lets pass.
_BELOW_THE_BEST = ("precision-downgrade", "output-dtype")


class Refused(Exception):
    """A process could not do what it was asked for."""


class Caught(Exception):
    """The candidate gave itself away while it was timed; `findings` say how.

    `accuses` says that a fresh process of it is right for the same inputs: then a wrong value is no
    mistake.
    """

    def __init__(self, findings: Sequence[Finding], *, accuses: bool = False) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = tuple(findings)
        self.accuses = accuses


class Judge(Children):
    """A process of the incumbent's tree, which loads one case after the other and judges it."""

    def __init__(
        self, start: Callable[[], Child], start_candidate: Callable[[], Child] | None = None
    ) -> None:
        """Start it; `start_candidate` starts a process of the candidate's alone (None: a race)."""
        self._start, self._start_candidate = start, start_candidate
        self._case = ""
        self._loaded: Loaded | None = None
        #: Whether its process may still wait for blocks, and answer nothing else of the case.
        self._is_arm = False
        super().__init__([start()])

    @property
    def has_died(self) -> bool:
        return any(child.has_died for child in self.children)

    @property
    def folder(self) -> Path | None:
        """The folder for what it is to read; None where processes' memory cannot be read here."""
        process = self.children[0].inspected
        return self.children[0].scratch if process and process.is_readable() else None

    def load(self, nodeid: str) -> None:
        if self._case == nodeid and not self._is_arm:
            return
        self._leave()
        self.children[0].send(LoadReference(nodeid))
        self._case, self._loaded = nodeid, None

    def _leave(self) -> None:
        if self._case:
            self.children[0].send(Leave())
            self._wait(CaseFinished)
        self._case, self._is_arm = "", False

    def confirms_same(self, nodeid: str) -> bool:
        """Say whether the change leaves a case as it is, in the process without the candidate.

        The word of the candidate's process counts for nothing.
        """
        self.await_loaded(nodeid)
        self.children[0].send(SayReach())
        return not self._wait(Loaded).reached

    def await_loaded(self, nodeid: str) -> Loaded:
        """Wait for a case, and return what is known of it; Refused where it cannot be loaded."""
        self.load(nodeid)
        if self._loaded is None:
            self._loaded = self._wait(Loaded)
        return self._loaded

    def load_alone(self, seed: int) -> Child:
        """Load the current best of a case that was waited for as an arm; return its process.

        Content is of a seed. Refused where that version cannot be loaded alone.
        """
        (child,) = self.children
        child.send(LoadAlone(seed))
        self._loaded, self._is_arm = None, True
        self._wait(Loaded)
        return child

    def tried_in(self, looks: Looks) -> list[Tried]:
        """Judge the calls of a case that was waited for; return what the candidate is wrong for.

        Caught where a wrong result is the doing of the timed process, or is less exact than the
        current best's. Wrong in any process is what other inputs would show, unless the case
        excludes them. Refused where it cannot judge.
        """
        if not (wrong := self.findings_in(looks)):
            return []
        if self.accuses(looks):
            raise Caught(wrong, accuses=True)
        if wrong[0].check in _BELOW_THE_BEST:
            raise Caught(wrong)
        return _wrong_inputs(looks.nodeid, wrong[0])

    def tried_in_memory(self, looks: Looks) -> list[Tried]:
        """Judge what memory held of calls that their process does not hand over any more."""
        looks = self.answered(looks)
        if not (wrong := self.findings_in(looks)):
            return []
        self.confirm(looks)
        return _wrong_inputs(looks.nodeid, wrong[0])

    def findings_in(self, looks: Looks) -> list[Finding]:
        """Return what it finds in a case that was waited for; Refused where it cannot judge."""
        return self._reply(JudgeLooks(looks), Findings).findings

    def answered(self, looks: Looks) -> Looks:
        """Return looks with what their calls give in this process, which loads the case again."""
        self._leave()
        self.await_loaded(looks.nodeid)
        return replace(looks, looks=self._reply(Recompute(looks), HandedOver).looks)

    def accuses(self, looks: Looks) -> bool:
        """Say whether a fresh process of the candidate's is right where the timed calls were not.

        Refused where another process of the current best's is not right either.

        It is rule 13 of docs/honesty.md.
        """
        self.confirm(looks)
        start = self._start_candidate
        return start is None or self._is_right_in(start, looks)

    def confirm(self, looks: Looks) -> None:
        """Have another process of the current best's compute what these calls give.

        Refused where it is not right either.
        """
        if not self._is_right_in(self._start, looks):
            raise Refused(
                f"{looks.nodeid}: what the case computes differs between processes. Fix: draw all "
                "of it in inputs(), or have the test call torch.manual_seed() first"
            )

    def _is_right_in(self, start: Callable[[], Child], looks: Looks) -> bool:
        """Say whether another process gives right results for the inputs of these calls."""
        second = Judge(start)
        try:
            second.await_loaded(looks.nodeid)
            answer = second._reply(Recompute(looks), HandedOver)
        except Refused:
            second.end()
            return False
        try:
            self.await_loaded(looks.nodeid)
            theirs = replace(looks, looks=answer.looks, confirms=True)
            return not self.findings_in(theirs)
        finally:
            second.end()

    def _reply(self, order: JudgeLooks | Recompute, kind: type[_Reply]) -> _Reply:
        self.children[0].send(order)
        self._loaded = None
        reply = self._wait(kind)
        self._is_arm = False
        return reply

    def _wait(self, kind: type[_Reply]) -> _Reply:
        """Return the next reply of a kind; Refused where the case, or the process, ended."""
        why, nodeid = "", self._case
        try:
            while not isinstance(reply := self.children[0].receive(), kind):
                why = why or why_ended(reply)
                if isinstance(reply, CaseFinished):
                    self._case = ""
                    raise Refused(f"{nodeid}: no other process can judge its results: {why}")
        except ChildDied as death:
            how = why or str(death).splitlines()[0]
            raise Refused(f"{nodeid}: the process that judges its results died: {how}") from None
        if why and kind is Loaded:
            # It still has the case, without the arm that it was to load.
            raise Refused(f"{nodeid}: {why}")
        return reply


def _wrong_inputs(nodeid: str, wrong: Finding) -> list[Tried]:
    """Return that the candidate is wrong for what blocks met, unless the case excludes it."""
    outcomes: dict[str, Outcome] = {INCUMBENT: "right", CANDIDATE: "wrong"}
    why = {CANDIDATE: wrong.message}
    return [Tried(nodeid, "renewed", {}, outcomes, why)] if wrong.rejects else []


@dataclass(slots=True)
class SeenBlock:
    """A block one call of which is judged: `calls` are those of its forward and backward.

    Results are read as the block ends, from its process's memory: a kernel that fills one in, or
    exchanges one, when the clock has stopped is too late.

    `content` is the arm whose activations they were brought, and the seed of its block; None for
    its own. `memory` is what their results and inputs were; None where that could not be read, and
    nothing of a process whose memory is not looked at.
    """

    arm: str
    seed: int
    content: tuple[str, int] | None = None
    calls: list[int] = field(default_factory=list)
    memory: list[_CallMemory | None] = field(default_factory=list)

    def see(self, child: Child, places: int | None, call: int) -> None:
        """Read what a call of the block that has just ended gave and left of its inputs.

        Its process says the `places` (None: nobody reads memory). A result elsewhere is not there.
        """
        self.calls.append(call)
        if places is not None and (process := child.inspected):
            self.memory.append(_memory_of(process, places, call))

    def see_later(self, child: Child) -> None:
        """Read its results again: the caller holds them, and no later call may write there."""
        for memory in filter(None, self.memory):
            if process := child.inspected:
                memory.see_later(process)

    def documents(self, folder: Path) -> Iterator[dict[str, Any]]:
        """Yield what a judge gets, with files of a folder that kernel code cannot write to."""
        for way, call, memory in zip(WAYS, self.calls, self.memory, strict=False):
            where = {"arm": self.arm, "seed": self.seed, "way": way, "call": call}
            where["content"] = self.content or (self.arm, self.seed)
            if memory is None:
                yield {**where, "file": "", "sizes": [], "inputs": [], "later": ""}
                continue
            file = _written(folder, (*memory.results, *memory.inputs))
            later = _written(folder, memory.later) if memory.later else ""
            sizes = [*map(len, memory.results)]
            yield {**where, "file": file, "sizes": sizes, "inputs": memory.pieces, "later": later}


def _written(folder: Path, parts: Iterable[bytes]) -> str:
    """Write a file into a folder; return its path."""
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(b"".join(parts))
    return file.name


class _CallMemory(NamedTuple):
    """The memory of a call: its results, and of each input a piece.

    `addresses` are those of results that last, 0 for others. `pieces` say of each input the bytes
    that it has, where the piece begins, and its bytes. `later` are the results as they were in the
    end, if one differs.
    """

    results: list[bytes]
    addresses: list[int]
    inputs: list[bytes]
    pieces: list[tuple[int, int, int]]
    later: list[bytes]

    def see_later(self, process: Inspected) -> None:
        """Read the results again: of a large one a piece, and all where that differs.

        Results that nobody can read any more count as changed: their process holds honest ones.
        """
        results = [*zip(self.addresses, self.results, strict=True)]
        try:
            for address, before in results:
                start, size = _piece_of(len(before))
                if address and process.read(address + start, size) != before[start : start + size]:
                    self.later[:] = [
                        process.read(at, len(was)) if at else was for at, was in results
                    ]
                    return
        except OSError:
            self.later[:] = [was.translate(_INVERTED) if at else was for at, was in results]


def _piece_of(size: int) -> tuple[int, int]:
    """Draw a piece of memory of a size: where it begins, and its bytes."""
    start = secrets.randbelow(max(1, size - _PIECE + 1)) // _STEP * _STEP
    return start, min(_PIECE, size - start)


def _memory_of(process: Inspected, places: int, call: int) -> _CallMemory | None:
    """Return the memory of a call; `places` is where its process says what lies where."""
    memory = _CallMemory([], [], [], [], [])
    try:
        with process.stopped():
            row = _numbers(process, places, call, PLACES)
            for number in range(1, 1 + min(row[0], RESULTS)):
                address, size = row[2 * number - 1 : 2 * number + 1]
                if size == NUMBER:
                    memory.results.append(address.to_bytes(8, sys.byteorder))
                    memory.addresses.append(0)
                    continue
                memory.results.append(
                    process.read(address, min(size, _MOST_BYTES)) if size else b""
                )
                memory.addresses.append(address)
            read = 0
            for address, size in _inputs(process, row):
                start, length = _piece_of(size)
                if (read := read + length) > _MOST_BYTES:
                    return None
                memory.inputs.append(process.read(address + start, length))
                memory.pieces.append((size, start, length))
                # The next block writes its content over a result that lies in an input.
                lasting = (0 if address <= at < address + size else at for at in memory.addresses)
                memory.addresses[:] = lasting
    except OSError:
        return None
    return memory


def brought(process: Inspected, places: int, call: int = 0) -> list[tuple[int, int]]:
    """Return the addresses and bytes of the activations of a block's call.

    None of them where another input lies among them. OSError where they cannot be read.
    """
    row = _numbers(process, places, call, PLACES)
    inputs = _inputs(process, row)
    activations, unlike = inputs[: row[-2]], inputs[row[-2] :]
    is_mixed = any(a < b + n and b < a + size for a, size in activations for b, n in unlike)
    return [] if is_mixed else activations


def _inputs(process: Inspected, row: Sequence[int]) -> list[tuple[int, int]]:
    """Return the addresses and bytes of a call's inputs, to which its row leads."""
    numbers = _numbers(process, row[-3], 0, 2 * min(row[-1], _MOST_INPUTS))
    return [*zip(numbers[::2], numbers[1::2], strict=True)]


def _numbers(process: Inspected, address: int, row: int, count: int) -> array[int]:
    """Return the numbers of a row, each of a `count`, in a process's memory."""
    numbers = array("Q")
    width = count * numbers.itemsize
    numbers.frombytes(process.read(address + row * width, width))
    return numbers
