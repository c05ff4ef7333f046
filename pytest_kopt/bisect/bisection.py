"""A bisection as it runs: commits, the walk that asks, sessions that answer, and their journal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import NormalDist

from filelock import FileLock, Timeout

from pytest_kopt.bisect.walk import Change, Culprit, History, Pair
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.decide.inference import log_ratio
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.sameness.sources import differing
from pytest_kopt.standalone.child_session import MadeTree, last_words, run, verdict_in

refused = partial(BadInput, where="kopt bisect")
#: How many sessions in a row may come to nothing before a commit is skipped.
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the history.

    `same_code_as` is the hash of the first commit of a run with the same code: itself, or one
    that only comments, docstrings and layout tell apart from those after it.
    """

    hash: str
    subject: str
    author: str
    is_merge: bool
    same_code_as: str

    @property
    def short(self) -> str:
        return f"{self.hash[:12]} {self.subject}"


def history(root: Path, good: str, bad: str) -> list[Commit]:
    """Return GOOD and the commits up to BAD by first parents; BadInput for ends that do not fit."""
    repository = Repository.around(root)
    if repository is None or repository.head is None:
        raise refused("this is no git repository with a commit")
    ends = []
    for ref in (good, bad):
        commit = repository.commit_of(ref)
        if commit is None:
            fix = "name a branch, tag or commit that is here, or get it: git fetch"
            raise refused(f"{ref!r} is unknown here", fix=fix)
        ends.append(commit)
    first, last = ends
    if first == last:
        raise refused(
            f"{good!r} and {bad!r} are the same commit",
            fix="name two commits: kopt bisect GOOD BAD",
        )
    path = repository.first_parents(first, last)
    if path is None:
        fix = f"name an ancestor: git merge-base {good} {bad} prints one"
        if repository.is_shallow:
            fix = "get the history that this shallow clone lacks: git fetch --unshallow"
        raise refused(f"{good!r} is no ancestor of {bad!r}", fix=fix)
    edited = [change.path for change in repository.changed_since(last) if change.existed]
    if last == repository.head and edited:
        what = f"the tree is dirty: edits of {', '.join(edited[:3])} belong to no commit"
        raise refused(what, fix="git commit, or git stash; or name a BAD before HEAD")
    commits: list[Commit] = []
    blobs: dict[str, str] = {}
    for commit in (first, *path):
        before, blobs = blobs, repository.blobs(commit)
        same_code_as = commit
        if commits and not _differs(repository, commits[-1].hash, before, commit, blobs):
            same_code_as = commits[-1].same_code_as
        subject, author, parents = repository.described(commit)
        commits.append(Commit(commit, subject, author, len(parents) > 1, same_code_as))
    return commits


def _differs(
    repository: Repository, old: str, before: dict[str, str], new: str, after: dict[str, str]
) -> bool:
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    sources = (
        {path: repository.content(commit, path) if path in blobs else None for path in changed}
        for commit, blobs in ((old, before), (new, after))
    )
    return bool(differing(*sources))


class Journal:
    """The answers of a bisection's sessions, one line each; gone once it has an answer."""

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
            raise refused("another process bisects these commits", fix="wait for it") from None
        try:
            yield
        finally:
            lock.release()

    def read(self) -> list[tuple[str, str, Answer]]:
        """Return base, commit and answer of each session; a line cut off by a kill is none."""
        sessions = []
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
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
        with self._file.open("a", encoding="utf-8") as stream:
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
        self.history = History(len(self.versions) - 1, self._compared)
        self._recorded: dict[tuple[str, str], list[Answer]] = {}
        for base, commit, answer in self.journal.read():
            self._recorded.setdefault((base, commit), []).append(answer)

    def run(self) -> Culprit | None:
        """Return the first slower version, if any; BadInput where BAD cannot be compared."""
        return self.history.first_slower() if len(self.versions) > 1 else None

    def _compared(self, pair: Pair) -> Change | None:
        change = self._change(pair)
        if change is None and pair == Pair(0, self.history.last):
            bad = self.commits[-1]
            raise refused(
                f"BAD ({bad.short}) cannot be compared with GOOD: {self.skipped[bad.hash]}",
                fix="name a BAD that builds and passes its cases, and a GOOD that loads them",
            )
        return change

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


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a session: the verdict, or why there is none."""

    verdict: Verdict | None
    reason: str

    @property
    def change(self) -> Change | None:
        """The change of the geometric mean, None where nothing was compared or can be."""
        verdict = self.verdict
        refused = verdict and verdict.decision is Decision.REJECTED_OVERFIT
        if verdict is None or verdict.decision.leaves_open or refused:
            return None
        total = verdict.aggregate
        if total is None:
            return Change()
        low, high, confidence = total.low_pct, total.high_pct, total.confidence
        assert total.change_pct is not None and low is not None and high is not None
        assert confidence is not None
        # The few processes of a session make its intervals wider than this; that errs on the side
        # of asking again.
        width = 2 * NormalDist().inv_cdf((1 + confidence) / 2)
        return Change(log_ratio(total.change_pct), (log_ratio(high) - log_ratio(low)) / width)

    @property
    def may_be_chance(self) -> bool:
        return self.verdict is not None and self.verdict.decision is Decision.INCOMPLETE


def compare(tree: Path, root: Path, base: str, words: Sequence[str], output: Path) -> Answer:
    """Compare `tree`, another work tree of `root`, with its ancestor `base` by the PR check.

    `words` go to pytest, which prints to `output`. CannotFinish: there is no idle GPU.
    """
    made = MadeTree(root, tree)
    if not made.directory.is_dir():
        return Answer(None, f"it has no folder {made.directory.relative_to(tree)}")
    verdict_file = output.with_suffix(".json")
    verdict_file.unlink(missing_ok=True)
    check = ("--kopt-base", base, "--kopt-gate", "improve", "--kopt-allow-removed")
    words = (*check, f"--kopt-verdict={verdict_file}", *words)
    code = run(words, made, output, "step")
    if code == ExitCode.NO_IDLE_GPU:
        raise CannotFinish(last_words(output))
    verdict = verdict_in(verdict_file)
    return Answer(verdict, verdict.reason if verdict else last_words(output))
