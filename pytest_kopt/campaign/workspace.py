"""Workspace mode: a minimal project in the campaign's directory, taken from upstream.

`src/` holds the kernel and what it runs with, `tests/` the cases and what lies with them, `bench/`
the benchmarks. Rounds run there; only the kernel goes back. Versions that the workspace accepted
are provisional: its best kernel is put into the upstream tree, measured there against what was
extracted, and stays only when that accepts it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_kopt import models
from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.kernel import KernelVersion, sha256
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import Extracted, Manifest, Upstream
from pytest_kopt.cases.result import ExpectedCase
from pytest_kopt.clock import now
from pytest_kopt.errors import BadInput
from pytest_kopt.imports import Finder

_SRC, _TESTS, _BENCH = "src", "tests", "bench"
#: Settings of pytest that a workspace has its own of.
_OWN = ("pythonpath", "testpaths", "norecursedirs", "kopt_workspace", "kopt_campaign")
_PROBE = "from pytest_kopt.session.probe import main; main()"


@dataclass(frozen=True, slots=True)
class Probe:
    """The results of collecting the tests in a fresh process."""

    #: The node ids of the tests marked kopt.
    cases: tuple[str, ...]
    #: The files of every imported module.
    modules: tuple[str, ...]
    #: Why the tests cannot be collected, "" where they can.
    failure: str = ""
    #: The folders in which modules were looked for.
    path: tuple[str, ...] = ()


@contextmanager
def extracted(
    manifest: Manifest,
    root: Path,
    layout: Layout,
    benchmarks: Iterable[str],
    settings: Mapping[str, Any],
) -> Iterator[tuple[Layout, Manifest]]:
    """Yield a campaign's directory with a workspace in it, under construction, and its manifest.

    It gets its name when everything inside went well, else it is gone. `settings` are those of
    upstream's pytest. Raises BadInput where the cases are not found in the workspace as upstream.
    """
    building = Layout(layout.directory.with_name(f".{layout.name}.new"))
    if layout.directory.exists():
        raise BadInput(
            f"{layout.directory} exists already", where="--mode", fix="give another name"
        )
    shutil.rmtree(building.directory, ignore_errors=True)
    building.directory.mkdir(parents=True)
    try:
        collected = _collected(manifest, root)
        if collected.failure:
            raise BadInput(f"the tests cannot be collected: {collected.failure}")
        rooms = _rooms(manifest, root, layout, benchmarks, collected)
        files = {place: upstream for room in rooms.values() for place, upstream in room.items()}
        moved = _manifest(manifest, root, layout, files, rooms[_SRC])
        for place, upstream in files.items():
            (building.directory / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / upstream, building.directory / place)
        for room in rooms:
            (building.directory / room).mkdir(exist_ok=True)
        text = _settings(layout.name, root.resolve(), rooms, collected, settings)
        (building.directory / "pyproject.toml").write_text(text, encoding="utf-8")
        KernelVersion.take(root, manifest.kernel_source).write(building.upstream)
        _check(moved, building, files, collected)
        yield building, moved
        building.directory.rename(layout.directory)
    finally:
        shutil.rmtree(building.directory, ignore_errors=True)


def _rooms(
    manifest: Manifest, root: Path, layout: Layout, benchmarks: Iterable[str], collected: Probe
) -> dict[str, dict[str, str]]:
    """Return the files of every room: their paths in the workspace, and upstream."""
    root = root.resolve()
    finder = Finder(root)
    kernel = set(KernelVersion.take(root, manifest.kernel_source).files)
    workspace = layout.workspace.resolve()
    modules = (path for path in map(Path, collected.modules) if path.is_file())
    ours = [path for path in modules if finder.is_ours(path)]
    ours = [path for path in ours if not path.is_relative_to(workspace)]
    imported = {path.relative_to(root).as_posix() for path in ours}
    bench = set(KernelVersion.take(root, benchmarks).files)
    cases = {nodeid.partition("::")[0] for nodeid in collected.cases}
    homes = {PurePosixPath(case).parent for case in cases} - {PurePosixPath()}
    homes = {home for home in homes if not any(_below(path, home) for path in kernel)}
    tests = {
        path
        for path in imported - kernel
        if path in cases
        or PurePosixPath(path).name == "conftest.py"
        or any(_below(path, home) for home in homes)
    }
    rooms = {_SRC: (imported | kernel) - tests - bench, _TESTS: tests - bench, _BENCH: bench}
    return {room: _placed(room, paths) for room, paths in rooms.items()}


def _placed(room: str, paths: Iterable[str]) -> dict[str, str]:
    """Return the places of files in a room; a folder of the room's own name is not repeated."""
    paths = sorted(paths)
    is_inside = all(PurePosixPath(path).parts[0] == room for path in paths)
    return {path if is_inside else f"{room}/{path}": path for path in paths}


