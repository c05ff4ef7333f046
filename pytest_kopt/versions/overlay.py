"""A tree that looks like the project but holds another version of some files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

#: Never mirrored: they would let a process write into the user's caches through the overlay.
_LEFT_OUT = frozenset({"__pycache__", ".pytest_cache", ".git"})


def build(
    root: Path,
    target: Path,
    files: Mapping[str, bytes],
    absent: Iterable[str] = (),
    start: str = ".",
) -> Path:
    """Fill `target` with links to the project's entries, and `files` as real files on top.

    `files` are the contents by path relative to `root`; `absent` are paths that the other version
    does not have. Only the folders on the way to one of them are real, and in them the sources, so
    that code which resolves its own path before it reads a file beside it stays in this version.
    Everything else is a link: data files and sources stay reachable from either version. The folder
    `start`, in which a process shall start, is real too: through a link it would start in the
    project.
    """
    replaced = {PurePosixPath(path): content for path, content in files.items()}
    removed = {PurePosixPath(path) for path in absent}
    real = {folder for path in (*replaced, *removed) for folder in path.parents}
    real |= {PurePosixPath(start), *PurePosixPath(start).parents}
    _fill(root, target, PurePosixPath(), replaced, removed, real)
    return target


def copy(root: Path, target: Path, files: Mapping[str, bytes], absent: Iterable[str] = ()) -> Path:
    """Fill `target` with a copy of the project and `files` on top, for a build to write into.

    Unlike `build` nothing in it leads back, so that a build there leaves the project alone.
    """

    def left_out(folder: str, names: list[str]) -> set[str]:
        here = Path(folder)
        return {
            name
            for name in names
            if name in _LEFT_OUT
            or (here / name / "pyvenv.cfg").exists()
            or target.is_relative_to(here / name)
        }

    shutil.copytree(root, target, symlinks=True, ignore=left_out)
    for path in absent:
        (target / path).unlink(missing_ok=True)
    for path, content in files.items():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(content)
    return target


def _fill(
    root: Path,
    target: Path,
    folder: PurePosixPath,
    files: Mapping[PurePosixPath, bytes],
    absent: set[PurePosixPath],
    real: set[PurePosixPath],
) -> None:
    (target / folder).mkdir(parents=True, exist_ok=True)
    touched = {*files, *absent}
    source = root / folder
    entries = sorted(os.listdir(source)) if source.is_dir() else []
    for name in entries:
        path = folder / name
        if name in _LEFT_OUT or path in touched or target.is_relative_to(root / path):
            continue
        if path in real:
            _fill(root, target, path, files, absent, real)
        elif path.suffix == ".py" and not (root / path).is_symlink() and (root / path).is_file():
            shutil.copyfile(root / path, target / path)
        else:
            (target / path).symlink_to(root / path)
    for path, content in files.items():
        if path.parent == folder:
            (target / path).write_bytes(content)
        elif folder in path.parents and not (target / path).parent.exists():
            (target / path).parent.mkdir(parents=True)
            (target / path).write_bytes(content)
