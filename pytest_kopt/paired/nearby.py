"""Versions near the declared shapes: tried in processes of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.protocol import TryNearby
from pytest_kopt.cases.replies import (
    CannotLoad,
    CaseFinished,
    CaseStarted,
    CollectError,
    Findings,
    Loaded,
    OfBlocks,
    OfSession,
    Reached,
    Report,
    TriedShape,
    why_ended,
)
from pytest_kopt.honesty.accuracy import Accuracy, other_results
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import (
    Tried,
    count_untried,
    findings_by_reference,
    tried_axes,
)
from pytest_kopt.processes.child import MAX_DEATHS, Child, ChildDied, Children

#: So many cases are asked for before an answer is read: a pipe holds a few hundred orders, and
#: who fills it waits for a process that may wait for its own answers to be read.
AHEAD = 16


class Nearby(Children):
    """Processes that try cases at shapes near the declared ones, each one case after the other.

    Replies are read at once: a process that waits to be read holds its lock on the device, for
    which other sessions wait.
    """

    def __init__(
        self, asked: Mapping[Child, Sequence[str]], how: str, ids: Sequence[str], seed: int
    ) -> None:
        """Have processes, which hold the versions by `how`, try cases under a seed.

        Each is `asked` for some; `ids` are all, in their order.
        """
        super().__init__(asked)
        self._asked = asked
        self.how = how
        self._ids = ids
        self.seed = seed
        #: How one of them ended by itself, and in which case; "" as long as none did.
        self.died = self.died_in = ""
        #: Whether one of them got as far as a case: what ends before is no kernel's doing.
        self.has_begun = False
        #: What the candidate changed that the incumbent stands on, or returns otherwise than it.
        self.caught: list[Finding] = []
        #: The cases that a process has gone through, once for each process, or could not load.
        self._through: list[str] = []
        self.unloaded: set[str] = set()
        #: What the versions gave in each case.
        self._reached: dict[str, dict[str, dict[str, Accuracy]]] = {nodeid: {} for nodeid in ids}
        for child, own in asked.items():
            for nodeid in own[:AHEAD]:
                self._ask(child, nodeid)
        self._readers = ThreadPoolExecutor(len(asked))
        self._answers = [self._readers.submit(self._read, child) for child in asked]

    @property
    def through(self) -> set[str]:
        """The cases that all processes went through, and the one that ended a process."""
        asked = Counter(nodeid for ids in self._asked.values() for nodeid in ids)
        through = {i for i, n in Counter(self._through).items() if n == asked[i]}
        return ({*self._ids} & {*through, self.died_in}) - self.unloaded

    @property
    def death(self) -> Finding | None:
        """The finding about the kernel, None unless one of them ended by itself."""
        if not self.died:
            return None
        return Finding(
            "held-out-death",
            f"the kernel ended its process for inputs near the declared ones ({self.died})",
            where=self.died_in,
            advice="support such sizes and values, or raise for them",
        )

    def wait(self) -> list[Tried]:
        """Wait for the end; return what they found, a case that cannot be loaded left out."""
        tried = [shape for answers in self._answers for shape in answers.result()]
        places = {nodeid: place for place, nodeid in enumerate(self._ids)}
        tried.sort(key=lambda shape: places[shape.nodeid])
        for nodeid, reached in self._reached.items():
            if {CANDIDATE, INCUMBENT} <= reached.keys():
                sides = reached[CANDIDATE], reached[INCUMBENT]
                damning = (finding for finding in other_results(*sides) if finding.repairs)
                self.caught += [replace(finding, where=nodeid) for finding in damning]
        return tried

    def end(self) -> None:
        self.kill()
        self._readers.shutdown()
        self.stop()

    def _ask(self, child: Child, nodeid: str) -> None:
        child.send(TryNearby(nodeid, secret=self.seed))

    def _read(self, child: Child) -> list[Tried]:
        tried, ids = list[Tried](), self._asked[child]
        for place, nodeid in enumerate(ids):
            try:
                self._read_case(child, nodeid, tried)
                self._through.append(nodeid)
                for following in ids[place + AHEAD : place + AHEAD + 1]:
                    self._ask(child, following)
            except ChildDied as death:
                self.died, self.died_in = f"{nodeid}: {death}".splitlines()[0], nodeid
                for left in ids[place:]:
                    tried += _not_reached(left, tried, "the process ended before")
                break
        return tried

    def _read_case(self, child: Child, nodeid: str, tried: list[Tried]) -> None:
        """Read the replies to one order up to the end of its case, and add to what was tried."""
        why, is_whole = "", False
        while True:
            match reply := child.receive():
                case CaseFinished():
                    break
                case TriedShape(shape):
                    tried.append(shape)
                case Reached(version, accuracy):
                    self._reached[nodeid][version] = accuracy
                case Findings(findings):
                    self.caught += findings
                    is_whole = True
                case Loaded():
                    is_whole = True
                case CannotLoad():
                    self.unloaded.add(nodeid)
                    is_whole = True
                case Report() | CollectError():
                    why = why or why_ended(reply)
                case CaseStarted():
                    self.has_begun = True
                case OfSession() | OfBlocks():
                    pass
        if not is_whole:
            broken = f"trying them broke off ({why or 'for no known reason'})"
            tried += _not_reached(nodeid, tried, broken)


def _not_reached(nodeid: str, tried: Sequence[Tried], why: str) -> list[Tried]:
    """Name the axes of a case along which nothing was tried."""
    reached = {trial.kind for trial in tried if trial.nodeid == nodeid}
    return [Tried(nodeid, kind, {}, untried=why) for kind in tried_axes(()) if kind not in reached]


def notes_nearby(
    start: Callable[[list[str]], Child], ids: Sequence[str], seed: int
) -> Iterator[Finding]:
    """Yield what one version shows near the declared inputs: notes, as no current best says more.

    The process that `start` returns tries its cases one after the other. If one ends it, a second
    goes on with the tests behind that of the case.
    """
    left, tried, deaths = [*ids], list[Tried](), list[Finding]()
    while left and len(deaths) < MAX_DEATHS:
        nearby = Nearby({start(left): left}, "", left, seed)
        try:
            tried = [shape for shape in tried if shape.nodeid not in left] + nearby.wait()
        finally:
            nearby.end()
        # What ends before it begins a case may be the machine's doing: nothing else was tried.
        if not (nearby.has_begun and (death := nearby.death)):
            break
        deaths.append(death)
        (test, *_), place = nearby.died_in.split("["), left.index(nearby.died_in)
        left = [nodeid for nodeid in left[place + 1 :] if nodeid.split("[")[0] != test]
    for finding in (
        *findings_by_reference(tried, CANDIDATE),
        *count_untried(tried),
        *deaths,
    ):
        yield replace(finding, rejects=False)
