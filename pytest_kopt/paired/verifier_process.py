"""The deciding process's side of a referee: it judges what a replica looked at, in its own process.

A finding of its counts where a second process of the incumbent's, asked for the same, is found
right: else what a case computes differs from process to process, and only the one that holds the
candidate can judge it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.processes.child import Child, ChildDied, Children


@dataclass(frozen=True, slots=True)
class Looks:
    """What was looked at in a replica of a case, whose seed is `seed`: arm and seed of `blocks`.

    `looks` are what their process handed over; of large results it is elements that were drawn
    under a `secret`. On the CPU blocks went round so many `sets` of inputs, the second number is
    that of uneven groups. `seen` is what the memory of that process held when the blocks were over.
    `confirms` says that they are another referee's.
    """

    nodeid: str
    seed: int
    blocks: Sequence[tuple[str, int]]
    engine: str
    secret: int
    looks: Sequence[Mapping[str, Any]]
    sets: Sequence[int] = ()
    seen: Sequence[Mapping[str, Any]] = ()
    confirms: bool = False


class Referee(Children):
    """A process of the incumbent's tree, which loads one case after the other and judges it."""

    def __init__(self, start: Callable[[], Child], broken: str = "") -> None:
        """Start it, but where it is `broken` from the start."""
        self._start = start
        self._broken = broken
        self._why: dict[str, str] = {}
        self._case, self._is_loaded = "", False
        super().__init__([] if broken else [start()])

    @property
    def has_died(self) -> bool:
        return any(child.has_died for child in self.children)

    @property
    def folder(self) -> Path | None:
        """The folder for what it is to read; None where processes' memory cannot be read here."""
        process = self.children[0].inspected if self.children else None
        return self.children[0].scratch if process and process.is_readable() else None

    def why_not(self, nodeid: str) -> str:
        """Return why a case is judged in its own process, "" where it is not."""
        return self._broken or self._why.get(nodeid, "")

    def load(self, nodeid: str) -> None:
        if self._case == nodeid or self.why_not(nodeid):
            return
        (child,) = self.children
        if self._case:
            child.tell("go")
            self._wait("finished")
        child.tell("run", nodeid=nodeid, next=None, seed=None)
        self._case, self._is_loaded = nodeid, False

    def await_loaded(self, nodeid: str) -> None:
        """Wait until a case is loaded, or cannot be."""
        self.load(nodeid)
        if self._case == nodeid and not self._is_loaded:
            self._is_loaded = self._wait("loaded") is not None

    def judge(self, looks: Looks) -> list[Finding] | None:
        """Return what it finds in a case that was waited for, None where it cannot judge."""
        told = self._asked(looks, "judged")
        if told and told["why_not"]:
            self._why[looks.nodeid] = str(told["why_not"])
        return [Finding(**f) for f in told["findings"]] if told and not told["why_not"] else None

    def stands(self, looks: Looks) -> bool:
        """Say whether a finding stands: another process of the incumbent's is found right."""
        other = Referee(self._start)
        try:
            other.await_loaded(looks.nodeid)
            kept = other._asked(looks, "kept")
            self.await_loaded(looks.nodeid)
            theirs = replace(looks, looks=kept["looks"], seen=(), confirms=True) if kept else None
            found = self.judge(theirs) if theirs else None
        finally:
            other.end()
        if found != []:
            why = (
                "what the case computes differs between processes; draw all of it in inputs(), or "
                "have the test call torch.manual_seed() first"
            )
            self._why.setdefault(looks.nodeid, why)
        return found == []

    def _asked(self, looks: Looks, kind: str) -> Mapping[str, Any] | None:
        if not (self._case == looks.nodeid and self._is_loaded):
            return None
        self.children[0].tell("judge", answers=kind == "kept", **asdict(looks))
        self._is_loaded = False
        return self._wait(kind)

    def _wait(self, kind: str) -> Mapping[str, Any] | None:
        """Return the next message of a kind; None where the case, or the process, ended instead."""
        why = ""
        try:
            while (message := self.children[0].receive())["kind"] not in (kind, "finished"):
                why = why or why_ended(message)
        except ChildDied as death:
            self._broken = why or f"the referee died: {death}".splitlines()[0]
            return None
        if message["kind"] == kind != "finished":
            return message
        if kind != "finished":
            self._why[self._case] = why or why_ended(message)
        self._case = ""
        return None


def why_ended(message: Mapping[str, Any]) -> str:
    """Return why a case cannot go on after a message of its process, "" where it can."""
    kind = message["kind"]
    if kind == "refused":
        return str(message["reason"])
    if kind == "collect_error":
        return f"does not import: {_last_line(message['data'].get('longrepr'))}"
    if kind == "report" and message["data"]["outcome"] == "failed":
        return f"failed: {_last_line(message['data'].get('longrepr'))}"
    return "the case never called kopt()" if kind == "finished" else ""


def _last_line(longrepr: Any) -> str:
    crash = longrepr.get("reprcrash") if isinstance(longrepr, dict) else None
    text = str(crash["message"] if crash else longrepr).strip()
    return text.splitlines()[-1] if text else "no reason given"
