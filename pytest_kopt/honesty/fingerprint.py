"""The harness as the baseline saw it: tests, conftests, what they import, settings, manifest.

Everything here is read from disk by the process that decides; no test or kernel code is imported.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution
from itertools import chain
from pathlib import Path
from typing import Any

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.imports import Finder
from pytest_kopt.sameness.sources import form

#: Keys of the manifest that decide what is measured and how it is judged. The policy is
#: compared by its thresholds, see `Campaign.check_policy`.
MANIFEST_KEYS = (
    *("kernel_source", "env", "test_command", "benchmark_command", "rebuild_command"),
    *("format_command", "engine", "classes", "target_shapes"),
    *("primary_metric", "operating_point"),
)
_SHOWN = 80
#: Packages that this one imports, those that tell of a GPU among them.
_IMPORTED = {
    *("_pytest", "amdsmi", "anyio", "execnet", "filelock", "git", "iniconfig", "jinja2", "mcp"),
    *("numpy", "pandas", "pluggy", "pydantic", "pydantic_core", "pynvml", "pytest", "scipy"),
    *("packaging", "safetensors", "tomli", "torch", "triton", "xdist", "yaml"),
}


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """SHA-256 of the harness's files by path below the root, its settings, and the whole manifest.

    `dependencies` are the project files outside kernel_source that the kernel imports or opens;
    they are no part of the harness, but both versions use them. Behind the hash of such a file
    stands that of its code.
    """

    files: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    dependencies: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObservedFiles:
    """The project's files that processes which ran the cases had, as paths below the root.

    They `loaded` some by a computed name only. Code in those that a case is `judged_by` drew its
    inputs and ran in its reference. Project code `opened` others: each with the files of that code.
    """

    loaded: Collection[str] = ()
    judged_by: Collection[str] = ()
    opened: Mapping[str, Collection[str]] = field(default_factory=dict)


NOTHING = ObservedFiles()


@dataclass(frozen=True, slots=True)
class Harness:
    """The places of a campaign's harness.

    `tests` and `kernel` are paths below `root`, `folders` those in which modules are looked for,
    `plugins` the names of plugins that the command line or the environment loads.
    """

    root: Path
    tests: tuple[str, ...]
    kernel: tuple[str, ...]
    folders: tuple[Path, ...]
    plugins: tuple[str, ...] = ()
    ignored: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.resolve())

    def take(
        self,
        settings: Mapping[str, Any],
        manifest: Mapping[str, Any],
        observed: ObservedFiles = NOTHING,
        recorded: Collection[str] = (),
    ) -> Fingerprint:
        """Return the fingerprint of what lies on disk now.

        Files that are `recorded` already are read again, imported or not. A file that the kernel
        had opened is the kernel's; one that the harness had opened belongs to it at the baseline.
        """
        root, finder = self.root, self._finder()
        conftests = [path for test in self.tests for path in self._conftests(root / test)]
        start = [*(root / test for test in self.tests), *conftests]
        declared = {
            path: names
            for folder in finder.folders
            for path, names in declared_plugins(folder)
            if finder.is_ours(path)
        }
        named = (*self.plugins, *chain.from_iterable(declared.values()))
        start += [path for name in named for path in finder.files(name)]
        needed = self._needed(finder)
        harness = finder.reached(start, self._is_kernel)
        harness = {path for path in harness if self._is_harness(path, conftests, finder)}
        also_loaded = {
            path for path in map(root.joinpath, observed.loaded) if path.is_file()
        } - harness
        harness |= {path for path in also_loaded if self._beside_tests(path) and path not in needed}
        harness |= self._judging(map(root.joinpath, observed.judged_by), finder)
        for name, authors in observed.opened.items() if not recorded else ():
            is_read = not harness.isdisjoint(map(root.joinpath, authors))
            harness |= {root / name} if is_read and not self._is_kernel(root / name) else set()
        harness |= {path for path in hiding(finder.folders) if not self._is_kernel(path)}
        harness |= declared.keys()
        files = {self._name(path) for path in harness if not self._is_ignored(path)}
        files.update(recorded)
        needed_names = {"", *map(self._name, needed)}
        read = {
            root / name for name, by in observed.opened.items() if not needed_names.isdisjoint(by)
        }
        outside = {
            self._name(path)
            for path in needed | read
            if not (self._is_kernel(path) or self._is_ignored(path))
            and self._name(path) not in files
        }
        return Fingerprint(
            {name: _sha256(root / name) for name in sorted(files)},
            dict(settings),
            dict(manifest),
            {name: _hashes(root / name) for name in sorted(outside)},
        )

    def helpers(self) -> list[str]:
        """Return the project files that the kernel takes something from, and is not."""
        finder = self._finder()
        kernel = filter(self._is_kernel, self._kernel_files())
        sources = (source for path in kernel for source in finder.sources(path))
        judging = (path for path in self._judging(sources, finder) if not self._is_ignored(path))
        return sorted(map(self._name, judging))

    def needed(self) -> set[str]:
        """Return the project files that importing the kernel runs, its own among them."""
        return {*map(self._name, self._needed(self._finder()))}

    def _needed(self, finder: Finder) -> set[Path]:
        return finder.reached(self._kernel_files(), self._is_ignored)

    def _finder(self) -> Finder:
        root = self.root
        above = [_import_folder(root / test, root) for test in self.tests]
        folders = dict.fromkeys([*(folder.resolve() for folder in self.folders), *above, root])
        return Finder(root, [folder for folder in folders if folder.is_relative_to(root)])

    def _judging(self, start: Iterable[Path], finder: Finder) -> set[Path]:
        """Return the files of code that decides what is right, and what these import.

        The package around a kernel is there for all of its modules: what else it imports is not
        looked at.
        """
        judging: set[Path] = set()
        waiting = begun = [path for path in start if path.is_file()]
        while waiting:
            path, *waiting = waiting
            if path in judging or self._is_kernel(path):
                continue
            judging.add(path)
            if path in begun or not self._is_package_of_the_kernel(path):
                waiting += finder.sources(path)
        return judging

    def _conftests(self, test: Path) -> list[Path]:
        above = [folder for folder in test.resolve().parents if folder.is_relative_to(self.root)]
        conftests = [folder / "conftest.py" for folder in above]
        packages = [folder / "__init__.py" for folder in above if folder != self.root]
        return [path for path in (*conftests, *packages) if path.is_file()]

    def _is_harness(self, path: Path, conftests: Sequence[Path], finder: Finder) -> bool:
        """Say whether a file that the tests reach belongs to them and not to the kernel's project.

        A wrapper through which the tests call the kernel imports it; so may a helper of the tests,
        but that lies with them.
        """
        tests = {(self.root / test).resolve() for test in self.tests}
        if path in tests or path in conftests or self._beside_tests(path):
            return True
        if self._is_package_of_the_kernel(path):
            return False
        return not any(map(self._is_kernel, finder.reached([path], lambda p: False)))

    def _beside_tests(self, path: Path) -> bool:
        """Say whether a file lies in a folder above a test, below the root, without a kernel."""
        root = self.root
        above = {folder for test in self.tests for folder in (root / test).resolve().parents}
        homes = {folder for folder in above if folder != root and folder.is_relative_to(root)}
        return any(path.is_relative_to(home) and not self._has_kernel_below(home) for home in homes)

    def _has_kernel_below(self, folder: Path) -> bool:
        return any((self.root / source).resolve().is_relative_to(folder) for source in self.kernel)

    def _is_package_of_the_kernel(self, path: Path) -> bool:
        return path.name == "__init__.py" and self._has_kernel_below(path.parent)

    def _kernel_files(self) -> list[Path]:
        files = []
        for source in self.kernel:
            path = (self.root / source).resolve()
            files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
            files += [p for folder in path.parents if (p := folder / "__init__.py").is_file()]
        return [path for path in files if path.is_relative_to(self.root)]

    def _is_kernel(self, path: Path) -> bool:
        sources = [(self.root / source).resolve() for source in self.kernel]
        return any(path.is_relative_to(source) for source in sources)

    def _is_ignored(self, path: Path) -> bool:
        return any(path.is_relative_to(folder.resolve()) for folder in self.ignored)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def hiding(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the project's modules that hide one of Python's, or one that this package imports.

    Every process that imports that name gets them, the controller among others.
    """
    for folder in folders:
        for path in (*folder.glob("*.py"), *folder.glob("*/__init__.py")):
            name = path.stem if path.parent == folder else path.parent.name
            if name in sys.stdlib_module_names or name in _IMPORTED:
                yield path


