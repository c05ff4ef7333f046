"""`kopt bisect`: the first slower commit of a history, by `git bisect` with the PR check.

`git bisect` chooses commits in a work tree of its own, and the check compares each with GOOD.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.figures import changed_within
from pytest_kopt.show import words
from pytest_kopt.standalone.child_session import MadeTree, last_words, other_tree, run, verdict_in

CODES = {
    "SLOWER": ExitCode.ROLLED_BACK,
    "UNDECIDED": ExitCode.INCONCLUSIVE,
    "NOT_SLOWER": ExitCode.OK,
}

_refused = partial(BadInput, where="kopt bisect")
_FIGURES = ("change_pct", "low_pct", "high_pct")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a session: its verdict, or why there is none."""

    verdict: Verdict | None
    reason: str

    @property
    def standing(self) -> str:
        """How the commit stands to its base, by the geometric mean; "skipped" where none tells."""
        verdict = self.verdict
        refused = verdict and verdict.decision is Decision.REJECTED_OVERFIT
        if verdict is None or verdict.decision.leaves_open or refused:
            return "skipped"
        total = verdict.aggregate
        if total is None:
            return "same code"
        low, change, high = total.low_pct or 0.0, total.change_pct or 0.0, total.high_pct or 0.0
        if high < 0:
            return "slower"
        # The interval has three standard errors on each side.
        return "may be slower" if -change > (high - low) / 6 else "not slower"

    @property
    def figures(self) -> dict[str, float | None]:
        total = self.verdict and self.verdict.aggregate
        return {name: getattr(total, name) for name in _FIGURES} if total else {}


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions of the PR check in `tree`, another work tree of `root`."""

    root: Path
    tree: Repository
    #: Arguments of pytest.
    arguments: Sequence[str]
    #: Where the sessions write what they print, and their verdicts.
    directory: Path
    #: Shows a line after each session.
    say: Callable[[str], None]

    def compare(self, commit: str, base: str) -> Answer:
        """Compare a commit with its ancestor `base`; CannotFinish where no GPU is idle."""
        self.tree.move_to(commit)
        answer = self._compared(base)
        self.say(f"{commit[:12]} {self.tree.described(commit)[0]}: {answer.reason}")
        return answer

    def _compared(self, base: str) -> Answer:
        made, output = MadeTree(self.root, self.tree.root), self.directory / "session.log"
        if not made.directory.is_dir():
            return Answer(None, f"it has no folder {made.directory.relative_to(made.tree)}")
        verdict_file = output.with_suffix(".json")
        verdict_file.unlink(missing_ok=True)
        check = ("--kopt-base", base, "--kopt-gate", "improve", "--kopt-allow-removed")
        code = run(
            (*check, f"--kopt-verdict={verdict_file}", *self.arguments), made, output, "step"
        )
        if code == ExitCode.NO_IDLE_GPU:
            raise CannotFinish(last_words(output))
        verdict = verdict_in(verdict_file)
        return Answer(verdict, verdict.reason if verdict else last_words(output))


def bisect(
    root: Path, good: str, bad: str, arguments: Sequence[str], say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the answer as `--json` prints it; BadInput where the ends cannot be compared."""
    repository, base, last = _ends(root, good, bad)
    with other_tree(repository, last) as tree, tempfile.TemporaryDirectory() as directory:
        sessions = Sessions(repository.root.resolve(), tree, arguments, Path(directory), say)
        answers = {last: sessions.compare(last, base)}
        standing, first = answers[last].standing, None
        if standing == "skipped":
            fix = "name a BAD that builds and passes its cases, and a GOOD that loads them"
            raise _refused(f"BAD cannot be compared with GOOD: {answers[last].reason}", fix=fix)
        if standing == "slower":
            suspects = tree.bisect("start", "--no-checkout", "--first-parent", last, base)
            while any(commit not in answers for commit in suspects):
                commit = tree.commit_of("BISECT_HEAD") or last
                answers[commit] = sessions.compare(commit, base)
                mark = {"slower": "bad", "skipped": "skip"}.get(answers[commit].standing, "good")
                suspects = tree.bisect(mark, commit)
            first = _first_slower(suspects, sessions)
        decisions = {"slower": "SLOWER", "may be slower": "UNDECIDED"}
        return {
            "schema_version": 1,
            "good": base,
            "bad": last,
            "decision": decisions.get(standing, "NOT_SLOWER"),
            "first_slower": first,
            "commits": [
                {
                    "commit": commit,
                    "subject": tree.described(commit)[0],
                    "standing": answer.standing,
                    "reason": answer.reason,
                    **answer.figures,
                }
                for commit, answer in answers.items()
            ],
        }


