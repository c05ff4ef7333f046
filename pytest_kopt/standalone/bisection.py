"""`kopt bisect`: the first slower commit of a history, by `git bisect run` with the PR check.

`git bisect` chooses commits in a work tree of its own, and the check compares each with GOOD.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.figures import changed_within
from pytest_kopt.process_tree import end_with_parent
from pytest_kopt.show import words
from pytest_kopt.standalone.child_session import MadeTree, last_words, other_tree, run, verdict_in

_refused = partial(BadInput, where="kopt bisect")
_FIGURES = ("change_pct", "low_pct", "high_pct")
_CHECK = ("--kopt-gate", "improve", "--kopt-allow-removed")
_STEP = "import sys; from pytest_kopt.standalone.bisection import step; sys.exit(step())"
#: What `git bisect run` takes exit codes for; it ends at the last.
_ANSWERS = {"not slower": 0, "slower": 1, "skipped": 125, "no idle GPU": 128}


def bisect(root: Path, good: str, bad: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the answer as `--json` prints it; BadInput where the ends cannot be compared."""
    repository, base, last = _ends(root, good, bad)
    top = repository.root.resolve()
    with other_tree(repository, last) as tree, tempfile.TemporaryDirectory() as directory:
        row = _compare(top, tree, last, base, Path(directory), arguments)
        if row["standing"] == "skipped":
            fix = "name a BAD that builds and passes its cases, and a GOOD that loads them"
            raise _refused(f"BAD cannot be compared with GOOD: {row['reason']}", fix=fix)
        suspects = []
        if row["standing"] == "slower":
            tree.begin_bisection(base, last)
            step = (sys.executable, "-c", _STEP, str(top), base, directory, *arguments)
            # The steps say on the other stream how they end.
            git = ("git", "bisect", "run", *step)
            subprocess.run(git, cwd=tree.root, stdout=subprocess.DEVNULL, check=False)
            suspects = tree.suspects()
        rows = {
            file.stem: json.loads(file.read_text(encoding="utf-8"))
            for file in sorted(Path(directory).glob("*.row"), key=lambda file: file.stat().st_mtime)
        }
    if lost := [row["reason"] for row in rows.values() if row["standing"] == "no idle GPU"]:
        raise CannotFinish(lost[0])
    first = {**rows[suspects[0]], "or_one_of": suspects[1:]} if suspects else None
    decision = "SLOWER" if first else "NOT_SLOWER"
    ends = {"schema_version": 1, "good": base, "bad": last, "decision": decision}
    return {**ends, "first_slower": first, "commits": [*rows.values()]}


def step() -> int:
    """Compare the commit that `git bisect run` chose, in its work tree."""
    end_with_parent()
    root, base, directory, *arguments = sys.argv[1:]
    tree = Repository.around(Path.cwd())
    assert tree is not None, "git runs it in the work tree of the bisection"
    commit = tree.commit_of("BISECT_HEAD")
    assert commit is not None, "git sets it while a bisection runs"
    row = _compare(Path(root), tree, commit, base, Path(directory), arguments)
    return _ANSWERS[row["standing"]]


def _compare(
    root: Path,
    tree: Repository,
    commit: str,
    base: str,
    directory: Path,
    arguments: Sequence[str],
) -> dict[str, Any]:
    """Compare a commit with its ancestor `base`; return its row, which a file in `directory` keeps.

    Only a verdict on both versions says how it stands; a commit of the same code is not slower.
    """
    tree.move_to(commit)
    made, log, row_file = (
        MadeTree(root, tree.root),
        directory / "session.log",
        directory / f"{commit}.row",
    )
    verdict, code = None, 0
    reason = "it has no such folder as the current one"
    if made.directory.is_dir():
        file = directory / f"{commit}.json"
        check = ("--kopt-base", base, *_CHECK, f"--kopt-verdict={file}", *arguments)
        code, verdict = run(check, made, log), verdict_in(file)
        reason = verdict.reason if verdict else last_words(log)
    standing = "no idle GPU" if code == ExitCode.NO_IDLE_GPU else "skipped"
    if verdict and not verdict.decision.leaves_open:
        is_slower = verdict.decision is Decision.ROLLED_BACK
        is_cheat = verdict.decision is Decision.REJECTED_OVERFIT
        standing = "skipped" if is_cheat else "slower" if is_slower else "not slower"
    total, cases = verdict and verdict.aggregate, verdict.shapes if verdict else []
    subject, author, parents = tree.described(commit)
    row: dict[str, Any] = {
        "commit": commit,
        "subject": subject,
        "author": author,
        "is_merge": len(parents) > 1,
        "standing": standing,
        "reason": reason,
        **({name: getattr(total, name) for name in _FIGURES} if total else {}),
        "slower_cases": [
            case.model_dump(mode="json") for case in cases if (case.high_pct or 0.0) < 0
        ],
    }
    row_file.write_text(json.dumps(row), encoding="utf-8")
    sys.stderr.write(f"{commit[:12]} {subject}: {reason}\n")
    return row


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
        yield "BAD is not slower than GOOD"
        return
    kind = "merge" if first["is_merge"] else "commit"
    yield f"first slower {kind}: {first['commit'][:12]} {first['subject']} ({first['author']})"
    if first["or_one_of"]:
        names = ", ".join(commit[:12] for commit in first["or_one_of"])
        yield f"  or one of those before it that could not be compared: {names}"
    yield from (f"  {case['label']}: {_change(case)}" for case in first["slower_cases"])


def _change(row: dict[str, Any]) -> str:
    return changed_within(*(row[name] for name in _FIGURES)) if "change_pct" in row else ""
