"""Another version of some files: in a tree that looks like the project, or where a user has it."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from pytest_kopt.errors import BadInput

#: Never mirrored: they would let a process write into the user's caches through the tree.
_LEFT_OUT = frozenset({"__pycache__", ".pytest_cache", ".git"})
#: A folder with such a file is an environment, or a campaign, which keeps versions of its kernels.
_MARKS = ("pyvenv.cfg", "ledger.jsonl")
#: Where torch builds what a version of a tree compiles.
BUILDS = ".torch_extensions"
#: Inode, bytes and time of the last change of a file.
_Seal = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder that stands for a project with other contents of some files, sealed when made.

    `linked` and `copied` make it, and git a work tree of a commit. The contents are given by path
    relative to the project's `root`, None for a file that it does not have.
    """

    root: Path
    place: Path
    _sealed: Mapping[str, _Seal]

    @classmethod
    def at(cls, root: Path, place: Path) -> Tree:
        """Seal what lies at `place` as a tree of the project."""
        return cls(root, place, _seal(place))

    @property
    def copy(self) -> tuple[Path, Path]:
        """The project's root, and what stands for it."""
        return self.root, self.place

    @property
    def folder(self) -> Path:
        """The folder that stands for the current one, or for the root if that lies elsewhere."""
        return self.place / current_folder(self.root)

    @property
    def written(self) -> list[str]:
        """The paths in it that were written or removed since it was made."""
        now = _seal(self.place)
        paths = {**self._sealed, **now}
        return [path for path in paths if now.get(path) != self._sealed.get(path)]


def linked(
    root: Path,
    place: Path,
    old: Mapping[str, bytes | None],
    start: str = "",
    *,
    copies_sources: bool = False,
) -> Tree:
    """Fill `place` with links to the project's entries, and with `old` as real files on top.

    Only the folders on the way to one of `old` are real, and in them the sources. So code that
    resolves its own path, and then reads a file next to it, stays in this version. If one of them
    is no source, all folders with sources are real too, since code may look for it anywhere. So
    they are with `copies_sources`. The project's links to them lead to the real ones. Everything
    else is a link: data files and sources stay reachable from either version. The folder `start`
    (default: the current one) is real too: through a link a process would start in the project.
    """
    start = start or current_folder(root)
    touched = {*map(PurePosixPath, old)}
    real = {folder for path in touched for folder in path.parents}
    real |= {PurePosixPath(start), *PurePosixPath(start).parents}
    if copies_sources or any(path.suffix != ".py" for path in touched):
        sources = (path for path in project_files(root) if path.suffix == ".py")
        real |= {folder for path in sources for folder in path.parents}
    # A link into one of them, as it stands, would lead out of this version into the project's.
    links, within = dict(_links(root)), dict[PurePosixPath, PurePosixPath]()
    while more := {p: to for p, to in links.items() if {to, to.parent} & real and p not in within}:
        within |= more
        real |= {folder for path in more for folder in path.parents}

    def fill(folder: PurePosixPath) -> None:
        (place / folder).mkdir(parents=True, exist_ok=True)
        source = root / folder
        for name in sorted(os.listdir(source)) if source.is_dir() else ():
            path = folder / name
            if name in _LEFT_OUT or path in touched or place.is_relative_to(root / path):
                continue
            here, there = root / path, place / path
            if path in real:
                fill(path)
            elif path in within:
                there.symlink_to(place / within[path])
            elif path.suffix == ".py" and not here.is_symlink() and here.is_file():
                shutil.copyfile(here, there)
            else:
                there.symlink_to(here)

    fill(PurePosixPath())
    write(old, place)
    return Tree.at(root, place)


def copied(
    root: Path,
    place: Path,
    old: Mapping[str, bytes | None],
    build: Callable[[Path], None] = lambda place: None,
    only: Iterable[str] | None = None,
) -> Tree:
    """Fill `place` with a copy of the project and `old` on top, and `build` there.

    `only` names the files and folders to copy, None stands for all. Unlike in `linked` nothing
    leads back, so that a build there leaves the project alone.
    """

    def left_out(folder: str, names: list[str]) -> set[str]:
        here = Path(folder)
        return {
            name
            for name in names
            if name in _LEFT_OUT
            or (here / name / "pyvenv.cfg").exists()
            or place.is_relative_to(here / name)
        }

    if only is None:
        shutil.copytree(root, place, symlinks=True, ignore=left_out)
    place.mkdir(parents=True, exist_ok=True)
    for path in only or ():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        if (root / path).is_dir():
            shutil.copytree(root / path, place / path, symlinks=True)
        elif os.path.lexists(root / path):
            shutil.copy2(root / path, place / path, follow_symlinks=False)
    write(old, place)
    build(place)
    return Tree.at(root, place)