def declared_plugins(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the metadata in a folder that names plugins of pytest's, with the plugins' modules.

    The controller loads them before kopt is asked, if the folder is on sys.path.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.lower().endswith((".dist-info", ".egg-info")):
            try:
                points = Distribution.at(path).entry_points.select(group="pytest11")
                names = [point.module for point in points]
            except (AttributeError, TypeError, UnicodeDecodeError):
                # Metadata that nobody can read: pytest fails by it, or passes it over.
                names = []
            if names:
                yield path / "entry_points.txt", names


def edits(before: Fingerprint, now: Fingerprint) -> Iterator[Finding]:
    """Yield what of the harness changed since the baseline; every one rejects."""
    texts = []
    for name in touched(before, now):
        change = "edited" if now.files.get(name) else "removed"
        texts.append(f"{name} was {change if before.files.get(name) else 'added'}")
    texts += _changes("pytest setting", before.settings, now.settings)
    old, new = ({key: f.manifest.get(key) for key in MANIFEST_KEYS} for f in (before, now))
    texts += _changes("manifest key", old, new)
    advice = "undo the edit, or start a new campaign with it: kopt init NEW --from OLD"
    yield from (Finding("harness-edit", text, advice=advice) for text in texts)


def touched(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Return the files that were edited, added or removed since the baseline."""
    names = sorted({*before.files, *now.files})
    return [n for n in names if before.files.get(n, "") != now.files.get(n, "")]


def moved(before: Fingerprint, root: Path) -> list[str]:
    """Return the dependencies whose code is not on disk as a fingerprint has it."""
    now = {name: _hashes(root / name) for name in before.dependencies}
    return [
        name
        for name, then in before.dependencies.items()
        if then != now[name] and {*then.split()}.isdisjoint(now[name].split())
    ]


def _changes(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"{kind} {key}: {_shortened(old.get(key))} -> {_shortened(new.get(key))}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _shortened(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _sha256(path: Path) -> str:
    """Return a file's hash, "" where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _hashes(path: Path) -> str:
    """Return the hash of a file, of Python also without comments and layout; "" without a file.

    Another version of Python may have another form of the same code.
    """
    is_python = path.suffix == ".py" and path.is_file()
    code = form(path.name, path.read_bytes()) if is_python else None
    more = hashlib.sha256(code.encode()).hexdigest() if isinstance(code, str) else ""
    return f"{_sha256(path)} {more}".strip()


def _import_folder(test: Path, root: Path) -> Path:
    """Return the folder that pytest puts on the path for a test file: above its packages."""
    folder = test.resolve().parent
    while (folder / "__init__.py").is_file() and folder != root:
        folder = folder.parent
    return folder
