"""Two versions side by side, or one alone, by a session of pytest in a tree made for it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.schema.columns import Scalar
from pytest_kopt.schema.table import typed
from pytest_kopt.standalone.cases import Cases
from pytest_kopt.standalone.child_session import (
    last_words,
    run,
    tree_at,
    tree_with,
    two_with,
    verdict_in,
)
from pytest_kopt.versions.tree import Tree, project_files

#: So many characters at the end of what a command printed say why it has no document.
_MOST = 2000


def compare(
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    tests: str | Sequence[str] = (),
    *,
    call: str = "",
    shapes: str | Sequence[str] = (),
    at: str = "",
    project: str | os.PathLike[str] = ".",
    options: Sequence[str] = (),
) -> Verdict:
    """Check two versions of a kernel, compare them in pairs, and return the verdict on `new`.

    It runs the command `kopt compare` in a process of its own. It prints nothing, and leaves files,
    git, environment and current folder as they are. Threads may call it; a loop of asyncio does by
    `asyncio.to_thread`. An interrupt ends the comparison too.

    - `old`, `new`: two files, two folders or two git refs; `new` is judged.
    - `tests`: files, folders or cases of pytest; default: `testpaths` of the project's settings.
    - `call`: instead of tests, the name of a function that both files define. The results of
      `old`, in float64 if it is plain torch, are the reference.
    - `shapes`: with `call`, the arguments of each case. "f32[4096,1024] i64[4096]<1000 1e-5" is a
      tensor of normally distributed values, one of integers from 0 to 999, and a number.
    - `at`: the file or folder of the project that both are versions of, relative to its root;
      default: the file that the tests import.
    - `project`: the folder in which kopt runs. Relative paths begin there.
    - `options`: options of pytest, such as "--kopt-gate=improve" or "--kopt-timeout=20" (seconds).

    The verdict has the keys of verdict.json:

    - `outcome`: faster, not slower, not faster, may be slower, slower, wrong (also if it does not
      import), refused or not judged. The same code is not faster where a gain is asked for.
    - `aggregate`: `change_pct`, in percent of speed, with `low_pct` and `high_pct`, the ends of its
      interval. It is 100 * (old time / new time - 1): positive if `new` is faster.
    - `shapes`: every case, with `forward_ms` in milliseconds and `memory` in bytes.

    BadInput if kopt cannot use the input: it measured nothing. CannotFinish if no GPU was idle, or
    if kopt could not time the cases: call it again later.
    """
    if not Path(project).is_dir():
        raise BadInput("there is no such folder", where=os.fspath(project))
    cases = [word for line in _listed(shapes) for word in ("--shapes", line)]
    names = [f"--{name}={text}" for name, text in (("call", call), ("at", at)) if text]
    versions = (os.fspath(old), os.fspath(new))
    command = ("compare", *versions, *_listed(tests), *cases, *names, "--json", "--", *options)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest_kopt.cli", *command],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        printed, errors = process.communicate()
    except BaseException:
        # Its session puts back what it holds.
        process.terminate()
        process.communicate()
        raise
    try:
        document = json.loads(printed)
    except ValueError:
        raise CannotFinish(errors.decode(errors="replace")[-_MOST:].strip()) from None
    if document["verdict"]:
        return Verdict.model_validate(document["verdict"])
    is_refused = document["exit_code"] == ExitCode.USAGE
    raise (BadInput if is_refused else CannotFinish)(document["reason"])


def _listed(words: str | Sequence[str]) -> Sequence[str]:
    return (words,) if isinstance(words, str) else words


@contextmanager
def both(
    old: str, new: str, paths: tuple[Path, Path], cases: Cases
) -> Iterator[tuple[Tree, list[str]]]:
    """Yield a tree with version `new`, and the words for `old` as the base; BadInput for none.

    They are two files or two folders, whose absolute `paths` these are, or two git refs.
    """
    if all(path.is_file() for path in paths):
        before, after = ({cases.place: path.read_bytes()} for path in paths)
    elif all(path.is_dir() for path in paths):
        before, after = (_contents(path, cases.place) for path in paths)
        if not any(path in after or (cases.root / path).is_file() for path in before):
            what = f"has no file at a path that {new} or the project has a file at"
            raise BadInput(what, where=old, fix="two folders with versions of the same files")
    else:
        repository, before_it, commit = _refs(old, new, cases.root)
        with tree_at(repository, repository.successor(before_it, commit)) as tree:
            yield tree, [old, f"--kopt-base={before_it}"]
        return
    files = {**cases.files, **after}
    with two_with(cases.root, files, Path(old), before, builds=cases.builds) as versions:
        yield versions


@contextmanager
def alone(file: Path, cases: Cases) -> Iterator[Tree]:
    """Yield a tree with one version of a file."""
    files = {**cases.files, cases.place: file.read_bytes()}
    with tree_with(cases.root, files, builds=cases.builds) as tree:
        yield tree


def check(
    tree: Tree,
    base: Sequence[str],
    words: Sequence[str],
    *,
    silent: bool,
    seconds: float | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[int, Verdict | None, str]:
    """Run the PR check there, which prints what it shows unless `silent`.

    `seconds` and `variables` are those of `run`. Returns the exit code, the verdict if it came to
    one, and the verdict's reason, else the refusal, "" where the session printed it.
    """
    with tempfile.TemporaryDirectory() as directory:
        verdict_file, log = Path(directory) / "verdict.json", Path(directory) / "output"
        # The first word is the entry's own.
        code = run(
            (*base, f"--kopt-verdict={verdict_file}", "--no-header", *words),
            tree,
            log if silent else None,
            "comparison",
            seconds=seconds,
            variables=variables,
        )
        verdict = verdict_in(verdict_file)
        reason = verdict.reason if verdict else last_words(log) if silent else ""
        return code, verdict, reason


def time(
    tree: Tree, words: Sequence[str], *, silent: bool
) -> tuple[int, list[dict[str, Scalar]], str]:
    """Check and time the cases there; it prints what it shows unless `silent`.

    Returns the exit code, a row of each case by its columns, and the refusal where it has none.
    """
    with tempfile.TemporaryDirectory() as directory:
        tables, log = Path(directory) / "rows", Path(directory) / "output"
        words = [f"--kopt-summary-csv={tables}/", "--no-header", *words]
        code = run(words, tree, log if silent else None)
        rows: list[dict[str, Scalar]] = []
        for file in sorted(tables.glob("*.csv")):
            with file.open(newline="", encoding="utf-8") as table:
                of_file = csv.DictReader(table)
                rows += [{name: typed(text) for name, text in row.items()} for row in of_file]
        return code, rows, "" if rows or not silent else last_words(log)


def _contents(folder: Path, place: str) -> dict[str, bytes]:
    """Return the files of a folder whose own place below the root is `place`."""
    files = project_files(folder)
    return {(place / path).as_posix(): (folder / path).read_bytes() for path in files}


def _refs(old: str, new: str, root: Path) -> tuple[Repository, str, str]:
    repository = Repository.around(root)
    commits = [repository and repository.commit_of(name) for name in (old, new)]
    for name, commit in zip((old, new), commits, strict=True):
        if not commit and not Path(name).exists():
            raise BadInput("there is no such file, folder or git ref", where=name)
    if repository is None or not all(commits):
        what = f"{old} and {new} are neither two files, two folders nor two git refs"
        raise BadInput(
            what, fix="give two of one kind; for a ref and the working tree: pytest --kopt-base REF"
        )
    return repository, str(commits[0]), str(commits[1])
