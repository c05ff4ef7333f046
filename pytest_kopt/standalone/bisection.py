"""`kopt bisect`: the first slower commit of a history, by `git bisect run` with the PR check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.process_tree import end_with_parent
from pytest_kopt.standalone.child_session import last_words, run, tree_at, verdict_in
from pytest_kopt.versions.tree import Tree

_refused = partial(BadInput, where="kopt bisect")
_CHECK = ("--kopt-gate", "improve", "--kopt-allow-removed")
_STEP = "from pytest_kopt.standalone.bisection import step; step()"
#: The exit codes of a step: `git bisect run` skips a commit at 125, and ends at 128.
_CODES = {"not slower": 0, "slower": 1, "skipped": 125, "no idle GPU": 128}


def bisect(root: Path, good: str, bad: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the document that `--json` prints; BadInput if the ends cannot be compared."""
    repository, base, last = _ends(root, good, bad)
    with tree_at(repository, last) as tree, tempfile.TemporaryDirectory() as folder:
        file, there = Path(folder, "rows"), Repository.around(tree.place)
        assert there is not None, "git made the tree"
        step = (sys.executable, "-c", _STEP, os.getcwd(), str(tree.root), base, folder, *arguments)
        subprocess.run(step, cwd=tree.place, check=False)
        suspects = []
        if _rows(file)[0]["standing"] == "slower":
            there.begin_bisection(base, last)
            # The steps print their progress to stderr.
            git = ("git", "bisect", "run", *step)
            subprocess.run(git, cwd=tree.place, stdout=subprocess.DEVNULL, check=False)
            suspects = there.suspects()
        rows = {row["commit"]: row for row in _rows(file)}
    if lost := [row["reason"] for row in rows.values() if row["standing"] == "no idle GPU"]:
        raise CannotFinish(lost[0])
    if rows[last]["standing"] == "skipped":
        fix = "name a BAD that builds and passes its cases, and a GOOD that loads them"
        raise _refused(f"BAD cannot be compared with GOOD: {rows[last]['reason']}", fix=fix)
    first = {**rows[suspects[0]], "or_one_of": suspects[1:]} if suspects else None
    ends = {"schema_version": 1, "good": base, "bad": last}
    return {**ends, "first_slower": first, "commits": [*rows.values()]}


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def step() -> NoReturn:
    """Compare the commit of a bisection's work tree with GOOD, keep its row, and exit with a code.

    Only a verdict on both versions says how it stands.
    """
    end_with_parent()
    start, root, base, folder, *arguments = sys.argv[1:]
    repository = Repository.around(Path.cwd())
    assert repository is not None, "bisect starts it in a work tree"
    commit = repository.commit_of("BISECT_HEAD") or repository.commit_of("HEAD")
    assert commit is not None, "the work tree is at BAD until git chooses a commit"
    repository.move_to(commit)
    # The project may be a folder of its repository.
    os.chdir(start)
    tree = Tree.at(Path(root), repository.root)
    log, file = Path(folder, "log"), Path(folder, commit)
    verdict, code, reason = None, 0, "it has no such folder as the current one"
    if tree.folder.is_dir():
        words = ("--kopt-base", base, *_CHECK, f"--kopt-verdict={file}", *arguments)
        code, verdict = run(words, tree, log), verdict_in(file)
        reason = verdict.reason if verdict else last_words(log)
    standing = "no idle GPU" if code == ExitCode.NO_IDLE_GPU else "skipped"
    if verdict and not verdict.decision.leaves_open:
        is_slower = verdict.decision is Decision.ROLLED_BACK
        is_cheat = verdict.decision is Decision.REJECTED_OVERFIT
        standing = "skipped" if is_cheat else "slower" if is_slower else "not slower"
    subject = repository.subject_of(commit)
    row = {
        "commit": commit,
        "subject": subject,
        "standing": standing,
        "reason": reason,
        "verdict": verdict and verdict.model_dump(mode="json"),
    }
    with Path(folder, "rows").open("a", encoding="utf-8") as rows:
        rows.write(json.dumps(row) + "\n")
    sys.stderr.write(f"{commit[:12]} {subject}: {standing}: {reason}\n")
    sys.exit(_CODES[standing])


def _ends(root: Path, good: str, bad: str) -> tuple[Repository, str, str]:
    """Return the repository, GOOD and BAD; BadInput for ends that do not fit."""
    repository = Repository.around(root)
    if repository is None:
        raise _refused("this is no git repository")
    first, last = repository.commit_of(good), repository.commit_of(bad)
    if first is None or last is None:
        fix = "name a branch, tag or commit that is here, or get it: git fetch"
        raise _refused(f"{bad if first else good!r} is unknown here", fix=fix)
    if not repository.is_ancestor(first, last):
        fix = f"git merge-base {good} {bad} prints an ancestor; in a shallow clone: "
        raise _refused(f"{good!r} is no ancestor of {bad!r}", fix=f"{fix}git fetch --unshallow")
    return repository, first, last


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield the result as text; each commit had its line on stderr."""
    first = document["first_slower"]
    if first is None:
        yield "BAD is not slower than GOOD"
        return
    yield f"first slower commit: {first['commit'][:12]} {first['subject']}: {first['reason']}"
    if first["or_one_of"]:
        names = ", ".join(commit[:12] for commit in first["or_one_of"])
        yield f"  or one of those before it that could not be compared: {names}"