def _manifest(
    manifest: Manifest, root: Path, layout: Layout, files: Mapping[str, str], src: Mapping[str, str]
) -> Manifest:
    repository = Repository.around(root)
    if repository is not None:
        dirty = repository.dirty([repository.relative(root, path) for path in files.values()])
        if dirty:
            what = f"{', '.join(sorted(dirty))} differs from HEAD, and a workspace copies a commit"
            raise BadInput(what, where="--mode workspace", fix="git commit")
    places = {upstream: place for place, upstream in files.items()}
    prefix = "" if all(place == upstream for place, upstream in src.items()) else f"{_SRC}/"
    upstream = Upstream(
        root=Path(os.path.relpath(root, layout.directory)).as_posix(),
        commit=repository.head if repository else None,
        kernel_source=manifest.kernel_source,
        tests=manifest.tests,
        test_command=manifest.test_command,
        files={
            place: Extracted(path=path, sha256=sha256_of(root / path))
            for place, path in files.items()
        },
    )
    return manifest.model_copy(
        update={
            "execution_mode": "workspace",
            "upstream": upstream,
            "kernel_source": [f"{prefix}{source}" for source in manifest.kernel_source],
            "tests": shlex.join(_moved(word, places) for word in shlex.split(manifest.tests)),
            "test_command": None,
        }
    )


def _moved(word: str, places: Mapping[str, str]) -> str:
    """Return a word of pytest's arguments as it is in the workspace: paths have moved."""
    path, separator, rest = word.partition("::")
    name = PurePosixPath(path).as_posix()
    if name in places:
        return places[name] + separator + rest
    below = sorted(p for upstream, p in places.items() if _below(upstream, PurePosixPath(name)))
    if not below or word.startswith("-"):
        return word
    inside = {place: upstream for upstream, place in places.items()}[below[0]]
    return below[0][: len(below[0]) - len(inside)] + name


def _settings(
    name: str,
    root: Path,
    rooms: Mapping[str, Mapping[str, str]],
    collected: Probe,
    settings: Mapping[str, Any],
) -> str:
    entries = [
        Path(entry).relative_to(root).as_posix()
        for entry in collected.path
        if Path(entry).is_relative_to(root) and "site-packages" not in entry
    ]
    folders = [
        PurePosixPath("" if all(place == path for place, path in files.items()) else room, entry)
        for entry in entries
        for room, files in rooms.items()
        if any(_below(path, PurePosixPath(entry)) for path in files.values())
    ]
    options = {
        "pythonpath": list(dict.fromkeys(str(folder) for folder in folders)),
        "testpaths": [_TESTS],
        "kopt_workspace": "..",
        "kopt_campaign": name,
        **{key: value for key, value in settings.items() if key not in _OWN},
    }
    plain = {k: v if isinstance(v, bool | list) else str(v) for k, v in options.items()}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    return "[tool.pytest.ini_options]\n" + "".join(f"{line}\n" for line in lines)


