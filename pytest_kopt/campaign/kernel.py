"""Versions of the kernel files, and what was built of them: taken, kept, compared, put back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.versions.tree import differs

#: How the name of a file ends that is being written.
_UNFINISHED = ".kopt-new"
#: The file that lists what a build made.
_LISTING = "built.json"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class KernelFile:
    """One file: its bytes and its permission bits."""

    content: bytes
    mode: int

    @classmethod
    def at(cls, path: Path) -> KernelFile:
        return cls(path.read_bytes(), stat.S_IMODE(path.stat().st_mode))

    @property
    def sha256(self) -> str:
        return sha256(self.content)


@dataclass(frozen=True, slots=True)
class KernelVersion:
    """All kernel files of one moment, by path relative to the project root."""

    files: dict[str, KernelFile]

    @classmethod
    def take(cls, root: Path, sources: Iterable[str]) -> KernelVersion:
        """Read the files (and directories' files) that `sources` name; or BadInput."""
        files = {}
        for source in sources:
            where = source
            try:
                for path in files_of(root / source):
                    where = path.relative_to(root).as_posix()
                    files[where] = KernelFile.at(path)
            except OSError as error:
                raise BadInput(f"cannot be read: {error.strerror}", where=where) from None
        return cls(files)

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 by path."""
        return {path: file.sha256 for path, file in sorted(self.files.items())}

    @property
    def name(self) -> str:
        """The version's name among others: its files' hashes, hashed."""
        return sha256(json.dumps(self.hashes).encode())

    @property
    def sources(self) -> dict[str, bytes]:
        return {path: file.content for path, file in self.files.items()}

    def same_content(self, other: KernelVersion) -> bool:
        return self.hashes == other.hashes

    def write(self, directory: Path) -> None:
        """Write the version below a directory, replacing what is there."""
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
        for relative, file in self.files.items():
            put(temporary / relative, file)
        if directory.exists():
            shutil.rmtree(directory)
        os.replace(temporary, directory)

    @classmethod
    def load(cls, directory: Path, hashes: dict[str, str]) -> KernelVersion:
        """Read a version that `write` left; BadInput when it is not what `hashes` say."""
        version = cls.take(directory, sorted(hashes)) if hashes else cls({})
        for relative, recorded in hashes.items():
            if version.hashes.get(relative) != recorded:
                what = (
                    f"{relative!r} is not the version the ledger names (SHA-256 {recorded[:12]}…)"
                )
                raise BadInput(what, where=str(directory), fix="restore the file from a backup")
        return version

    def restore(self, root: Path, over: KernelVersion, inside: Path | None = None) -> list[str]:
        """Put this version into the tree in place of `over`; return the paths that changed.

        Only a file that is still as `over` has it is replaced, or removed where this version has
        none: the caller has kept that one. Any other was edited since, and nobody has kept it. A
        file is replaced whole, so that a kill leaves one version or the other.

        Raises CannotFinish, with nothing written, for a path that leads outside of `inside` (the
        root, unless given).
        """
        home = (inside or root).resolve()
        for relative in self.files:
            if not (root / relative).resolve().is_relative_to(home):
                raise CannotFinish(f"{relative} leads outside of {home}: nothing is restored there")
        for relative in {*self.files, *over.files}:
            _temporary((root / relative).resolve()).unlink(missing_ok=True)
        changed = []
        gone = set(over.files) - set(self.files)
        differing = {path for path, file in self.files.items() if over.files.get(path) != file}
        for relative in [*sorted(gone), *sorted(differing)]:
            file, replaced = self.files.get(relative), over.files.get(relative)
            path = (root / relative).resolve() if file else root / relative
            there = KernelFile.at(path) if path.is_file() else None
            if there != replaced or (there is None and path.exists()):
                continue
            changed.append(relative)
            if file is None:
                path.unlink()
                folder = path.parent
                while folder != root and not any(folder.iterdir()):
                    folder.rmdir()
                    folder = folder.parent
            elif replaced is not None and replaced.content == file.content:
                path.chmod(file.mode)
            else:
                put(path, file)
        return changed


def put(path: Path, file: KernelFile) -> None:
    """Write one file whole: temporary file, sync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as stream:
            stream.write(file.content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(file.mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _temporary(path: Path) -> Path:
    """Return where a file is written before it is renamed; a known place can be tidied."""
    return path.with_name(f".{path.name}{_UNFINISHED}")


def files_of(path: Path) -> Iterator[Path]:
    """Yield a kernel's source file, or those below a directory."""
    if not path.is_dir():
        yield path
        return
    for child in sorted(path.rglob("*")):
        compiled = child.suffix == ".pyc" or "__pycache__" in child.parts
        if child.is_file() and not compiled and not child.name.endswith(_UNFINISHED):
            yield child


def is_machine_code(content: bytes | None) -> bool:
    """Say whether a file that begins so is a library, a program or an object of a compiler."""
    return (content or b"").startswith((b"\x7fELF", b"!<arch>\n"))


@dataclass(frozen=True, slots=True)
class Built:
    """The products of a build: `files` below `tree`, which holds nothing else.

    They stay where they were built: a library may name the place of another one.
    """

    tree: Path
    files: tuple[str, ...]
    #: The versions that it is the build of, by `KernelVersion.name`.
    kernels: tuple[str, ...] = ()

    @classmethod
    def keep(cls, tree: Path, files: Iterable[str]) -> Built:
        """Reduce a tree to these files, as far as they are there."""
        places = {path: tree / path for path in files}
        kept = {p for p, at in places.items() if os.path.lexists(at) and not at.is_dir()}
        for folder, _, names in os.walk(tree, topdown=False):
            for name in names:
                path = Path(folder, name)
                if path.relative_to(tree).as_posix() not in kept:
                    path.unlink()
            if not os.listdir(folder):
                os.rmdir(folder)
        built = cls(tree, tuple(sorted(kept)))
        built._write()
        return built

    @classmethod
    def kept(cls, folder: Path) -> Built | None:
        """Return what `keep` left in the tree's folder; None where it did not come to that."""
        listing = folder / _LISTING
        if not listing.is_file():
            return None
        made = json.loads(listing.read_text(encoding="utf-8"))
        return cls(folder / made["tree"], tuple(made["files"]), tuple(made["kernels"]))

    def belongs_to(self, kernel: KernelVersion) -> bool:
        return kernel.name in self.kernels

    def note(self, kernel: KernelVersion) -> None:
        """Note that it is the build of a version."""
        replace(self, kernels=tuple(sorted({*self.kernels, kernel.name})))._write()

    def put(self, target: Path, others: Iterable[Built] = ()) -> None:
        """Put it into a tree in place of what `others` are; a library in use is not written to."""
        for other in others:
            for path in {*other.files}.difference(self.files):
                if not differs(other.tree / path, target / path):
                    (target / path).unlink(missing_ok=True)
        for path in self.files:
            place = target / path
            if not differs(self.tree / path, place):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            shutil.copy2(self.tree / path, place, follow_symlinks=False)

    def libraries(self) -> dict[str, str]:
        """Return the SHA-256 of the machine code by its path."""
        files = ((path, self.tree / path) for path in self.files)
        contents = {path: file.read_bytes() for path, file in files if file.is_file()}
        return {path: sha256(c) for path, c in contents.items() if is_machine_code(c)}

    def _write(self) -> None:
        made = {"tree": self.tree.name, "files": self.files, "kernels": self.kernels}
        listing = self.tree.parent / _LISTING
        listing.parent.mkdir(parents=True, exist_ok=True)
        unfinished = _temporary(listing)
        unfinished.write_text(json.dumps(made), encoding="utf-8")
        os.replace(unfinished, listing)


def kept_builds(folder: Path) -> list[Built]:
    """Return the builds that are kept below a folder."""
    listings = sorted(folder.glob(f"*/{_LISTING}"))
    return [built for file in listings if (built := Built.kept(file.parent))]