def _ends(root: Path, good: str, bad: str) -> tuple[Repository, str, str]:
    """Return the repository, GOOD and BAD; BadInput for ends that do not fit."""
    repository = Repository.around(root)
    if repository is None or repository.head is None:
        raise _refused("this is no git repository with a commit")
    first, last = repository.commit_of(good), repository.commit_of(bad)
    if first is None or last is None:
        fix = "name a branch, tag or commit that is here, or get it: git fetch"
        raise _refused(f"{bad if first else good!r} is unknown here", fix=fix)
    if first == last:
        fix = "name two commits: kopt bisect GOOD BAD"
        raise _refused(f"{good!r} and {bad!r} are the same commit", fix=fix)
    if not repository.is_ancestor(first, last):
        fix = f"name an ancestor: git merge-base {good} {bad} prints one"
        if repository.is_shallow:
            fix = "get the history that this shallow clone lacks: git fetch --unshallow"
        raise _refused(f"{good!r} is no ancestor of {bad!r}", fix=fix)
    edited = [change.path for change in repository.changed_since(last) if change.existed]
    if last == repository.head and edited:
        what = f"the tree is dirty: edits of {', '.join(edited[:3])} belong to no commit"
        raise _refused(what, fix="git commit, or git stash; or name a BAD before HEAD")
    return repository, first, last


def _first_slower(suspects: Sequence[str], sessions: Sessions) -> dict[str, Any]:
    """Compare the first slower commit with the last one before that was not slower.

    `suspects` are the commits after that one up to the first slower, the latest first.
    """
    tree, (commit, *skipped) = sessions.tree, suspects
    previous = tree.commit_of(f"{suspects[-1]}^") or ""
    answer = sessions.compare(commit, previous)
    subject, author, parents = tree.described(commit)
    verdict = answer.verdict
    hurt = [case for case in verdict.shapes if (case.high_pct or 0.0) < 0] if verdict else []
    hurt.sort(key=lambda case: case.change_pct or 0.0)
    return {
        "commit": commit,
        "subject": subject,
        "author": author,
        "is_merge": len(parents) > 1,
        "previous": previous,
        "confirmed": answer.standing == "slower",
        **answer.figures,
        "or_one_of": skipped,
        "kernels": words.kernel_lines(verdict) if verdict else [],
        "cases": [case.model_dump(mode="json") for case in hurt],
    }


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield the answer as text."""
    rows = [
        {
            "commit": row["commit"][:12],
            "against GOOD": row["standing"],
            "change": _change(row) or words.clipped(row["reason"], 50),
            "subject": words.clipped(row["subject"], 50),
        }
        for row in document["commits"]
    ]
    yield words.markdown_table(rows)
    yield ""
    first = document["first_slower"]
    if first is None:
        may_be = document["decision"] == "UNDECIDED"
        yield (
            "not decided: BAD may be slower than GOOD" if may_be else "BAD is not slower than GOOD"
        )
        return
    kind = "merge" if first["is_merge"] else "commit"
    yield f"first slower {kind}: {first['commit'][:12]} {first['subject']} ({first['author']})"
    yield f"  against {first['previous'][:12]}: {_change(first)}"
    if not first["confirmed"]:
        yield "  that step alone is not shown: several small ones may have added up"
    if first["or_one_of"]:
        names = ", ".join(commit[:12] for commit in first["or_one_of"])
        yield f"  or one of those before it that could not be compared: {names}"
    yield from (f"  kernel {line}" for line in first["kernels"])
    yield from (f"  {case['label']}: {_change(case)}" for case in first["cases"])


def _change(row: dict[str, Any]) -> str:
    return changed_within(*(row[name] for name in _FIGURES)) if "change_pct" in row else ""
