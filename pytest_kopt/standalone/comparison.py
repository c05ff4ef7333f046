"""Two versions side by side, or one alone, by a session of pytest in a tree made for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.options.project import Project
from pytest_kopt.standalone.child_session import last_words, run, verdict_in
from pytest_kopt.standalone.places import place_of, tests_below
from pytest_kopt.standalone.trees import MadeTree, tree_of_refs, tree_with
from pytest_kopt.versions.overlay import project_files


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended: its exit code, its verdict if it came to one, and why."""

    code: int
    verdict: Verdict | None
    reason: str


@dataclass(frozen=True, slots=True)
class Cases:
    """Where the cases of a session are: the project, and the words of the command for them."""

    project: Project
    words: tuple[str, ...]

    @classmethod
    def named(cls, words: Sequence[str]) -> Cases:
        """Find the project of some files, folders or cases; of its settings where there is none."""
        return cls(Project.here(*words), tuple(words))

    @property
    def root(self) -> Path:
        return self.project.root.resolve()

    @property
    def files(self) -> list[Path]:
        """The Python files that may hold the cases, conftest files among them; or BadInput."""
        named = [Path(word.partition("::")[0]).resolve() for word in self.words]
        paths = named or [self.root / path for path in self.project.test_paths]
        if not paths:
            what = "no tests are named, and the project's settings have no testpaths"
            raise BadInput(what, legal="TESTS, or --call NAME --shapes 'f32[4096,1024]'")
        if missing := [path for path in paths if not path.exists()]:
            raise BadInput("there is no such file or folder", where=str(missing[0]))
        if outside := [path for path in paths if not path.is_relative_to(self.root)]:
            raise BadInput(f"lies outside of the project {self.root}", where=str(outside[0]))
        return tests_below(paths)

    def within(self, made: MadeTree) -> list[str]:
        """Return the words as they name the same in a tree."""
        words = []
        for word in self.words:
            path, *case = word.split("::")
            place = Path(path).resolve().relative_to(made.root)
            words.append("::".join([str(made.tree / place), *case]))
        return words


@contextmanager
def both(old: str, new: str, cases: Cases, at: str | None) -> Iterator[MadeTree]:
    """Yield a tree with version `new` in it and `old` beside it; BadInput for what is none.

    They are two files, two folders, or two git refs; `at` says of which file two files are
    versions.
    """
    paths = Path(old).resolve(), Path(new).resolve()
    if all(path.is_file() for path in paths):
        tests = cases.files
        place = at or place_of(paths, cases.root, tests)
        before, after = ({place: path.read_bytes()} for path in paths)
    elif all(path.is_dir() for path in paths):
        before, after = map(_contents, paths)
        tests = [file for file in cases.files if file.is_relative_to(cases.root)]
    else:
        with tree_of_refs(*_refs(old, new, cases.root)) as made:
            yield made
        return
    # As files of their own, so that what a test finds beside itself is this tree's.
    near = {test.relative_to(cases.root).as_posix(): test.read_bytes() for test in tests}
    name = Path(old).name
    with tree_with(cases.root, near | after, (name, before), builds=cases.project.builds) as made:
        yield made


def check(made: MadeTree, words: Sequence[str], *, silent: bool) -> Outcome:
    """Run the PR check there, which prints what it shows unless `silent`."""
    with tempfile.TemporaryDirectory() as directory:
        verdict_file, log = Path(directory) / "verdict.json", Path(directory) / "output"
        is_path = isinstance(made.base, Path)
        base = os.path.relpath(made.base, made.directory) if is_path else made.base
        check = (f"--kopt-base={base}", f"--kopt-verdict={verdict_file}", "--no-header")
        code = run([*check, *words], made, log if silent else None)
        verdict = verdict_in(verdict_file)
        reason = verdict.reason if verdict else last_words(log) if silent else ""
        return Outcome(code, verdict, reason)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.as_posix(): (folder / path).read_bytes() for path in project_files(folder)}


def _refs(old: str, new: str, root: Path) -> tuple[Repository, str, str]:
    repository = Repository.around(root)
    commits = [repository and repository.commit_of(name) for name in (old, new)]
    if repository is None or not all(commits):
        what = f"{old} and {new} are neither two files, two folders nor two git refs"
        raise BadInput(what, legal="both of one kind; a ref and the working tree: --kopt-base REF")
    return repository, str(commits[0]), str(commits[1])
