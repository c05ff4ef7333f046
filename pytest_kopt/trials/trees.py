"""The incumbent's trees: made for a comparison and removed after it."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from pytest_kopt.campaign.manifest import split_command
from pytest_kopt.campaign.running import is_left_behind
from pytest_kopt.paired.arms import NotComparable, Versions
from pytest_kopt.processes.launched import SCRATCH
from pytest_kopt.trials.project_command import ProjectCommand
from pytest_kopt.versions import overlay

_PREFIX = "kopt-incumbent-"
#: Returns trees of the project in which these files are others.
TreesOf: TypeAlias = "Callable[[Mapping[str, bytes | None]], Versions]"
#: Words of a build that changes the environment which both versions share.
_INSTALLS = frozenset({"install", "develop", "sync"})


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
    NotComparable. What it compiles inline is kept in `builds`, by its content. A tree that
    `copies_sources` holds all of the project's sources, and can stand for it.
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
        is_inline = rebuild is None and _builds_inline(incumbent)
        extensions = (builds or base) / _content(incumbent) if is_inline else None
        yield Versions(
            root,
            (first, second),
            tuple(sorted(old)),
            rebuilt=rebuild is not None,
            extensions=extensions,
            seals=(overlay.seal(first), overlay.seal(second)),
        )


def _builds_inline(sources: Mapping[str, bytes]) -> bool:
    """Say whether a version builds text that stands in it: files lie elsewhere in each tree."""
    text = b"".join(sources.values())
    return b"load_inline" in text and b"cpp_extension.load(" not in text


def _content(sources: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {version('torch')}".encode())
    for path, content in sorted(sources.items()):
        digest.update(f"{path} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


def trees_of(
    stack: ExitStack, make: Callable[[Mapping[str, bytes | None]], AbstractContextManager[Versions]]
) -> TreesOf:
    """Return what has `make` make each tree once, which lasts as long as what is `stack`."""
    versions_of: dict[frozenset[tuple[str, bytes | None]], Versions] = {}

    def trees(old: Mapping[str, bytes | None]) -> Versions:
        key = frozenset(old.items())
        if key not in versions_of:
            versions_of[key] = stack.enter_context(make(old))
        return versions_of[key]

    return trees


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
