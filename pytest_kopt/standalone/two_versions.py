"""Two versions side by side, or one alone, by a session of pytest in a tree made for it."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.columns import Scalar
from pytest_kopt.schema.table import typed
from pytest_kopt.standalone.cases import Cases
from pytest_kopt.standalone.child_session import (
    MadeTree,
    last_words,
    run,
    tree_of_refs,
    tree_with,
    verdict_in,
)
from pytest_kopt.versions.overlay import project_files


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended."""

    #: The exit code.
    code: int
    #: Of a comparison that came to one.
    verdict: Verdict | None
    #: The verdict's, else the refusal; "" where the session printed it.
    reason: str
    #: Where one version is timed, a row of each case by its columns.
    rows: Sequence[Mapping[str, Scalar]] = ()


@contextmanager
def both(old: str, new: str, paths: tuple[Path, Path], cases: Cases) -> Iterator[MadeTree]:
    """Yield a tree with version `new` in it and one with `old`; BadInput for what is none.

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
        with tree_of_refs(*_refs(old, new, cases.root), old) as made:
            yield made
        return
    files, other = {**cases.files, **after}, (Path(old), before)
    with tree_with(cases.root, files, other, builds=cases.builds) as made:
        yield made


@contextmanager
def alone(file: Path, cases: Cases) -> Iterator[MadeTree]:
    """Yield a tree with one version of a file."""
    files = {**cases.files, cases.place: file.read_bytes()}
    with tree_with(cases.root, files, builds=cases.builds) as made:
        yield made


def check_words(made: MadeTree, verdict_file: Path) -> tuple[str, ...]:
    """Return the options of the PR check there."""
    is_path = isinstance(made.base, Path)
    base = os.path.relpath(made.base, made.directory) if is_path else made.base
    return f"--kopt-base={base}", f"--kopt-verdict={verdict_file}", "--no-header"


def check(
    made: MadeTree,
    words: Sequence[str],
    *,
    silent: bool,
    seconds: float | None = None,
    variables: Mapping[str, str] | None = None,
) -> SessionEnd:
    """Run the PR check there, which prints what it shows unless `silent`.

    `seconds` and `variables` are those of `run`.
    """
    with tempfile.TemporaryDirectory() as directory:
        verdict_file, log = Path(directory) / "verdict.json", Path(directory) / "output"
        words = (*check_words(made, verdict_file), *words)
        code = run(words, made, log if silent else None, seconds=seconds, variables=variables)
        verdict = verdict_in(verdict_file)
        reason = verdict.reason if verdict else last_words(log) if silent else ""
        return SessionEnd(code, verdict, reason)


def time(made: MadeTree, words: Sequence[str], *, silent: bool) -> SessionEnd:
    """Check and time the cases there; it prints what it shows unless `silent`."""
    with tempfile.TemporaryDirectory() as directory:
        tables, log = Path(directory) / "rows", Path(directory) / "output"
        words = [f"--kopt-summary-csv={tables}/", "--no-header", *words]
        code = run(words, made, log if silent else None)
        rows: list[dict[str, Scalar]] = []
        for file in sorted(tables.glob("*.csv")):
            with file.open(newline="", encoding="utf-8") as table:
                of_file = csv.DictReader(table)
                rows += [{name: typed(text) for name, text in row.items()} for row in of_file]
        return SessionEnd(code, None, "" if rows or not silent else last_words(log), rows)


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
