"""The cases of a session without a campaign: tests that are there, or one made from shapes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pytest_kopt.errors import BadInput
from pytest_kopt.options.project import Project
from pytest_kopt.standalone.generated_cases import generate
from pytest_kopt.standalone.kernel_places import is_imported, names_in, place_of, tests_below
from pytest_kopt.standalone.made_trees import MadeTree
from pytest_kopt.standalone.shapes import parse


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of a session, and of which file of the project they try a version."""

    root: Path
    #: Whether the project has a command that builds its kernels.
    builds: bool
    #: Files, folders or cases for pytest; none: all of the project's.
    words: tuple[str, ...]
    #: The tests' files by path below the root. In a tree they are files of their own, so that what
    #: a test finds beside itself is that tree's.
    files: Mapping[str, bytes]
    #: The file, by path below the root; "" for versions that say that themselves.
    place: str = ""
    #: What made cases are checked against, for people; "" for tests that were there.
    reference: str = ""

    @classmethod
    def named(cls, words: Sequence[str], versions: Sequence[Path], at: str | None) -> Cases:
        """Take tests that are there, of the project's settings where no words name any.

        `versions` are files, folders, which hold files at their places, or no paths: then the tests
        may be those of another commit. BadInput where there are no tests, or it is not known what
        the versions are versions of.
        """
        project = Project.here(*words)
        root = project.root.resolve()
        if not all(version.exists() for version in versions):
            return cls(root, project.builds, tuple(words), {})
        named = [Path(word.partition("::")[0]).resolve() for word in words]
        paths = named or [root / path for path in project.test_paths]
        if not paths:
            what = "no tests are named, and the project's settings have no testpaths"
            raise BadInput(what, legal="TESTS, or --call NAME --shapes 'f32[4096,1024]'")
        for path in paths:
            if not path.exists():
                raise BadInput("there is no such file or folder", where=str(path))
            if not path.is_relative_to(root):
                raise BadInput(f"lies outside of the project {root}", where=str(path))
        tests = tests_below(paths)
        place = at or ""
        if not at and all(version.is_file() for version in versions):
            place = place_of(versions, root, tests)
        files = {test.relative_to(root).as_posix(): test.read_bytes() for test in tests}
        return cls(root, project.builds, tuple(words), files, place)

    @classmethod
    def made(
        cls, function: str, shapes: Sequence[str], versions: Sequence[Path], at: str | None, to: str
    ) -> Cases:
        """Make a test of a function from lines of shapes; the first version is the reference.

        It is to lie at `to`, below the root. This process goes to the root, where modules are
        looked for.
        """
        lines = [parse(line) for line in shapes]
        project = Project.here()
        root, builds = project.root.resolve(), project.builds
        inside = [version for version in versions if version.is_relative_to(root)]
        if not inside:
            # Files of no project: what lies beside them is what they may import.
            root, builds, inside = versions[0].parent, False, [versions[0]]
        place = at or inside[-1].relative_to(root).as_posix()
        os.chdir(root)
        cases = generate(function, lines, versions[0], place, to)
        return cls(root, builds, (to,), cases.files, place, cases.reference)

    def of_its_place(self) -> Cases:
        """Return these cases without the files of tests that do not import what lies there."""
        path = PurePosixPath(self.place)
        words = [
            str(self.root / file)
            for file, source in self.files.items()
            if is_imported(path, names_in(source)) and not file.endswith("conftest.py")
        ]
        return (
            self
            if self.words
            else Cases(self.root, self.builds, tuple(words), self.files, self.place)
        )

    def within(self, made: MadeTree) -> list[str]:
        """Return the words as they name the same in a tree."""
        words = []
        for word in self.words:
            path, *case = word.split("::")
            place = Path(path).resolve().relative_to(made.root)
            words.append("::".join([str(made.tree / place), *case]))
        return words
