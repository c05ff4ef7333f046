"""The trees of other versions, and what is built in them."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.kernel import (
    Built,
    KernelVersion,
    is_machine_code,
    kept_builds,
    sha256,
)
from pytest_kopt.campaign.manifest import split_command
from pytest_kopt.paired.arms import NotComparable, Versions
from pytest_kopt.processes.launched import scratch
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.versions.affected_modules import NATIVE_SUFFIXES
from pytest_kopt.versions.tree import (
    BUILDS,
    Tree,
    copied,
    linked,
    project_files,
)

_LEDGER = "ledger.jsonl"
#: Suffixes of what no build reads, unless git tracks it, and patterns of what none reads at all.
_DOCUMENTS = frozenset({".md", ".rst", ".txt", ".yaml", ".yml", ".json", ".csv", ".log"})
_TESTS = ("test_*.py", "*_test.py", "conftest.py", "*.md", "*.rst")
#: So many bytes tell machine code.
_MAGIC = 8
#: Words of a build that changes the environment which both versions share.
_INSTALLS = frozenset({"install", "develop", "sync"})


def builds_inline(sources: Iterable[bytes]) -> bool:
    """Say whether a version builds text that stands in it: files lie elsewhere in each tree."""
    text = b"".join(sources)
    return b"load_inline" in text and b"cpp_extension.load(" not in text


def _kept_builds(folder: Path) -> Path:
    """Return the folder below `folder` of this Python and torch, which nobody is building in.

    A process that was killed while it built leaves a lock that the next one would wait for.
    """
    kept = folder / _abi()
    for lock in kept.glob("*/lock"):
        lock.unlink(missing_ok=True)
    return kept


def _abi() -> str:
    return f"python-{'.'.join(map(str, sys.version_info[:2]))}-torch-{version('torch')}"


@contextmanager
def built_meanwhile(modules: Mapping[str, Path], builds: Path, *, confined: bool) -> Iterator[None]:
    """Import modules, by name with their folder, in a process that has torch build in `builds`.

    It ends before this context does. Whether it fails is seen where the cases import them.
    """
    kept = _kept_builds(builds)
    kept.mkdir(parents=True, exist_ok=True)
    code = f"import {', '.join(modules)}"
    env = {
        "TORCH_EXTENSIONS_DIR": str(kept),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, modules.values()))),
    }
    command = ProjectCommand(shlex.join([sys.executable, "-c", code]), env, is_confined=confined)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(command.run, kept)
        yield


class Trees:
    """Trees of a project in which some files are others; each is made once.

    They last as long as what is `held`. With `built` they are full copies with what a command
    builds of each version. Inline builds are kept in `inline`, one of each name: torch builds what
    is not as it was.
    """

    def __init__(
        self,
        held: ExitStack,
        root: Path,
        built: Builds | None = None,
        inline: Path | None = None,
    ) -> None:
        self.built = built
        self._held, self._root, self._inline = held, root, inline
        self._made: dict[tuple[object, ...], Tree] = {}

    def tree(
        self, old: Mapping[str, bytes | None], number: int = 0, *, copies_sources: bool = False
    ) -> Tree:
        """Return the tree of a number with `old` for the project's files; or NotComparable."""
        key = number, copies_sources, *sorted(old.items())
        if key not in self._made:
            root = self._root
            place = Path(tempfile.mkdtemp(dir=self._folder), root.name)
            if built := self.built:
                made = copied(root, place, old, partial(built.into_tree, old))
            else:
                made = linked(root, place, old, copies_sources=copies_sources)
            self._made[key] = made
        return self._made[key]

    def having(
        self,
        old: Mapping[str, bytes | None],
        changed: Iterable[str] | None = None,
        own: Tree | None = None,
    ) -> Versions:
        """Return two trees of the incumbent: `old` are its files that differ, None for none.

        `changed` are the kernels' among them, all unless given. `own` is the tree of the candidate,
        if that is not the project.
        """
        known = (content for content in old.values() if content is not None)
        return Versions(
            (self.tree(old), self.tree(old, 1)),
            tuple(sorted(old if changed is None else changed)),
            own=own,
            rebuilt=self.built is not None,
            extensions=self._extensions if not self.built and builds_inline(known) else None,
        )

    @cached_property
    def _folder(self) -> Path:
        return self._held.enter_context(scratch())

    @cached_property
    def _extensions(self) -> Path:
        return _kept_builds(self._inline or self._folder / "builds")


def why_not_in_place(command: str) -> str:
    """Return why a rebuild_command cannot build two versions side by side, "" where it can."""
    if not _INSTALLS & set(split_command(command)[1]):
        return ""
    return (
        f"rebuild_command `{command}` installs: it would replace the candidate in the environment "
        "that both share; build in place (setup.py build_ext --inplace, make)"
    )


