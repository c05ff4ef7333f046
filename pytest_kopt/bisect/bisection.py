"""A bisection as it runs: the walk asks, sessions answer, and a journal keeps what they said."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_kopt.bisect.history import Commit, refused
from pytest_kopt.bisect.session import Answer, compare
from pytest_kopt.bisect.walk import Change, Culprit, History, Pair
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.decide.verdict import Verdict

#: How many sessions in a row may come to nothing before a commit is skipped.
_TRIES = 2


class Journal:
    """What the sessions of a bisection said, one line each; gone once it has an answer."""

    def __init__(self, repository: Repository, key: Sequence[str]) -> None:
        name = hashlib.sha256("\0".join(key).encode()).hexdigest()[:16]
        self.directory = repository.database / "kopt-bisect" / name
        self._file = self.directory / "journal.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep it for this process; BadInput if another one bisects the same."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.directory / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise refused("another process bisects these commits", legal="one at a time") from None
        try:
            yield
        finally:
            lock.release()

    def read(self) -> list[tuple[str, str, Answer]]:
        """Return base, commit and answer of each session; a line cut off by a kill is none."""
        sessions = []
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                session = json.loads(line)
                verdict = session["verdict"] and Verdict.model_validate(session["verdict"])
                answer = Answer(verdict, session["reason"])
                sessions.append((session["base"], session["commit"], answer))
        return sessions

    def add(self, base: str, commit: str, answer: Answer) -> None:
        """Append a session and see it on the disk."""
        verdict = answer.verdict and answer.verdict.model_dump(mode="json")
        session = {"base": base, "commit": commit, "verdict": verdict, "reason": answer.reason}
        with self._file.open("a") as stream:
            # A line of its own, also behind one that was cut off.
            stream.write("\n" + json.dumps(session))
            stream.flush()
            os.fsync(stream.fileno())

    def end(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass
class Bisection:
    """Walks `commits`, GOOD first, by sessions of the PR check in a work tree of their own."""

    commits: Sequence[Commit]
    journal: Journal
    #: The user's work tree, and the one that each commit is checked out in.
    root: Path
    tree: Repository
    #: Arguments of pytest.
    words: Sequence[str]
    #: Shows a line after each session.
    say: Callable[[str], None]
    #: By the hash of a commit that cannot be compared, why not.
    skipped: dict[str, str] = field(default_factory=dict)
    #: By the two versions compared, the last session about them.
    answers: dict[Pair, Answer] = field(default_factory=dict)
    #: How many sessions this process has run.
    sessions: int = 0

    def __post_init__(self) -> None:
        # Runs of commits with the same code.
        self.versions = [list(run) for _, run in groupby(self.commits, lambda c: c.same_code_as)]
        self.history = History(len(self.versions) - 1)
        self._recorded: dict[tuple[str, str], list[Answer]] = {}
        for base, commit, answer in self.journal.read():
            self._recorded.setdefault((base, commit), []).append(answer)

    def run(self) -> Culprit | None:
        """Walk to the first slower version, if any; BadInput where BAD cannot be compared."""
        if len(self.versions) == 1:
            return None
        walk = self.history.walk()
        try:
            pair = next(walk)
            while True:
                change = self._change(pair)
                if change is None and pair == Pair(0, self.history.last):
                    bad = self.commits[-1]
                    raise refused(
                        f"BAD ({bad.short}) cannot be compared with GOOD: {self.skipped[bad.hash]}",
                        legal="a BAD that builds, whose cases pass, and a GOOD that loads them",
                    )
                pair = walk.send(change)
        except StopIteration as end:
            culprit: Culprit | None = end.value
            return culprit

    def _change(self, pair: Pair) -> Change | None:
        """Compare two versions by the commits that hold them, the latest that passes first."""
        base = self.versions[pair.base][0 if pair.base == 0 else -1]
        for commit in reversed(self.versions[pair.version]):
            if commit.hash in self.skipped:
                continue
            for _ in range(_TRIES):
                answer = self._answer(base, commit)
                if answer.change is not None:
                    self.answers[pair] = answer
                    return answer.change
                if not answer.may_be_chance:
                    break
            if pair.base:
                return None
            self.skipped[commit.hash] = answer.reason
            if commit is self.commits[-1]:
                return None
        return None

    def _answer(self, base: Commit, commit: Commit) -> Answer:
        key = (base.hash, commit.hash)
        if self._recorded.get(key):
            return self._recorded[key].pop(0)
        output = self.journal.directory / f"session-{self.sessions + 1}.log"
        self.tree.move_to(commit.hash)
        answer = compare(self.tree.root, self.root, base.hash, self.words, output)
        self.sessions += 1
        self.journal.add(*key, answer)
        self.say(f"{commit.short}: {answer.reason}")
        return answer
