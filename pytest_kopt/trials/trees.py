"""The trees of other versions, removed after a comparison, and the candidates of a race."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import worktrees
from pytest_kopt.campaign.kernel import KernelFile, KernelVersion, files_of
from pytest_kopt.campaign.manifest import split_command
from pytest_kopt.campaign.running import is_left_behind
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.paired.arms import NotComparable, Versions
from pytest_kopt.processes.launched import SCRATCH
from pytest_kopt.sameness.sources import differing
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.versions import overlay

_PREFIX = "kopt-incumbent-"
#: Words of a build that changes the environment which both versions share.
_INSTALLS = frozenset({"install", "develop", "sync"})
refused = partial(BadInput, where="--kopt-candidates")


@contextmanager
def overlays(
    root: Path,
    old: Mapping[str, bytes | None],
    rebuild: ProjectCommand | None = None,
    builds: Path | None = None,
    *,
    copies_sources: bool = False,
) -> Iterator[Versions]:
    """Make two trees of the incumbent and remove them afterwards.

    `old` are the files that differ, by path below `root`; None for those that only the candidate
    has. With `rebuild` the trees are full copies in which that command has built the incumbent, or
    NotComparable. Inline builds are kept in `builds`, one of each name: torch builds what is
    not as it was. A tree that `copies_sources` holds all sources of the project.
    """
    _sweep()
    incumbent = {path: content for path, content in old.items() if content is not None}
    absent = [path for path, content in old.items() if content is None]
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as directory:
        base = Path(directory).resolve()
        first, second = (base / name / root.name for name in ("first", "second"))
        if rebuild is None:
            start = overlay.current_folder(root)
            for tree in (first, second):
                overlay.build(root, tree, incumbent, absent, start, copies_sources=copies_sources)
        else:
            overlay.copy(root, first, incumbent, absent)
            _build(rebuild, first)
            shutil.copytree(first, second, symlinks=True)
        is_inline = rebuild is None and builds_inline(incumbent)
        yield Versions(
            root,
            (first, second),
            tuple(sorted(old)),
            rebuilt=rebuild is not None,
            extensions=_kept_builds(builds or base / "builds") if is_inline else None,
            seals=(overlay.seal(first), overlay.seal(second)),
        )


def builds_inline(sources: Mapping[str, bytes]) -> bool:
    """Say whether a version builds text that stands in it: files lie elsewhere in each tree."""
    text = b"".join(sources.values())
    return b"load_inline" in text and b"cpp_extension.load(" not in text


def _kept_builds(folder: Path) -> Path:
    """Return the folder below `folder` of this Python and torch, which nobody is building in.

    A process that was killed while it built leaves a lock that the next one would wait for.
    """
    kept = folder / f"python-{'.'.join(map(str, sys.version_info[:2]))}-torch-{version('torch')}"
    for lock in kept.glob("*/lock"):
        lock.unlink(missing_ok=True)
    return kept


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
    """Trees of the project in which some files are others; each is made once.

    They last as long as what is `held`. The other arguments are those of `overlays`.
    """

    def __init__(
        self,
        held: ExitStack,
        root: Path,
        rebuild: ProjectCommand | None = None,
        builds: Path | None = None,
        *,
        copies_sources: bool = False,
    ) -> None:
        self._held = held
        self._make = partial(
            overlays, root, rebuild=rebuild, builds=builds, copies_sources=copies_sources
        )
        self._made: dict[frozenset[tuple[str, bytes | None]], Versions] = {}

    def having(self, old: Mapping[str, bytes | None]) -> Versions:
        """Return the trees that have `old` in place of the candidate's files."""
        key = frozenset(old.items())
        if key not in self._made:
            self._made[key] = self._held.enter_context(self._make(old=old))
        return self._made[key]


def why_not_in_place(command: str) -> str:
    """Return why a rebuild_command cannot build two versions side by side, "" where it can."""
    if not _INSTALLS & set(split_command(command)[1]):
        return ""
    return (
        f"rebuild_command `{command}` installs: it would replace the candidate in the environment "
        "that both share; build in place (setup.py build_ext --inplace, make)"
    )


def _build(command: ProjectCommand, tree: Path) -> None:
    if problem := why_not_in_place(command.text):
        raise NotComparable(problem)
    done = command.run(tree, {"TORCH_EXTENSIONS_DIR": str(tree / overlay.BUILDS)})
    if done.failure:
        raise NotComparable(f"the incumbent does not build: {done.output[-500:]}")


