"""Another version of some files of a project that lies elsewhere: a folder, or one file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pytest_kopt.errors import BadInput
from pytest_kopt.versions.overlay import project_files


def contents_of(path: Path, root: Path) -> dict[str, bytes | None]:
    """Return the contents at `path` by their places below `root`, as far as they differ there.

    A folder holds files at their places; a file stands for the project's only one of its name.
    BadInput for what has no place in the project.
    """
    versions = {path: counterpart(path, root)} if path.is_file() else _in_folder(path, root)
    return {
        place: content
        for file, place in versions.items()
        if (content := file.read_bytes()) != _content(root / place)
    }


def counterpart(file: Path, root: Path) -> str:
    """Return which file below a root one elsewhere is a version of, by its name; or BadInput."""
    refused = partial(BadInput, where=str(file))
    same_name = [path for path in project_files(root) if path.name == file.name]
    places = [path.as_posix() for path in same_name if not (root / path).samefile(file)]
    if not places:
        legal = "a file with a kernel file's name, or a folder with files at their places"
        raise refused(f"no other file below {root} has its name", legal=legal)
    if len(places) > 1:
        legal = "a folder that holds it at its place"
        raise refused(f"it may be a version of {', '.join(places[:3])}", legal=legal)
    return places[0]


def _in_folder(folder: Path, root: Path) -> dict[Path, str]:
    versions = {folder / path: path.as_posix() for path in project_files(folder)}
    if not any((root / place).is_file() for place in versions.values()):
        what = f"it holds no version of a file below {root}"
        raise BadInput(what, where=str(folder), legal="files at their places, as kernels/gemm.py")
    return versions


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