def _collected(manifest: Manifest, root: Path) -> Probe:
    """Collect the tests of a project in a fresh process."""
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "probe.json"
        process = subprocess.run(
            [sys.executable, "-c", _PROBE, str(answer), *shlex.split(manifest.tests)],
            cwd=root,
            env={**os.environ, **manifest.env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if not answer.exists():
            return Probe((), (), (process.stdout + process.stderr)[-1500:].strip())
        return models.read(Probe, json.loads(answer.read_text(encoding="utf-8")))


def _check(manifest: Manifest, building: Layout, files: Mapping[str, str], before: Probe) -> None:
    """Raise BadInput unless the workspace collects upstream's cases with its own kernel."""
    places = {upstream: place for place, upstream in files.items()}
    collected = _collected(manifest, building.directory)
    expected = [_moved(nodeid, places) for nodeid in before.cases]
    kernel = [str((building.directory / path).resolve()) for path in manifest.kernel_source]
    missing = [path for path in kernel if path.endswith(".py") and path not in collected.modules]
    problem = collected.failure
    if not problem and missing:
        problem = f"kernel {missing[0]} is not imported from there"
    elif not problem and list(collected.cases) != expected:
        problem = f"{len(collected.cases)} case(s) are collected there, {len(expected)} upstream"
    if problem:
        what = f"the tests cannot run outside of the project: {problem}"
        raise BadInput(what, where="--mode workspace", fix="--mode repo")


def _below(path: str, folder: PurePosixPath) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def sha256_of(file: Path) -> str:
    """Return a file's SHA-256 in hexadecimal digits, "" where there is none."""
    return sha256(file.read_bytes()) if file.is_file() else ""


def edited(manifest: Manifest, workspace: Path) -> list[str]:
    """Return a sentence for every kernel file that is no longer what was extracted."""
    files = manifest.upstream.files if manifest.upstream else {}
    return [
        f"{place} differs from upstream's {file.path}: the baseline is what was extracted"
        for place, file in files.items()
        if any(Path(place).is_relative_to(source) for source in manifest.kernel_source)
        and sha256_of(workspace / place) != file.sha256
    ]


class UpstreamCampaign(Campaign):
    """The campaign with upstream's root, kernel, tests and cases."""

    def __init__(self, layout: Layout, root: Path) -> None:
        """Read everything, change nothing; BadInput where the campaign has no workspace."""
        super().__init__(layout, root)
        upstream = self.manifest.upstream
        assert upstream is not None
        self._upstream = upstream
        keys = ("kernel_source", "tests", "test_command")
        self.manifest = self.manifest.model_copy(
            update={key: getattr(upstream, key) for key in keys}
        )

    def check_place(self) -> None:
        """Raise BadInput when upstream has moved on, or the workspace has not finished."""
        self.check_not_integrated()
        if pending := self.state.pending:
            what = f"round {pending.round} is decided but not carried out"
            fix = f"cd {self.layout.directory}, and run a session there: it ends the round"
            raise BadInput(what, where=self.name, fix=fix)
        moved = [file.path for file in self._upstream.files.values() if self._has_moved(file)]
        if moved:
            commit = self._upstream.commit
            raise BadInput(
                f"upstream has moved: {', '.join(moved)} changed in the project after kopt init "
                f"copied it{f' (commit {commit[:12]})' if commit else ''}",
                where=moved[0],
                fix=f"restore the file, or kopt init NEW --from {self.name}",
            )

    def incumbent(self) -> KernelVersion:
        """Return the best version of the workspace, by upstream's paths."""
        return KernelVersion(
            {self._path(path): file for path, file in super().incumbent().files.items()}
        )

    def baseline(self) -> KernelVersion:
        """Return upstream's own kernel as it was extracted."""
        recorded = {file.path: file.sha256 for file in self._upstream.files.values()}
        extracted = KernelVersion.take(self.layout.upstream, self._upstream.kernel_source)
        return KernelVersion.load(
            self.layout.upstream,
            {path: recorded[path] for path in extracted.files if path in recorded},
        )

    def expected_cases(self) -> dict[str, ExpectedCase]:
        """Return the baseline's cases by the names they have upstream."""
        cases = super().expected_cases().items()
        moved = {self._path(nodeid): case for nodeid, case in cases}
        return {nodeid: replace(case, nodeid=nodeid) for nodeid, case in moved.items()}

    def skipped_at_baseline(self) -> list[str]:
        """Return what the baseline skipped, by the names it has upstream."""
        return [self._path(nodeid) for nodeid in super().skipped_at_baseline()]

    def put_in(self) -> None:
        """Put the best version into the upstream tree; `settle` keeps it or puts upstream back."""
        best = self.incumbent()
        number = self.state.incumbent_round
        assert number is not None
        self.append(ledger.Integrating(time=now(), round=number, kernel=best.hashes))
        best.restore(self.root, over=self.baseline())

    def settle(self, *, apply: bool = True, log: Sequence[Path] = ()) -> None:
        """Commit an integration that was accepted, put upstream back otherwise; safe to repeat."""
        begun, final = self.state.integrating, self.state.integration_final
        if begun is None:
            return
        commit, restored = None, []
        is_kept = apply and final is not None and final.decision.keeps
        if is_kept and final is not None and self.committed_to:
            files: dict[str, Path | None] = dict.fromkeys(self.baseline().files)
            placed = self.state.rounds[begun.round].last.kernel_paths()
            files |= {self._path(path): place for path, place in placed.items()}
            commit = self.commit_round(begun.round, files, final.reason)
        elif not is_kept:
            restored = self.baseline().restore(self.root, over=self.incumbent())
        self.append(
            ledger.Integrated(time=now(), kept=is_kept, git_commit=commit, restored=restored)
        )

    def _has_moved(self, file: Extracted) -> bool:
        """Say whether a file is neither as extracted nor as a cut-off integration left it."""
        there, begun = sha256_of(self.root / file.path), self.state.integrating
        return there != file.sha256 and not (begun and there == begun.kernel.get(file.path, ""))

    def _path(self, place: str) -> str:
        """Return the upstream path of a file (or of a case in it) of the workspace."""
        path, separator, rest = place.partition("::")
        if path in self._upstream.files:
            return self._upstream.files[path].path + separator + rest
        # A kernel file that a round added lies where its neighbours do.
        neighbours = [(p, f.path) for p, f in self._upstream.files.items() if p.startswith("src/")]
        is_unmoved = all(place == path for place, path in neighbours)
        return place if is_unmoved else place.removeprefix("src/")