def _sweep() -> None:
    """Remove what processes left that were killed before they could."""
    for prefix in (_PREFIX, SCRATCH):
        for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with suppress(FileNotFoundError):  # Another session has removed its own.
                is_ours = path.lstat().st_uid == os.getuid()
                if is_ours and is_left_behind(path.name, prefix):
                    shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RaceEntrant:
    """A version to race; `size` is how many lines it changes."""

    name: str
    kernel: KernelVersion
    size: int


def candidates_of(campaign: Campaign, paths: Iterable[str], here: Path) -> tuple[RaceEntrant, ...]:
    """Return what is to race, each version once; `paths` are folders, relative to `here`, and refs.

    Raises BadInput for what cannot race, and for an edit in the tree that the winner would replace.
    """
    number, following = campaign.state.incumbent_round, campaign.state.next_round
    begun = campaign.state.rounds.get(following)
    decided = begun.last.decided if begun else None
    if decided and decided.decision is Decision.REPAIR:
        raise refused(
            f"round {following} is open", fix=f"pytest --kopt-round {following}, or kopt discard"
        )
    if campaign.manifest.rebuild_command:
        what = "versions that rebuild_command builds cannot race in one process"
        raise refused(what, fix="measure each in a round of its own")
    incumbent = campaign.incumbent()
    versions: dict[str, KernelVersion] = {}
    for name in paths:
        version = _version(campaign, incumbent, name, here)
        if not differing(incumbent.sources, version.sources):
            what = f"{name!r} is the same code as round {number}"
            raise refused(what, fix="change its code, or leave it out")
        same = (n for n, raced in versions.items() if not differing(raced.sources, version.sources))
        twin = next(same, None)
        if twin is None:
            versions[name] = version
        elif name not in twin.split(", "):
            versions[f"{twin}, {name}"] = versions.pop(twin)
    edited = worktrees.edited(campaign.root, campaign.manifest, campaign.state)
    if edited and not any(campaign.candidate().same_content(v) for v in versions.values()):
        raise refused(
            f"{', '.join(edited)} differs from round {number}, and the winner would replace it",
            fix=f"make the edit a candidate, or kopt restore {campaign.name} {number}",
        )
    return tuple(
        RaceEntrant(name, version, _size(version, incumbent)) for name, version in versions.items()
    )


def _version(campaign: Campaign, incumbent: KernelVersion, name: str, here: Path) -> KernelVersion:
    folder = here / name
    sources = campaign.manifest.kernel_source
    if folder.is_dir():
        known = {p.relative_to(folder).as_posix(): p.read_bytes() for p in files_of(folder)}
        foreign = [path for path in known if not _belongs(path, sources)]
        if foreign or not known:
            what = f"{foreign[0]!r}, which is no kernel file" if foreign else "no file"
            legal = f"files of kernel_source: {', '.join(sources)}"
            raise refused(f"{name!r} holds {what}", legal=legal)
        files = {path: file for path, file in incumbent.files.items() if path not in known}
    else:
        known, files = _at(campaign, name), {}
    modes = {path: file.mode for path, file in incumbent.files.items()}
    for path, content in known.items():
        files[path] = KernelFile(content, modes.get(path, 0o644))
    return KernelVersion(files)


def _at(campaign: Campaign, ref: str) -> dict[str, bytes]:
    repository = campaign.repository
    commit = repository.commit_of(ref) if repository else None
    if repository is None or commit is None:
        raise refused(f"{ref!r} is neither a folder nor a ref", legal="a folder, or a commit")
    inside = repository.relative(campaign.root, ".")
    prefix = "" if inside == "." else f"{inside}/"
    below = (p.removeprefix(prefix) for p in repository.blobs(commit) if p.startswith(prefix))
    found = {
        path: repository.content(commit, prefix + path)
        for path in below
        if _belongs(path, campaign.manifest.kernel_source)
    }
    if not found:
        raise refused(f"{ref!r} has no kernel file", fix="name a commit that has one")
    return found


def _belongs(path: str, sources: Iterable[str]) -> bool:
    place = PurePosixPath(path)
    return any(place.is_relative_to(source) for source in sources)


def _size(version: KernelVersion, other: KernelVersion) -> int:
    """Return how many lines two versions differ in, a file that only one has as a whole."""
    return sum(
        line[:1] in "+-"
        for path in version.files.keys() | other.files.keys()
        for line in list(unified_diff(_lines(other, path), _lines(version, path), lineterm=""))[2:]
    )


def _lines(version: KernelVersion, path: str) -> list[str]:
    file = version.files.get(path)
    return file.content.decode(errors="replace").splitlines() if file else []