class Builds:
    """Builds versions of a project where nothing was built, each once, and keeps what came of it.

    A command that finds what another version left may leave that as it is: `setup.py build_ext`
    looks at no header that it does not know of.
    """

    def __init__(self, root: Path, command: ProjectCommand, folder: Path) -> None:
        self._root, self._command, self._folder = root, command, folder
        #: The build that lies in the project.
        self._now: Built | None = None

    def into_project(self) -> str:
        """Build the project's own version and put what came of it there; "", or how that failed."""
        if why_not_in_place(self._command.text):
            return self._command.run(self._root)[0]
        try:
            self._now = self._of({})
        except NotComparable as error:
            return str(error)
        self._now.put(self._root, kept_builds(self._folder))
        return ""

    def keep(self, kernel: KernelVersion, others: Sequence[KernelVersion]) -> None:
        """Keep the project's build as this version's, and those of the others alone."""
        if self._now is not None:
            self._now.note(kernel)
        for built in kept_builds(self._folder):
            if not any(map(built.belongs_to, (kernel, *others))):
                shutil.rmtree(built.tree.parent)

    def into_tree(self, old: Mapping[str, bytes | None], tree: Path) -> None:
        """Put what is built of the version with `old` into its tree, a copy of the project.

        NotComparable if it does not build, or comes to what the project's own version came to.
        """
        if problem := why_not_in_place(self._command.text):
            raise NotComparable(problem)
        try:
            then, now = self._of(old), self._now or self._of({})
        except NotComparable as error:
            raise NotComparable(f"the incumbent does not build: {error}") from None
        compiled = (path for path in sorted(old) if PurePosixPath(path).suffix in NATIVE_SUFFIXES)
        changed = [path for path in compiled if old[path] != _content(self._root / path)]
        libraries = then.libraries()
        if changed and libraries and libraries == now.libraries():
            raise NotComparable(
                f"rebuild_command made the same {min(libraries)} of both versions, although "
                f"{changed[0]} differs",
                f"undo the edit of {changed[0]} if it changes only comments or layout; else have "
                "rebuild_command build what depends on it, from no cache",
            )
        then.put(tree, kept_builds(self._folder))

    def _of(self, old: Mapping[str, bytes | None]) -> Built:
        """Return what is built of the version with `old`; NotComparable with the command's output.

        A second try has what git ignores too: the command may need some that it does not make.
        """
        root, kept = self._root, kept_builds(self._folder)
        own, tracked, others = _sources(root, old, kept)
        folder = self._folder / _digest(root, own, tracked, others, self._command)
        if built := Built.kept(folder):
            return built

        def renew(tree: Path) -> None:
            """Make its files newer than whatever a command made of others, git's the newest."""
            for path in (*others, *tracked, *own):
                # A link may lead to a file of the user's.
                if (tree / path).is_file() and not (tree / path).is_symlink():
                    os.utime(tree / path)

        failure, place = "", folder / root.name
        for only in ([*tracked, *others], None):
            shutil.rmtree(folder, ignore_errors=True)
            tree = copied(root, place, own, renew, only)
            failure, _ = self._command.run(place, {"TORCH_EXTENSIONS_DIR": str(place / BUILDS)})
            if not failure:
                return Built.keep(place, tree.written)
        shutil.rmtree(folder)
        raise NotComparable(failure)


def _sources(
    root: Path, old: Mapping[str, bytes | None], kept: Iterable[Built]
) -> tuple[dict[str, bytes | None], list[str], list[str]]:
    """Return the files below `root` that a version is built from; no product is among them.

    First the contents of files that differ from the project's, None for those that go, as products
    do. Then the other paths that git tracks; a submodule is one path. Last those that it neither
    tracks nor ignores, without git all.
    """
    repository = Repository.around(root)
    products = {path for built in kept for path in built.files}
    tracked: Sequence[str] = ()
    if repository is None:
        others = [path.as_posix() for path in project_files(root)]
    else:
        tracked, others = repository.listed(root)
        prefix = f"{repository.relative(root, '.')}/".removeprefix("./")
        ignored = repository.ignored(prefix + path for path in old)
        products |= {path.removeprefix(prefix) for path in ignored}
    contents = {path: _content(root / path, _MAGIC) for path in others} | {**old}
    products |= {path for path, content in contents.items() if is_machine_code(content)}
    products -= {*tracked}
    records = [path.removesuffix(_LEDGER) for path in (*tracked, *others) if path.endswith(_LEDGER)]

    def wanted(paths: Iterable[str]) -> list[str]:
        left = (path for path in paths if path not in products and path not in old)
        return sorted(path for path in left if not path.startswith((*records, ".git/")))

    own = {path: None if path in products else content for path, content in old.items()}
    return own, wanted(tracked), wanted(others)


def _digest(
    root: Path,
    own: Mapping[str, bytes | None],
    tracked: Sequence[str],
    others: Sequence[str],
    command: ProjectCommand,
) -> str:
    """Return a name for what a command makes of these files; tests and documents do not count.

    A file that git does not track may be the notes of a round.
    """
    digest = hashlib.sha256(repr((command.text, sorted(command.env.items()), _abi())).encode())
    present = {path: _content(root / path) for path in (*tracked, *others)}
    for path, content in sorted({**present, **own}.items()):
        name = PurePosixPath(path)
        is_document = name.suffix in _DOCUMENTS and path not in tracked
        if content is not None and not (is_document or any(map(name.match, _TESTS))):
            digest.update(f"{path}\0{sha256(content)}\0".encode())
    return digest.hexdigest()[:16]


def _content(path: Path, size: int = -1) -> bytes | None:
    """Return what a file begins with, all of it unless a size is given; None where there is none.

    A folder, which is a submodule, stands for its files' names, sizes and times.
    """
    if path.is_dir():
        files = ((file, (path / file).stat()) for file in project_files(path))
        return repr([(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in files]).encode()
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return stream.read(size)