def write(files: Mapping[str, bytes | None], folder: Path) -> None:
    """Write files to their paths below a folder, None removes one.

    The target of a link there stays as it is.
    """
    for path, content in sorted(files.items(), key=lambda item: item[1] is not None):
        place = folder / path
        place.unlink(missing_ok=True)
        if content is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def project_files(
    root: Path, is_left_out: Callable[[str], bool] = lambda name: False
) -> Iterator[PurePosixPath]:
    """Yield the files below a folder, relative to it.

    Those of hidden folders, environments and campaigns are none of the project's, and those of
    folders with a name that `is_left_out`.
    """
    for here, _, files in _folders(root, is_left_out):
        yield from (here / name for name in sorted(files))


def _links(root: Path) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """Yield the links of a project that lead to a place in it, with that place."""
    home = root.resolve()
    for here, folders, files in _folders(root):
        for path in (here / name for name in (*folders, *files)):
            if (root / path).is_symlink():
                place = Path(os.path.realpath(root / path))
                if place.is_relative_to(home):
                    yield path, PurePosixPath(place.relative_to(home))


def _folders(
    root: Path, is_left_out: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[PurePosixPath, list[str], list[str]]]:
    """Yield the project's folders below a root, with the names of what is in each."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(
            name
            for name in names
            if not (
                name.startswith(".")
                or name in _LEFT_OUT
                or is_left_out(name)
                or any(Path(folder, name, mark).exists() for mark in _MARKS)
            )
        )
        yield PurePosixPath(Path(folder).relative_to(root)), names, files


def current_folder(root: Path) -> str:
    """Return the current folder, in which processes start as well, relative to the root."""
    here = Path.cwd().resolve()
    return here.relative_to(root).as_posix() if here.is_relative_to(root) else "."


def _seal(place: Path) -> dict[str, _Seal]:
    """Return inode, bytes and time of the last change of every file of a tree, by path in it.

    Nobody but the system's administrator can set back the time of a change. A folder is only there:
    compilers put their own into it while a version runs, which are left out.
    """
    sealed: dict[str, _Seal] = {}
    for folder, names, files in os.walk(place):
        names[:] = [name for name in names if name not in (*_LEFT_OUT, BUILDS)]
        here = Path(folder).relative_to(place)
        sealed |= dict.fromkeys(((here / name).as_posix() for name in names), (0, 0, 0))
        for name in files:
            stat = Path(folder, name).lstat()
            sealed[(here / name).as_posix()] = stat.st_ino, stat.st_size, stat.st_ctime_ns
    return sealed


def difference(root: Path, place: Path) -> dict[str, bytes | None]:
    """Return what a tree of the project has otherwise: contents by path, None for one it lacks."""
    old: dict[str, bytes | None] = {}
    for folder, _, names in os.walk(place):
        here = Path(folder)
        there = root / here.relative_to(place)
        for name in names:
            mine, theirs = here / name, there / name
            same = theirs.is_file() and filecmp.cmp(mine, theirs, shallow=False)
            if not mine.is_symlink() and not same:
                old[mine.relative_to(place).as_posix()] = mine.read_bytes()
        in_project = set(os.listdir(there)) if there.is_dir() else set()
        gone = in_project - {*os.listdir(here)} - _LEFT_OUT
        old |= dict.fromkeys((there / name).relative_to(root).as_posix() for name in sorted(gone))
    return old


def differs(one: Path, other: Path) -> bool:
    """Say whether two files differ, or only one of them exists."""
    if not (one.is_file() and other.is_file()):
        return one.is_file() != other.is_file()
    return not filecmp.cmp(one, other, shallow=False)


def contents_of(path: Path, root: Path) -> dict[str, bytes | None]:
    """Return the contents at `path` by their places below `root`, as far as they differ there.

    A folder holds files at their places; a file stands for the project's only one of its name.
    BadInput for what has no place in the project.
    """
    if path.is_file():
        versions = {path: _counterpart(path, root)}
    else:
        versions = {path / file: file.as_posix() for file in project_files(path)}
        if not any((root / place).is_file() for place in versions.values()):
            raise BadInput(
                f"contains no file at its path below {root}",
                where=str(path),
                fix=f"put the file at its path, such as {path.name}/kernels/gemm.py",
            )
    return {
        place: file.read_bytes() for file, place in versions.items() if differs(file, root / place)
    }


def _counterpart(file: Path, root: Path) -> str:
    """Return which file below a root one elsewhere is a version of, by its name; or BadInput."""
    refused = partial(BadInput, where=str(file))
    same_name = [path for path in project_files(root) if path.name == file.name]
    places = [path.as_posix() for path in same_name if not (root / path).samefile(file)]
    if not places:
        fix = "name it like a kernel file, or give a folder with the files at their places"
        raise refused(f"no other file below {root} has its name", fix=fix)
    if len(places) > 1:
        fix = "give a folder that holds it at its place"
        raise refused(f"it may be a version of {', '.join(places[:3])}", fix=fix)
    return places[0]
